"""The measurements of one run: stock ``transformers`` and the engine asked in turn, beside what this machine
could do at most."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from load_tests.engine.batches import BatchEngine
from load_tests.engine.case import Case
from load_tests.engine.ours import Ours
from load_tests.engine.sharing import Crowd, CrowdEngine, CrowdResult
from load_tests.engine.stock import Stock
from load_tests.engine.workers import Worker
from load_tests.kv_store.stored_ttft import Contexts, measure_stored_ttft
from shared.measuring.rates import Rates
from shared.measuring.report import Measurement, measured

BATCHES = (1, 8)
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Runs:
    """How often. A cold prefill takes long and varies little."""

    cold: int = 3
    warm: int = 9
    decode: int = 3


def compare(case: Case, rates: Rates, runs: Runs, say: Progress) -> Iterator[Measurement]:
    """Times to first token and decoding rates over one context. Peak memory comes last."""
    with Worker(Stock, case) as stock, Worker(Ours, case) as ours:
        yield from _first_tokens(case, rates, runs, stock, ours, say)
        for batch in BATCHES:
            yield _decoding(case, rates, runs, batch, stock, ours, say)
        yield measured(
            f"peak_bytes_{case.context}",
            [ours.peak_bytes()],
            "byte",
            better="lower",
            baseline=stock.peak_bytes(),
        )
        yield measured(f"kv_bytes_{case.context}", [ours.call("kv_bytes")], "byte", better="lower")
        yield measured(
            f"packed_weight_bytes_{case.context}", [ours.call("packed_bytes")], "byte", better="lower"
        )


def _first_tokens(
    case: Case, rates: Rates, runs: Runs, stock: Worker, ours: Worker, say: Progress
) -> Iterator[Measurement]:
    say(f"first token over {case.context} tokens")
    cold, hit, stitched = [], [], []
    for run in range(runs.warm):  # in turn, so that whatever else the machine does meets both alike
        if run < runs.cold:
            cold.append(stock.call("cold_prefill_s"))
        hit.append(stock.call("exact_hit_s"))
        stitched.append(ours.call("stitched_s"))
    limit = case.shape.ttft_limit_s(case.question, case.prompt_len, rates)
    ceiling = ours.call("stitched_ceiling")
    name = f"ttft_stitched_{case.context}"
    yield measured(
        name,
        stitched,
        "s",
        better="lower",
        baseline=statistics.median(cold),
        limit=limit,
        ceiling=ceiling.seconds,
        flops=case.stitched_flops,
    )
    yield measured(
        f"{name}_over_exact_hit",
        stitched,
        "s",
        better="lower",
        baseline=statistics.median(hit),
        limit=limit,
        flops=case.stitched_flops,
    )
    yield measured(f"ttft_cold_{case.context}", cold, "s", better="lower", flops=case.cold_flops)


def _decoding(
    case: Case, rates: Rates, runs: Runs, batch: int, stock: Worker, ours: Worker, say: Progress
) -> Measurement:
    say(f"decoding {batch} over {case.context} tokens")
    baseline, values = [], []
    for _ in range(runs.decode):
        baseline.append(stock.call("decode_rate", batch))
        values.append(ours.call("decode_rate", batch))
    private = case.question + case.decode / 2
    num_bytes = (
        case.shape.bytes_read(case.prefix + case.context) + batch * private * case.shape.kv_bytes_per_token
    )
    limit = batch / max(
        num_bytes / rates.bytes_per_s, batch * case.shape.flops(1, case.prompt_len) / rates.flops
    )
    name = f"decode_{batch}_{case.context}" if batch == 1 else f"decode_{batch}_shared_{case.context}"
    return measured(
        name, values, "token/s", better="higher", baseline=statistics.median(baseline), limit=limit
    )


def compare_invariant(case: Case, runs: Runs, say: Progress) -> Iterator[Measurement]:
    """What it costs that no request's bits depend on its company: ``batch_invariant``, against the engine
    without it."""
    say(f"batch_invariant over {case.context} tokens")
    with Worker(Ours, case) as free, Worker(Ours, case, True) as fixed:
        ttft: dict[Worker, list[float]] = {free: [], fixed: []}
        rate: dict[Worker, list[float]] = {free: [], fixed: []}
        for _ in range(runs.decode):
            for engine in (free, fixed):
                ttft[engine].append(engine.call("stitched_s"))
                rate[engine].append(engine.call("decode_rate", 8))
    name = "batch_invariant"
    yield measured(
        f"{name}_ttft_{case.context}",
        ttft[fixed],
        "s",
        better="lower",
        baseline=statistics.median(ttft[free]),
    )
    yield measured(
        f"{name}_decode_8_{case.context}",
        rate[fixed],
        "token/s",
        better="higher",
        baseline=statistics.median(rate[free]),
    )


def compare_batches(
    case: Case, batches: Sequence[int], rates: Rates, runs: Runs, say: Progress
) -> Iterator[Measurement]:
    """TurboRAG's Table 4: first tokens of a batch, its KV resident and brought from host memory, against a
    full prefill."""
    with Worker(Stock, case) as stock, Worker(BatchEngine, case, max(batches)) as ours:
        for batch in batches:
            say(f"first tokens of {batch} requests over {case.context} tokens each")
            cold, resident, transferred = [], [], []
            for run in range(runs.warm):
                if run < runs.cold:
                    cold.append(stock.call("cold_prefill_s", batch))
                resident.append(ours.call("ttft_s", batch, False))
                transferred.append(ours.call("ttft_s", batch, True))
            flops = batch * case.shape.flops(case.question, case.context + case.question)
            num_bytes = case.shape.bytes_read(0) + batch * case.context * case.shape.kv_bytes_per_token
            limit, baseline = max(flops / rates.flops, num_bytes / rates.bytes_per_s), statistics.median(cold)
            name = f"ttft_batch_{batch}_{case.context}"
            yield measured(name, resident, "s", better="lower", baseline=baseline, limit=limit, flops=flops)
            yield measured(
                f"{name}_with_transfer", transferred, "s", better="lower", baseline=baseline, flops=flops
            )


def compare_branches(
    case: Case, branches: Sequence[int], rates: Rates, runs: Runs, say: Progress
) -> Iterator[Measurement]:
    """A step of M branches over one context, against M steps of one branch."""
    with Worker(Ours, case) as ours:
        one = None
        for batch in sorted({1, *branches}):
            say(f"decoding {batch} branches over {case.context} shared tokens")
            steps = [batch / ours.call("decode_rate", batch) for _ in range(runs.decode)]
            one = one or statistics.median(steps)
            private = batch * (case.question + case.decode / 2) * case.shape.kv_bytes_per_token
            flops = batch * case.shape.flops(1, case.prompt_len)
            limit = max(
                (case.shape.bytes_read(case.prefix + case.context) + private) / rates.bytes_per_s,
                flops / rates.flops,
            )
            name = f"step_of_{batch}_over_{case.context}"
            yield measured(name, steps, "s", better="lower", baseline=batch * one, limit=limit, flops=flops)
            yield measured(f"{name}_in_steps_of_one", [step / one for step in steps], "steps", better="lower")


def compare_disk(case: Case, runs: Runs, say: Progress) -> Measurement:
    """Chunks' KV in files in the page cache, against the same chunks resident; from the request's arrival."""
    say(f"first token over {case.context} tokens on disk")
    contexts = Contexts(tuple(case.chunk_lens), case.prefix, case.question, count=2)
    with tempfile.TemporaryDirectory(prefix="kvquilt-engine-") as directory:
        stored = measure_stored_ttft(Path(directory), case.shape, contexts, runs.warm, case.device)
        found = {m.name: m for m in stored}
    disk = found["ttft_disk"]
    to_s = 1e-3
    return Measurement(
        f"ttft_stitched_disk_{case.context}",
        disk.value * to_s,
        "s",
        (disk.baseline or 0) * to_s,
        disk.ratio,
        tflop=case.stitched_flops / 1e12,
        min=(disk.min or 0) * to_s,
        max=(disk.max or 0) * to_s,
        n=disk.n,
    )


def compare_sharing(crowd: Crowd, rates: Rates, runs: int, say: Progress) -> Iterator[Measurement]:
    """One resident copy for all requests, against a copy each."""
    results: dict[bool, list[CrowdResult]] = {True: [], False: []}
    say(f"{crowd.num_requests} requests that share {crowd.num_shared} of {crowd.num_chunks} chunks")
    with Worker(CrowdEngine, crowd, True) as together, Worker(CrowdEngine, crowd, False) as apart:
        for _ in range(runs):
            results[True].append(together.call("run"))
            results[False].append(apart.call("run"))
    private = crowd.num_requests * (crowd.question + crowd.decode / 2) * crowd.shape.kv_bytes_per_token
    num_bytes = crowd.shape.bytes_read(0) + crowd.bytes_of(crowd.num_unique) + private
    context = crowd.num_chunks * crowd.chunk_len
    limit = crowd.num_requests / max(
        num_bytes / rates.bytes_per_s, crowd.num_requests * crowd.shape.flops(1, context) / rates.flops
    )
    alone = statistics.median(r.tokens_per_s for r in results[False])
    yield measured(
        "sharing_throughput",
        [r.tokens_per_s for r in results[True]],
        "token/s",
        better="higher",
        baseline=alone,
        limit=limit,
    )
    held = [float(r.resident_bytes + r.private_bytes) for r in results[True]]
    needed = (
        crowd.bytes_of(crowd.num_unique)
        + crowd.num_requests * (crowd.question + 1) * crowd.shape.kv_bytes_per_token
    )
    baseline = statistics.median(r.resident_bytes + r.private_bytes for r in results[False])
    yield measured("sharing_bytes", held, "byte", better="lower", baseline=baseline, limit=needed)
