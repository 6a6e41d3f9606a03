"""The engine's benchmark, at sizes that take seconds."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cluster.paths import PROJECT_ROOT
from load_tests.benchmark import line
from load_tests.engine import __main__ as command
from load_tests.engine.batches import BatchEngine
from load_tests.engine.ceilings import ceiling_of
from load_tests.engine.chains import HEADER_LEN, flops_of
from load_tests.engine.compare import (
    Runs,
    compare,
    compare_adapter,
    compare_ape,
    compare_batches,
    compare_branches,
    compare_chains,
    compare_invariant,
    compare_late,
    compare_sampled,
    compare_sharing,
    compare_speculation,
    compare_weights,
)
from load_tests.engine.late_loads import LateLoads, WhichFirst
from load_tests.engine.quoting import Quoted, Quoting
from load_tests.engine.sharing import Crowd
from load_tests.plot import write_plot
from shared.engine.model.linear_kernels import best_level
from shared.engine.model.rowwise import RowwiseGate, RowwiseLinear, rowwise_works
from shared.errors import InvalidRequest, KvquiltError
from shared.measuring.case import Case
from shared.measuring.rates import Rates
from shared.measuring.report import Measurement
from shared.measuring.shapes import Shape
from shared.measuring.workers import Worker, WorkerFailed, peak_bytes

TINY = Shape(hidden=32, layers=2, heads=4, kv_heads=2, head_dim=8, mlp=64, vocab=100)
SMALL = Case(TINY, context=32, question=4, decode=2, chunk_len=16, prefix=4, threads=1)
RATES = Rates(flops=1e15, bytes_per_s=1e12)


class Counter:
    def __init__(self, start: int) -> None:
        if start < 0:
            raise ValueError("start: must not be negative")
        self._value = start

    def add(self, number: int) -> int:
        self._value += number
        return self._value

    def refuse(self) -> None:
        raise InvalidRequest("number: is none")

    def die(self) -> None:
        os._exit(7)


def test_a_worker_keeps_its_state_and_counts_its_memory() -> None:
    with Worker(Counter, 1) as worker:
        assert [worker.call(Counter.add, 2), worker.call(Counter.add, 3)] == [3, 6]
        assert worker.call(peak_bytes) > 1 << 20


def test_what_fails_in_a_worker_is_told() -> None:
    with pytest.raises(WorkerFailed, match="must not be negative"):
        Worker(Counter, -1)
    with Worker(Counter, 1) as worker, pytest.raises(InvalidRequest, match=r"^number: is none$"):
        worker.call(Counter.refuse)
    with Worker(Counter, 1) as worker, pytest.raises(KvquiltError, match="ended with 7; it may"):
        worker.call(Counter.die)


_BUSY_WORKER = """
import multiprocessing, time
from shared.measuring.workers import Worker
with Worker(int, 600) as worker:
    print(multiprocessing.active_children()[0].pid, flush=True)
    worker.call(time.sleep)
"""


def test_a_worker_ends_with_the_process_that_started_it() -> None:
    command = [sys.executable, "-c", _BUSY_WORKER]
    with subprocess.Popen(command, cwd=PROJECT_ROOT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        worker = os.pidfd_open(int(parent.stdout.readline()))
        parent.terminate()
    try:
        ended, _, _ = select.select([worker], [], [], 60)
        assert ended, "it sleeps on"
    finally:
        os.close(worker)


def test_kernels_are_recorded_with_their_shapes_and_timed_alone() -> None:
    a, b = torch.randn(8, 16), torch.randn(16, 4)
    ceiling = ceiling_of(lambda: [a @ b, a @ b, b.T @ a.T, a + 1])
    assert (ceiling.num_kernels, ceiling.num_shapes) == (3, 2)
    assert ceiling.seconds > 0


@pytest.mark.skipif(not rowwise_works(), reason="no kernels for this processor")
@torch.inference_mode()
def test_products_of_native_kernels_are_among_them() -> None:
    equal, other = [RowwiseLinear(linear(8, 40)) for _ in range(2)], RowwiseLinear(linear(8, 24))
    gate = RowwiseGate(linear(8, 40), linear(8, 40))
    x = torch.randn(3, 8).bfloat16()
    ceiling = ceiling_of(lambda: [product(x) for product in (*equal, other, gate)])
    assert (ceiling.num_kernels, ceiling.num_shapes) == (4, 3)
    assert ceiling.seconds > 0


def linear(num_in: int, num_out: int) -> torch.nn.Linear:
    return torch.nn.Linear(num_in, num_out).bfloat16()


@pytest.mark.parametrize(
    ("sizes", "setting"),
    [({"context": 0}, "--context"), ({"chunk_len": 0}, "--chunk"), ({"question": 0}, "--question")],
)
def test_sizes_that_make_no_sense_are_refused_by_name(sizes: dict[str, int], setting: str) -> None:
    with pytest.raises(ValueError, match=setting):
        Case(TINY, **sizes)


def test_contexts_are_given_as_a_list_or_one_by_one_of_any_length() -> None:
    given = command._parser().parse_args(["--context", "4096,1000", "--context", "70", "--chunk", "30"])
    assert (given.context, given.chunk) == ([4096, 1000, 70], 30)
    case = Case(TINY, 70, chunk_len=30)
    assert [len(chunk) for chunk in case.chunks()] == case.chunk_lens == [30, 30, 10]
    assert len(case.prompt_ids()) == case.prompt_len == 16 + 70 + 128


def test_a_context_of_a_chunk_and_a_half_is_measured() -> None:
    case = replace(SMALL, context=24)
    measurements = {m.name: m for m in compare(case, RATES, Runs(cold=1, warm=1, decode=1))}
    assert measurements["kv_bytes_24"].value == (4 + 24) * TINY.kv_bytes_per_token
    cold, stitched = measurements["ttft_cold_24"], measurements["ttft_stitched_24"]
    assert (cold.tflop, stitched.tflop) == (case.cold_flops / 1e12, case.stitched_flops / 1e12)
    assert cold.tflop > stitched.tflop > 0
    assert f"{stitched.tflop:.4g} TFLOP" in line(stitched)


def test_both_are_measured_in_one_run() -> None:
    measurements = list(compare(SMALL, RATES, Runs(cold=1, warm=2, decode=1)))
    assert [m.name for m in measurements] == [
        "ttft_stitched_32",
        "ttft_stitched_32_over_exact_hit",
        "ttft_cold_32",
        "decode_1_32",
        "decode_8_shared_32",
        "peak_bytes_32",
        "kv_bytes_32",
        "packed_weight_bytes_32",
        "decode_32_shared_32",
    ]
    stitched = measurements[0]
    assert stitched.baseline is not None
    assert stitched.ratio == pytest.approx(stitched.baseline / stitched.value)
    assert 0 < (stitched.fraction_of_limit or 0) < 1
    assert (stitched.fraction_of_ceiling or 0) > 0
    assert measurements[-3].value == (4 + 32) * TINY.kv_bytes_per_token  # prefix and chunks, once each


def test_the_cost_of_batch_invariance_is_measured() -> None:
    ttft, rate = compare_invariant(SMALL, Runs(warm=1, decode=2))
    assert (ttft.name, rate.name) == ("batch_invariant_ttft_32", "batch_invariant_decode_8_32")
    assert ttft.ratio == pytest.approx((ttft.baseline or 0) / ttft.value)
    assert rate.n == 2


@pytest.mark.skipif(not best_level(), reason="no kernels of int8 weights on this processor")
def test_int8_weights_are_compared_with_exact_ones() -> None:
    measurements = {m.name: m for m in compare_weights(SMALL, RATES, Runs(cold=1, warm=1, decode=1))}
    assert list(measurements) == [
        "ttft_stitched_int8_32",
        "decode_1_int8_32",
        "decode_8_shared_int8_32",
        "decode_32_shared_int8_32",
        "packed_weight_bytes_int8_32",
    ]
    assert all(m.ratio for name, m in measurements.items() if "bytes" not in name)
    assert measurements["packed_weight_bytes_int8_32"].value > 0
    exact, int8 = (SMALL.step_limit_s(1, RATES, weight_bytes) for weight_bytes in (2, 1))
    assert int8 < exact


def test_prefilling_chains_is_compared_with_what_they_compute_more() -> None:
    case = replace(SMALL, context=40)
    found = {m.name: m for m in compare_chains(case, 2, Runs(cold=2))}
    chained, alone = (flops_of(case, of_chains) for of_chains in (True, False))
    times, flops, quotient = (
        found[f"prefill_chains_40_{name}"] for name in ("time_ratio", "flop_ratio", "time_over_flops")
    )
    assert flops.value == pytest.approx(chained / alone)
    assert quotient.value == pytest.approx(times.value / flops.value)
    assert found["prefill_chains_40"].tflop == pytest.approx(2 * chained / 1e12)


def test_the_arithmetic_of_a_prefill_counts_every_key_that_a_row_sees() -> None:
    case = replace(SMALL, context=40)
    weights = 2 * TINY.layers * TINY.layer_weights
    per_key = 4 * TINY.layers * TINY.heads * TINY.head_dim
    of_document = range(case.prefix, case.prefix + HEADER_LEN + 40)
    assert flops_of(case, True) == sum(weights + per_key * (at + 1) for at in of_document)
    alone = [at for length in case.chunk_lens for at in range(case.prefix, case.prefix + length)]
    assert flops_of(case, False) == sum(weights + per_key * (at + 1) for at in alone)


def test_sampling_is_compared_with_greedy_decoding() -> None:
    sampled = compare_sampled(SMALL, Runs(decode=2))
    assert (sampled.name, sampled.unit, sampled.n) == ("decode_8_sampled", "token/s", 2)
    assert sampled.ratio == pytest.approx(sampled.value / (sampled.baseline or 1))


def test_ape_is_compared_with_the_mode_that_places_chunks_alike() -> None:
    ttft, rate = compare_ape(SMALL, Runs(warm=2, decode=2))
    assert [(m.name, m.unit, m.n) for m in (ttft, rate)] == [
        ("ttft_ape", "s", 2),
        ("decode_8_ape", "token/s", 2),
    ]
    assert ttft.ratio == pytest.approx((ttft.baseline or 0) / ttft.value)
    assert rate.ratio == pytest.approx(rate.value / (rate.baseline or 1))


def test_requests_with_an_adapter_are_compared_with_the_same_ones_without() -> None:
    found = list(compare_adapter(SMALL, Runs(warm=2, decode=2)))
    assert [(m.name, m.n) for m in found] == [
        ("ttft_adapter_32", 2),
        ("decode_1_adapter_32", 2),
        ("decode_8_adapter_32", 2),
    ]
    assert found[0].ratio == pytest.approx((found[0].baseline or 0) / found[0].value)


def test_kv_that_comes_late_is_measured_against_the_better_of_loading_and_computing() -> None:
    found = list(compare_late(SMALL, [0.05], Runs(cold=1)))
    assert [m.name for m in found] == ["ttft_late_0.05", "load_or_compute_overhead"]
    (late, worst) = found
    assert worst.value == pytest.approx(late.value / (late.baseline or 0))


def test_what_comes_late_is_computed_where_the_engine_may_choose() -> None:
    asked = LateLoads(SMALL)
    before = asked.counts.num_tokens
    for _ in range(3):
        asked.ttft_s(WhichFirst.LOAD, 0.5)
        assert asked.counts.num_tokens == before
    for _ in range(3):
        asked.ttft_s(WhichFirst.EITHER, 0.5)
    assert asked.counts.num_tokens >= before + SMALL.context


def test_drafts_are_measured_where_they_are_right_and_where_they_are_not() -> None:
    shape = replace(TINY, hidden=128, vocab=1500)
    case = replace(SMALL, shape=shape, context=120, decode=10)
    found = list(compare_speculation(case, Runs(decode=1)))
    assert [m.name for m in found] == ["speculation_1", "speculation_1_nothing", "speculation_1_misled"]
    assert all(m.ratio == pytest.approx(m.value / (m.baseline or 1)) for m in found)


@pytest.mark.parametrize("context", Quoted)
def test_answers_quote_what_they_are_meant_to(context: Quoted) -> None:
    """And what is drafted is right, nothing, or wrong."""
    shape = replace(TINY, hidden=128, vocab=1500)
    asked = Quoting(replace(SMALL, shape=shape, context=120, decode=40), 8)
    assert asked.decode_rate(context) > 0
    counts = asked.drafts
    accepted, wrong = counts.accepted_tokens, counts.drafted_tokens - counts.accepted_tokens
    match context:
        case Quoted.MOSTLY:
            assert accepted >= 15
        case Quoted.NOTHING:
            assert (accepted, wrong) == (0, 0)
        case Quoted.MISLED:
            assert accepted < wrong
            assert wrong > 0


def test_steps_of_many_branches_are_compared_with_steps_of_one() -> None:
    one, in_ones, two, in_twos = compare_branches(SMALL, [2], RATES, Runs(decode=1))
    assert [m.name for m in (one, two)] == ["step_of_1_over_32", "step_of_2_over_32"]
    assert (one.ratio, in_ones.value) == (1, 1)
    assert two.baseline == 2 * one.value
    assert in_twos.value == pytest.approx(two.value / one.value)


def test_batches_are_measured_with_their_kv_there_and_to_be_brought() -> None:
    resident, transferred = compare_batches(SMALL, [2], RATES, Runs(cold=1, warm=2))
    assert (resident.name, transferred.name) == ("ttft_batch_2_32", "ttft_batch_2_32_with_transfer")
    assert resident.baseline == transferred.baseline
    engine = BatchEngine(SMALL, 2)
    for transfer, loaded in ((False, 0), (True, 2 * 32), (True, 2 * 32)):
        before = engine.loaded_tokens
        engine.ttft_s(2, transfer)
        assert engine.loaded_tokens - before == loaded


def test_requests_that_share_chunks_hold_each_chunk_once() -> None:
    # decodes long enough that none has ended when all have begun
    case = Case(TINY, context=4 * 8, question=4, decode=400, chunk_len=8, prefix=0, threads=1)
    crowd = Crowd(case, num_requests=3, num_own=1)
    throughput, bound, held = compare_sharing(crowd, RATES, 1)
    assert (throughput.name, held.name) == ("sharing_throughput", "sharing_bytes")
    private = held.value - crowd.bytes_of(3 + 3)
    assert held.baseline == crowd.bytes_of(3 * 4) + private
    assert bound.value == crowd.step_limit_s(False, RATES) / crowd.step_limit_s(True, RATES)


def test_sharing_can_win_nothing_where_arithmetic_takes_longer_than_bytes() -> None:
    crowd = Crowd(Case(TINY, context=4 * 8, question=4, chunk_len=8, prefix=0, threads=1), 3, 1)
    slow, fast = (Rates(1.0, 1e30), Rates(1e30, 1.0))
    assert crowd.step_limit_s(False, slow) == crowd.step_limit_s(True, slow) > 0
    more = crowd.step_limit_s(False, fast) - crowd.step_limit_s(True, fast)
    assert more == pytest.approx(crowd.bytes_of(3 * 4 - (3 + 3)))


def test_the_command_says_what_it_cannot_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--context", "0"]) == 2
    assert "--context: must be at least 1" in capsys.readouterr().err
    assert command.main(["--device", "cuda", "--parts", "weights"]) == 2
    assert "--parts: weights measures int8 weights, which are for CPUs" in capsys.readouterr().err
    if not torch.cuda.is_available():
        assert command.main(["--device", "cuda"]) == 2
        assert "--device" in capsys.readouterr().err


def test_the_report_and_the_picture_hold_what_was_measured(tmp_path: Path) -> None:
    measurements = [
        Measurement("fast<er", 1.0, "s", 4.0, 4.0, min=0.9, max=1.1, n=3),
        Measurement("slower", 2.0, "s", 1.0, 0.5, min=2.0, max=2.0, n=1),
        Measurement("alone", 3.0, "s", min=3.0, max=3.0, n=1),
    ]
    write_plot(tmp_path / "p.svg", measurements, "title")
    picture = (tmp_path / "p.svg").read_text(encoding="utf-8")
    assert picture.count("<rect") == 2
    assert "fast&lt;er" in picture
    assert json.dumps(line(measurements[0]))
