"""Every part puts its tensors where it was told: on a stand-in for a GPU, which mixes nothing."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch

from shared.engine import Engine, EngineConfig, wrap_model
from shared.generation.modes import Recompute, ReuseMode
from tests.engine_runs import Prompts, Shelf, engine_of, run
from tests.oracles import ORACLES, tiny_model
from tests.pretend_gpu import PretendGpu, is_there, pretend_gpu


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[PretendGpu]:
    with warnings.catch_warnings(), pretend_gpu(monkeypatch) as mode:
        warnings.filterwarnings("ignore", message=".*CUDA is not available.*")
        yield mode


def engine_there(**settings: object) -> Engine:
    model = wrap_model(tiny_model("qwen2").to("cuda"))
    assert model.spec.device.type == "cuda"
    return Engine(model, EngineConfig(device="cuda", backend="torch", num_threads=1), **settings)  # type: ignore[arg-type]


def test_the_stand_in_refuses_what_a_gpu_refuses(gpu: PretendGpu) -> None:
    there, here = torch.ones(3, device="cuda"), torch.ones(3)
    assert there.device.type == "cuda"
    assert is_there(there[1:])
    assert not is_there(there.cpu())
    for mistake in (lambda: there + here, lambda: torch.cat([there, here])):
        with pytest.raises(RuntimeError, match="same device"):
            mistake()
    with pytest.raises(TypeError, match="numpy"):
        there.numpy()


@pytest.mark.parametrize("mode", [mode for mode in ReuseMode if mode.value in ORACLES], ids=lambda m: m.value)
def test_every_mode_computes_there_what_it_computes_here(gpu: PretendGpu, mode: ReuseMode) -> None:
    engine = engine_there()
    recompute = Recompute(tokens=(1, 5, 30)) if mode is ReuseMode.TOKENS else Recompute()
    request = Prompts(engine, seed=1).request(
        7, (20, 1, 33), (9, 5), mode, recompute=recompute, temperature=0.7, n=2, max_tokens=3, top_p=0.9
    )
    (one,) = run(engine, request)
    assert all(
        is_there(x)
        for entry in engine._cache._pool._entries.values()
        if entry.segment
        for x in (*entry.segment.k_LKTD, *entry.segment.v_LKTD)
    )
    (here,) = run(engine_of("qwen2", backend="torch"), request)
    assert one.branches().keys() == here.branches().keys()
    for path, branch in one.branches().items():
        assert branch.token_ids == here.branch(*path).token_ids


def test_stored_kv_is_read_to_where_the_model_is(gpu: PretendGpu) -> None:
    shelf = Shelf()
    first, second = engine_there(source=shelf), engine_there(source=shelf)
    request = Prompts(first, seed=2).request(7, (20, 33), (9,), max_tokens=3)
    (computed,) = run(first, request)
    first.shut_down()
    (loaded,) = run(second, request)
    second.shut_down()
    assert loaded.done.usage.loaded_tokens == 53
    assert loaded.branch().token_ids == computed.branch().token_ids
