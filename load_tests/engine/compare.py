"""Measures in one run: stock ``transformers`` and the engine asked in turn, beside what this machine could do
at most."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

from load_tests.benchmark import in_turn, say
from load_tests.engine.batches import BatchEngine
from load_tests.engine.chains import DocumentPrefill, flops_of
from load_tests.engine.late_loads import LateLoads, WhichFirst
from load_tests.engine.ours import Ours
from load_tests.engine.quoting import Quoted, Quoting
from load_tests.engine.sharing import Crowd, CrowdEngine
from load_tests.engine.stock import Stock
from shared.generation.modes import ReuseMode
from shared.measuring.case import Case
from shared.measuring.rates import Rates
from shared.measuring.report import Measurement, measured
from shared.measuring.workers import Worker, peak_bytes

TEMPERATURE = 0.8
_DRAFT_ROWS = 8
_ADAPTER_RANK = 8


@dataclass(frozen=True, slots=True)
class Runs:
    """Numbers of times. A cold prefill takes long and varies little."""

    cold: int = 3
    warm: int = 9
    decode: int = 3


def compare(case: Case, rates: Rates, runs: Runs) -> Iterator[Measurement]:
    """Times to first token and decoding rates over one context; behind peak memory what transformers is not
    asked."""
    context = case.context
    with Worker(Stock, case) as stock, Worker(Ours, case) as ours:
        yield from first_tokens(case, rates, runs, stock, ours)
        yield _decoding(f"decode_1_{context}", 1, case, rates, runs, stock, ours)
        yield _decoding(f"decode_8_shared_{context}", 8, case, rates, runs, stock, ours)
        yield measured(
            f"peak_bytes_{context}", [ours.call(peak_bytes)], "byte", baseline=stock.call(peak_bytes)
        )
        yield measured(f"kv_bytes_{context}", [ours.call(Ours.kv_bytes)], "byte")
        yield measured(f"packed_weight_bytes_{context}", [ours.call(Ours.packed_bytes)], "byte")
        yield _decoding_alone(f"decode_32_shared_{context}", 32, case, rates, runs, ours)


def first_tokens(case: Case, rates: Rates, runs: Runs, stock: Worker, ours: Worker) -> Iterator[Measurement]:
    """KV resident, chunks in another order each time, against a cold prefill and an exact hit."""
    say(f"first token over {case.context} tokens")
    cold, hit, stitched = in_turn(
        (runs.cold, lambda: stock.call(Stock.cold_prefill_s)),
        (runs.warm, lambda: stock.call(Stock.exact_hit_s)),
        (runs.warm, lambda: ours.call(Ours.stitched_s)),
    )
    limit = case.shape.ttft_limit_s(case.question, case.prompt_len, rates)
    ceiling, flops = ours.call(Ours.stitched_ceiling).seconds, case.stitched_flops
    name = f"ttft_stitched_{case.context}"
    yield measured(name, stitched, "s", baseline=cold, limit=limit, ceiling=ceiling, flops=flops)
    yield measured(f"{name}_over_exact_hit", stitched, "s", baseline=hit, limit=limit, flops=flops)
    yield measured(f"ttft_cold_{case.context}", cold, "s", flops=case.cold_flops)


def _decoding(
    name: str, batch: int, case: Case, rates: Rates, runs: Runs, stock: Worker, ours: Worker
) -> Measurement:
    say(f"decoding {batch} over {case.context} tokens")
    theirs, values = in_turn(
        (runs.decode, lambda: stock.call(Stock.decode_rate, batch)),
        (runs.decode, lambda: ours.call(Ours.decode_rate, batch)),
    )
    limit = batch / case.step_limit_s(batch, rates)
    return measured(name, values, "token/s", better="higher", baseline=theirs, limit=limit)


def _decoding_alone(name: str, batch: int, case: Case, rates: Rates, runs: Runs, ours: Worker) -> Measurement:
    """Without transformers, which would read the context once for each."""
    say(f"decoding {batch} over {case.context} tokens")
    values = [ours.call(Ours.decode_rate, batch) for _ in range(runs.decode)]
    limit = batch / case.step_limit_s(batch, rates)
    return measured(name, values, "token/s", better="higher", limit=limit)


def compare_sampled(case: Case, runs: Runs) -> Measurement:
    """Eight branches over one context that draw their tokens at a temperature, against the same branches
    decoding greedily."""
    say(f"decoding 8 sampled over {case.context} tokens")
    with Worker(Ours, case) as ours:
        greedy, sampled = in_turn(
            (runs.decode, lambda: ours.call(Ours.decode_rate, 8)),
            (runs.decode, lambda: ours.call(Ours.decode_rate, 8, TEMPERATURE)),
        )
    return measured("decode_8_sampled", sampled, "token/s", better="higher", baseline=greedy)


def compare_ape(case: Case, runs: Runs) -> Iterator[Measurement]:
    """Chunks weighed by mode ``ape``, against the same ones placed side by side and not weighed."""
    say(f"ape over {case.context} tokens")
    with Worker(Ours, case) as ours:
        placed_ttft, ttft = in_turn(
            (runs.warm, partial(ours.call, Ours.stitched_s, ReuseMode.COMPOSITE)),
            (runs.warm, partial(ours.call, Ours.stitched_s, ReuseMode.APE)),
        )
        placed_rate, rate = in_turn(
            (runs.decode, partial(ours.call, Ours.decode_rate, 8, 0.0, ReuseMode.COMPOSITE)),
            (runs.decode, partial(ours.call, Ours.decode_rate, 8, 0.0, ReuseMode.APE)),
        )
    yield measured("ttft_ape", ttft, "s", baseline=placed_ttft)
    yield measured("decode_8_ape", rate, "token/s", better="higher", baseline=placed_rate)


def compare_speculation(case: Case, runs: Runs) -> Iterator[Measurement]:
    """One branch that speculates against the same one that does not: its answer quotes three quarters from
    the context, or nothing, or every draft is wrong."""
    case = replace(case, decode=4 * case.decode)
    with Worker(Quoting, case, _DRAFT_ROWS) as drafting, Worker(Quoting, case, 0) as without:
        for context in Quoted:
            say(f"decoding 1 over {case.context} tokens, {context} quoted")
            for worker in (drafting, without):
                worker.call(Quoting.decode_rate, context)  # computes the context's KV
            base, rates = in_turn(
                (runs.decode, partial(without.call, Quoting.decode_rate, context)),
                (runs.decode, partial(drafting.call, Quoting.decode_rate, context)),
            )
            name = "speculation_1" if context is Quoted.MOSTLY else f"speculation_1_{context}"
            yield measured(name, rates, "token/s", better="higher", baseline=base)


def compare_late(case: Case, delays_s: Sequence[float], runs: Runs) -> Iterator[Measurement]:
    """First tokens over chunks whose KV comes late: the engine's choice, against the better one of always
    loading and always computing. Last the worst of these ratios."""
    worst = 0.0
    with Worker(LateLoads, case) as worker:
        for delay_s in delays_s:
            say(f"first token over {case.context} tokens that come {delay_s:g} s late")
            for _ in range(2):
                worker.call(LateLoads.ttft_s, WhichFirst.EITHER, delay_s)  # learns what loading takes
            ways = [(runs.cold, partial(worker.call, LateLoads.ttft_s, way, delay_s)) for way in WhichFirst]
            loaded, computed, either = in_turn(*ways)
            best = min(loaded, computed, key=median)
            found = measured(f"ttft_late_{delay_s:g}", either, "s", baseline=best)
            yield found
            worst = max(worst, found.value / median(best))
    yield measured("load_or_compute_overhead", [worst], "times", limit=1.0)


def compare_invariant(case: Case, runs: Runs) -> Iterator[Measurement]:
    """The cost of no request's bits depending on its company: ``batch_invariant``, against the engine without
    it."""
    say(f"batch_invariant over {case.context} tokens")
    with Worker(Ours, case) as free, Worker(Ours, case, True) as fixed:
        free_ttft, free_rate, ttft, rate = in_turn(
            (runs.decode, lambda: free.call(Ours.stitched_s)),
            (runs.decode, lambda: free.call(Ours.decode_rate, 8)),
            (runs.decode, lambda: fixed.call(Ours.stitched_s)),
            (runs.decode, lambda: fixed.call(Ours.decode_rate, 8)),
        )
    yield measured(f"batch_invariant_ttft_{case.context}", ttft, "s", baseline=free_ttft)
    name = f"batch_invariant_decode_8_{case.context}"
    yield measured(name, rate, "token/s", better="higher", baseline=free_rate)


def compare_weights(case: Case, rates: Rates, runs: Runs) -> Iterator[Measurement]:
    """Int8 weights, against the engine with exact ones."""
    say(f"int8 weights over {case.context} tokens")
    with Worker(Ours, case) as exact, Worker(Ours, case, weights="int8") as int8:
        baseline, values = in_turn(
            (runs.warm, lambda: exact.call(Ours.stitched_s)), (runs.warm, lambda: int8.call(Ours.stitched_s))
        )
        yield measured(f"ttft_stitched_int8_{case.context}", values, "s", baseline=baseline)
        for batch, part in ((1, "decode_1"), (8, "decode_8_shared"), (32, "decode_32_shared")):
            baseline, values = in_turn(
                (runs.decode, partial(exact.call, Ours.decode_rate, batch)),
                (runs.decode, partial(int8.call, Ours.decode_rate, batch)),
            )
            limit, name = batch / case.step_limit_s(batch, rates, 1), f"{part}_int8_{case.context}"
            yield measured(name, values, "token/s", better="higher", baseline=baseline, limit=limit)
        num_bytes = [worker.call(Ours.packed_bytes) for worker in (int8, exact)]
        name = f"packed_weight_bytes_int8_{case.context}"
        yield measured(name, num_bytes[:1], "byte", baseline=num_bytes[1])


def compare_adapter(case: Case, runs: Runs) -> Iterator[Measurement]:
    """Requests with an adapter of every linear layer, against the same ones without."""
    say(f"an adapter over {case.context} tokens")
    with Worker(Ours, case) as without, Worker(Ours, case, adapter_rank=_ADAPTER_RANK) as adapted:
        baseline, values = in_turn(
            (runs.warm, lambda: without.call(Ours.stitched_s)),
            (runs.warm, lambda: adapted.call(Ours.stitched_s)),
        )
        yield measured(f"ttft_adapter_{case.context}", values, "s", baseline=baseline)
        for batch in (1, 8):
            baseline, values = in_turn(
                (runs.decode, partial(without.call, Ours.decode_rate, batch)),
                (runs.decode, partial(adapted.call, Ours.decode_rate, batch)),
            )
            name = f"decode_{batch}_adapter_{case.context}"
            yield measured(name, values, "token/s", better="higher", baseline=baseline)


def compare_batches(case: Case, batches: Sequence[int], rates: Rates, runs: Runs) -> Iterator[Measurement]:
    """TurboRAG's Table 4: first tokens of a batch, its KV resident and brought from host memory, against a
    full prefill."""
    with Worker(Stock, case) as stock, Worker(BatchEngine, case, max(batches)) as ours:
        for batch in batches:
            yield from batch_first_tokens(case, batch, rates, runs, stock, ours)


def batch_first_tokens(
    case: Case, batch: int, rates: Rates, runs: Runs, stock: Worker, ours: Worker
) -> Iterator[Measurement]:
    """``case``: of the context's length; the workers may have been made for another."""
    context = case.context
    say(f"first tokens of {batch} requests over {context} tokens each")
    cold, resident, transferred = in_turn(
        (runs.cold, lambda: stock.call(Stock.cold_prefill_s, batch, context)),
        (runs.warm, lambda: ours.call(BatchEngine.ttft_s, batch, False, context)),
        (runs.warm, lambda: ours.call(BatchEngine.ttft_s, batch, True, context)),
    )
    flops = batch * case.shape.flops(case.question, context + case.question)
    num_bytes = case.shape.bytes_read(0) + batch * context * case.shape.kv_bytes_per_token
    limit = rates.limit_s(flops, num_bytes)
    name = f"ttft_batch_{batch}_{context}"
    yield measured(name, resident, "s", baseline=cold, limit=limit, flops=flops)
    yield measured(f"{name}_with_transfer", transferred, "s", baseline=cold, flops=flops)


def compare_branches(case: Case, branches: Sequence[int], rates: Rates, runs: Runs) -> Iterator[Measurement]:
    """A step of M branches over one context, against M steps of one branch."""
    with Worker(Ours, case) as ours:
        yield from branch_steps(case, branches, rates, runs, ours)


def branch_steps(
    case: Case, branches: Sequence[int], rates: Rates, runs: Runs, ours: Worker
) -> Iterator[Measurement]:
    one = None
    for batch in sorted({1, *branches}):
        say(f"decoding {batch} branches over {case.context} shared tokens")
        steps = [batch / ours.call(Ours.decode_rate, batch) for _ in range(runs.decode)]
        one = one or median(steps)
        limit, flops = case.step_limit_s(batch, rates), batch * case.shape.flops(1, case.prompt_len)
        name = f"step_of_{batch}_over_{case.context}"
        yield measured(name, steps, "s", baseline=batch * one, limit=limit, flops=flops)
        yield measured(f"{name}_in_steps_of_one", [step / one for step in steps], "steps")


def compare_chains(case: Case, num_documents: int, runs: Runs) -> Iterator[Measurement]:
    """Documents of ``case.context`` tokens each as chains, against their chunks alone: how much longer that
    takes, how much more there is to compute, and how the one compares with the other."""
    say(f"prefilling {num_documents} documents of {case.context} tokens as chains")
    with Worker(DocumentPrefill, case, num_documents) as ours:
        alone, chained = in_turn(
            (runs.cold, lambda: ours.call(DocumentPrefill.prefill_s, False)),
            (runs.cold, lambda: ours.call(DocumentPrefill.prefill_s, True)),
        )
    flops_alone, flops = (num_documents * flops_of(case, of_chains) for of_chains in (False, True))
    name, more = f"prefill_chains_{case.context}", flops / flops_alone
    ratios = [ours_s / alone_s for ours_s, alone_s in zip(chained, alone, strict=True)]
    yield measured(name, chained, "s", baseline=alone, flops=flops)
    yield measured(f"{name}_time_ratio", ratios, "times")
    yield measured(f"{name}_flop_ratio", [more], "times")
    yield measured(f"{name}_time_over_flops", [ratio / more for ratio in ratios], "times", limit=1.0)


def compare_disk(case: Case, runs: Runs) -> Measurement:
    """Chunks' KV in files in the page cache, against the same chunks resident; from the request's arrival."""
    # Needs what the services need; the other parts run where there is nothing but the engine's packages.
    from load_tests.kv_store.stored_ttft import Contexts, measure_stored_ttft

    say(f"first token over {case.context} tokens on disk")
    contexts = Contexts(tuple(case.chunk_lens), case.prefix, case.question, count=2)
    with tempfile.TemporaryDirectory(prefix="kvquilt-engine-") as directory:
        stored = measure_stored_ttft(Path(directory), case.shape, contexts, runs.warm, case.device)
    disk = next(m for m in stored if m.name == "ttft_disk")
    seconds = {name: getattr(disk, name) / 1000 for name in ("value", "baseline", "min", "max")}
    name = f"ttft_stitched_disk_{case.context}"
    return replace(disk, name=name, unit="s", tflop=case.stitched_flops / 1e12, **seconds)


def compare_sharing(crowd: Crowd, rates: Rates, runs: int) -> Iterator[Measurement]:
    """One resident copy for all requests, against a copy each; how many times faster it could be at the
    machine's limits, whichever of arithmetic, which is the same for both, and bytes takes longer."""
    shared = crowd.num_chunks - crowd.num_own
    say(f"{crowd.num_requests} requests that share {shared} of {crowd.num_chunks} chunks")
    with Worker(CrowdEngine, crowd, True) as together, Worker(CrowdEngine, crowd, False) as apart:
        ours, theirs = in_turn(
            (runs, lambda: together.call(CrowdEngine.run)), (runs, lambda: apart.call(CrowdEngine.run))
        )
    step_s, apart_s = crowd.step_limit_s(True, rates), crowd.step_limit_s(False, rates)
    yield measured(
        "sharing_throughput",
        [result.tokens_per_s for result in ours],
        "token/s",
        better="higher",
        baseline=[result.tokens_per_s for result in theirs],
        limit=crowd.num_requests / step_s,
    )
    yield measured("sharing_throughput_bound", [apart_s / step_s], "x", better="higher")
    yield measured(
        "sharing_bytes",
        [result.held_bytes for result in ours],
        "byte",
        baseline=[result.held_bytes for result in theirs],
        limit=crowd.bytes_of(crowd.num_copies(True)) + crowd.private_bytes(1),
    )
