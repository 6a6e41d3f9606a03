"""The report of what the engine reaches on a GPU, at sizes that take seconds, on a CPU."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace

import pytest

from load_tests.engine import __main__ as command
from load_tests.engine.compare import Runs
from load_tests.engine.gpu_report import Aim, GpuReport, ReportPlan, TimedWorker, aims_of
from load_tests.engine.ours import Ours
from shared.measuring.case import Case
from shared.measuring.rates import Rates
from shared.measuring.report import measured
from shared.measuring.shapes import Shape
from shared.measuring.workers import WorkerFailed

TINY = Shape(hidden=32, layers=2, heads=4, kv_heads=2, head_dim=8, mlp=64, vocab=100)
CASE = Case(TINY, context=32, question=4, decode=2, chunk_len=16, prefix=4, threads=1)
PLAN = ReportPlan(
    CASE,
    replace(CASE, context=16),
    Rates(flops=1e15, bytes_per_s=1e12),
    Runs(cold=1, warm=1, decode=1),
    branches=(16,),
    batches=(1, 2),
    short=((8,), (2,)),
)


def test_it_measures_every_part_and_keeps_what_is_known_after_each() -> None:
    known: list[int] = []
    report = GpuReport(PLAN, lambda so_far: known.append(len(so_far.measurements)))
    found = list(report.run())
    assert report.failed == {}
    assert report.measurements == found
    assert len(known) == 6
    assert known == sorted(set(known))
    names = {m.name for m in found}
    assert {aim.measurement for aim in aims_of(CASE)} <= names
    assert {"ttft_batch_2_8", "ttft_batch_2_32_cold", "small_model_step_of_16_over_16"} <= names
    assert all(aim["measured"] is not None for aim in report.details()["aims"])


def test_a_part_that_fails_is_told_and_the_others_still_run() -> None:
    """Nothing of the large model can be built."""
    broken = replace(PLAN, case=replace(CASE, shape=replace(TINY, heads=3)), batches=(1,), short=((), ()))
    report = GpuReport(broken)
    names = [m.name for m in report.run()]
    assert set(report.failed) == {"first_token", "decode", "recompute", "batches"}
    assert all(reason for reason in report.failed.values())
    assert names
    assert all(name.startswith("small_model") for name in names)


def test_nothing_is_begun_when_the_time_is_up() -> None:
    report = GpuReport(replace(PLAN, budget_s=0.0))
    assert list(report.run()) == []
    assert set(report.failed.values()) == {"the time was up before it began"}


def test_what_takes_too_long_is_ended_and_told() -> None:
    with pytest.raises(WorkerFailed, match="the time was up before it answered"):
        TimedWorker(time.monotonic(), Ours, CASE)


@pytest.mark.parametrize(("most", "reached"), [(False, True), (True, False)])
def test_an_aim_says_what_was_measured_and_whether_it_is_reached(most: bool, reached: bool) -> None:
    aim = Aim("a", lambda m: m.ratio, 3, most)
    assert aim.told([measured("a", [1.0], "s", baseline=4.0)])["reached"] is reached
    assert aim.told([measured("a", [1.0], "s", baseline=4.0)])["measured"] == 4
    assert aim.told([])["reached"] is False


def test_without_a_gpu_the_command_names_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--device", "cuda", "--report", "gpu"]) == 2
    assert "--device: there is no CUDA device here" in capsys.readouterr().err
    assert command.main(["--report", "gpu"]) == 2
    assert "--report: gpu is of one; give --device cuda" in capsys.readouterr().err


def test_the_command_needs_no_package_of_the_services() -> None:
    """A machine with a GPU may have torch, transformers and Triton, and nothing else."""
    absent = ["cryptography", "fastapi", "grpc", "minio", "openai", "pyarrow", "pymilvus", "ray", "xxhash"]
    program = (
        f"import sys; sys.modules.update(dict.fromkeys({absent}))\n"
        "from load_tests.engine.__main__ import main\n"
        "sys.exit(main(['--device', 'cuda', '--report', 'gpu']))"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert told.returncode == 2, told.stderr
    assert "--device" in told.stderr
