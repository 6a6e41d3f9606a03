"""A step waits for the device only where its passes tell what was drawn: once each, if anything was."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from shared.engine import Engine, EngineConfig, wrap_model
from shared.generation.modes import GoesBy, Recompute, ReuseMode
from tests.engine_runs import Prompts
from tests.lora_adapters import random_adapter
from tests.oracles import ORACLES, tiny_model
from tests.pretend_gpu import PretendGpu, pretend_gpu
from tests.step_waits import requests_of, waits_of_steps


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[PretendGpu]:
    with warnings.catch_warnings(), pretend_gpu(monkeypatch) as mode:
        warnings.filterwarnings("ignore", message=".*CUDA is not available.*")
        yield mode


def engine_there(**settings: Any) -> Engine:
    adapters = settings.pop("adapters", ())
    model = wrap_model(tiny_model("qwen2").to("cuda"))
    config = EngineConfig(device="cuda", backend="torch", num_threads=1, **settings)
    return Engine(model, config, adapters=adapters)


@pytest.mark.parametrize("settings", [{}, {"max_step_tokens": 16}, {"speculation": 4}], ids=str)
def test_a_pass_waits_once_for_all_that_is_drawn(gpu: PretendGpu, settings: dict[str, Any]) -> None:
    engine = engine_there(**settings)
    found = waits_of_steps(gpu, engine, requests_of(engine))
    assert sum(bool(waits) for _, waits in found) > 4
    for num_passes, waits in found:
        assert [one.name for one in waits] == ["cpu"] * len(waits), waits
        assert len(waits) <= num_passes


@pytest.mark.parametrize("mode", [mode for mode in ReuseMode if mode.value in ORACLES], ids=lambda m: m.value)
def test_of_the_modes_only_those_that_choose_by_what_they_see_wait_for_that(
    gpu: PretendGpu, mode: ReuseMode
) -> None:
    engine = engine_there()
    recompute = Recompute(tokens=(1, 5, 30)) if mode is ReuseMode.TOKENS else Recompute()
    if mode.row.goes_by is GoesBy.RATIO:
        recompute = Recompute(ratio=0.4)
    request = Prompts(engine, seed=2).request(7, (20, 33), (9, 5), mode, recompute=recompute, max_tokens=4)
    names = [one.name for _, waits in waits_of_steps(gpu, engine, [request]) for one in waits]
    choose = {ReuseMode.CACHEBLEND: engine.model.spec.num_layers, ReuseMode.QUERY_ATTENTION: 2}
    assert names.count("tolist") <= choose.get(mode, 0)
    assert set(names) <= {"cpu", "tolist"}
    assert 4 <= names.count("cpu") <= 8


def test_rows_with_adapters_wait_for_nothing_else(gpu: PretendGpu) -> None:
    stock = tiny_model("qwen2")
    engine = engine_there(adapters=[random_adapter(stock, "one"), random_adapter(stock, "two", seed=1)])
    prompts = Prompts(engine, seed=3)
    requests = [
        replace(prompts.request(7, (20,), (9,), max_tokens=4), adapter=adapter)
        for adapter in ("one", "two", "")
    ]
    for num_passes, waits in waits_of_steps(gpu, engine, requests):
        assert [one.name for one in waits] == ["cpu"] * len(waits)
        assert len(waits) <= num_passes


def test_the_stand_in_knows_what_waits(gpu: PretendGpu) -> None:
    there, here = torch.arange(6.0).to("cuda"), torch.arange(6.0)
    places = torch.tensor([1, 2]).pin_memory().to("cuda", non_blocking=True)
    calls = {
        "item": lambda: there[0].item(),
        "cpu": lambda: there.cpu(),
        "tolist": lambda: there.tolist(),
        "__bool__": lambda: bool(there[0] > 1),
        "nonzero": lambda: there.nonzero(),
        "__getitem__": lambda: there[there > 2],
        "tensor": lambda: torch.tensor([1, 2], device="cuda"),
        "to": lambda: here.to("cuda", non_blocking=True),  # not pinned
        "copy_": lambda: there.copy_(here),
    }
    for name, call in calls.items():
        gpu.crossings.clear()
        call()
        assert [(one.name, one.waits) for one in gpu.crossings] == [(name, True)]
    gpu.crossings.clear()
    there[places]
    there[1:3]
    torch.zeros(3, device="cuda")
    assert not gpu.crossings
    here.pin_memory().to("cuda", non_blocking=True)
    assert [one.waits for one in gpu.crossings] == [False]
