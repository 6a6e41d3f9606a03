"""What a GPU runs by default, recorded passes and Triton's kernels, waits for the device once per pass: on a
stand-in for one, with the kernels in the interpreter, which sees the tensors as they are."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from triton.runtime.interpreter import GridExecutor

from shared.engine import Engine, EngineConfig, wrap_model
from shared.engine.model.passes import PassRunner
from shared.generation.asked import Beams
from tests.engine_runs import Prompts
from tests.interpreter.test_pass_graphs import Recorder
from tests.oracles import tiny_model
from tests.pretend_gpu import PretendGpu, pretend_gpu
from tests.step_waits import SAMPLED, waits_of_steps


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[PretendGpu]:
    run = GridExecutor.__call__

    def run_as_they_are(self: GridExecutor, *args: Any, **kwargs: Any) -> None:
        with torch._C.DisableTorchFunction():
            run(self, *args, **kwargs)

    monkeypatch.setattr(GridExecutor, "__call__", run_as_they_are)
    with warnings.catch_warnings(), pretend_gpu(monkeypatch) as mode:
        warnings.filterwarnings("ignore", message=".*CUDA is not available.*")
        yield mode


def test_a_pass_waits_once_for_all_that_is_drawn(gpu: PretendGpu) -> None:
    """And once more for each form that it records, to compare the two."""
    model = wrap_model(tiny_model("qwen2").to("cuda"))
    config = EngineConfig(device="cuda", backend="triton", cuda_graphs=False, num_threads=1)
    engine, recorder = Engine(model, config), Recorder()
    engine._steps.passes = PassRunner(model, config, recorder)
    prompts = Prompts(engine, seed=1)
    requests = [
        prompts.request(7, (12,), (4,), max_tokens=5, n=2, seed=2, watch_ids=(5, 9), **SAMPLED),
        replace(prompts.request(7, (12,), (6,), max_tokens=3), beams=Beams(2)),
    ]
    found = waits_of_steps(gpu, engine, requests)
    assert recorder.num_again > 0
    names = [one.name for _, waits in found for one in waits]
    assert names.count("__float__") == recorder.num_recorded
    assert set(names) == {"cpu", "__float__"}
    assert names.count("cpu") >= 5
    for num_passes, waits in found:
        assert [one.name for one in waits].count("cpu") <= num_passes
