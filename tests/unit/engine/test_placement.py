"""Every part puts its tensors where it was told: on a stand-in for a GPU, which mixes nothing."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any, cast

import pytest
import torch

from shared.engine import Engine, EngineConfig, wrap_model
from shared.errors import Overloaded
from shared.generation.asked import PrefillRequest
from shared.generation.modes import Recompute, ReuseMode
from tests.engine_runs import Prompts, Run, Shelf, assert_alike, engine_of, run
from tests.oracles import ORACLES, tiny_model
from tests.pretend_gpu import PretendGpu, PretendStream, is_there, pretend_gpu


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[PretendGpu]:
    with warnings.catch_warnings(), pretend_gpu(monkeypatch) as mode:
        warnings.filterwarnings("ignore", message=".*CUDA is not available.*")
        yield mode


def engine_there(source: Shelf | None = None, **settings: Any) -> Engine:
    model = wrap_model(tiny_model("qwen2").to("cuda"))
    assert model.spec.device.type == "cuda"
    return Engine(model, EngineConfig(device="cuda", backend="torch", num_threads=1, **settings), source)


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


def test_nothing_reads_stored_kv_before_the_device_has_copied_it(gpu: PretendGpu) -> None:
    """Every mode, of chunks that arrive while others decode."""
    shelf = Shelf()
    first = engine_there(source=shelf)
    prompts = Prompts(first, seed=7)
    modes = [mode for mode in ReuseMode if mode.value in ORACLES and mode is not ReuseMode.TOKENS]
    requests = [prompts.request(7, (20, 33 + i), (9, 4), mode, max_tokens=4) for i, mode in enumerate(modes)]
    truth = [run(first, request)[0].branches() for request in requests]
    first.shut_down()
    for key, (k_LHTD, v_LHTD) in shelf.kv.items():
        shelf.kv[key] = [k.cpu() for k in k_LHTD], [v.cpu() for v in v_LHTD]
    for pipelined in (True, False):
        second = engine_there(source=shelf, pipelined=pipelined)
        for one, alone in zip(run(second, *requests), truth, strict=True):
            for path, branch in alone.items():
                assert_alike(one.branches()[path], branch)
        second.shut_down()
        assert second._loader._copies is not None
        assert cast(PretendStream, second._loader._copies._stream).num_done > 0


def room_for(gpu: PretendGpu, engine: Engine, num_tokens: int) -> None:
    """From now on no layer's keys or values of more tokens than these find a place there."""
    spec = engine.model.spec
    gpu.room["cuda"] = num_tokens * spec.num_kv_heads * spec.head_dim


def assert_only_this_had_no_room(large: Run, *others: Run) -> None:
    assert isinstance(large.error, Overloaded)
    assert "out of memory" in large.error.detail
    for other in others:
        (alone,) = run(engine_of("qwen2", backend="torch"), other.request)
        assert other.branch().token_ids == alone.branch().token_ids


@pytest.mark.parametrize("what", ["prefix", "chunk", "stored chunk", "question"])
def test_what_finds_no_room_there_fails_the_request_that_needs_it_and_no_other(
    gpu: PretendGpu, what: str
) -> None:
    shelf = Shelf()
    prompts = Prompts(engine_there(), seed=3)
    small = [prompts.request(5, (20,), (9,), max_tokens=3) for _ in range(2)]
    large = prompts.request(
        100 if what == "prefix" else 5,
        (100 if "chunk" in what else 20,),
        (100 if what == "question" else 9,),
        max_tokens=3,
    )
    if what == "stored chunk":
        first = engine_of("qwen2", backend="torch", source=shelf)
        run(first, large)
        first.shut_down()  # which stores what is still being stored
        assert shelf.kv
    engine = engine_there(source=shelf)
    room_for(gpu, engine, 60)
    runs = run(engine, small[0], large, small[1])
    assert_only_this_had_no_room(runs[1], runs[0], runs[2])
    assert engine.stats().private_bytes == 0
    gpu.room["cuda"] = 1e9
    (later,) = run(engine, large)
    (alone,) = run(engine_of("qwen2", backend="torch"), large)
    assert later.branch().token_ids == alone.branch().token_ids
    engine.shut_down()


def test_a_chunk_to_prefill_that_finds_no_room_there_fails_its_request_alone(gpu: PretendGpu) -> None:
    engine = engine_there()
    room_for(gpu, engine, 60)
    prompts = Prompts(engine, seed=4)
    small, long = prompts.request(5, (20,), (9,), max_tokens=3), prompts.request(5, (30, 100, 40), (9,))
    runs = run(engine, PrefillRequest("prefill", long.prefix_ids, long.chunks), small)
    assert_only_this_had_no_room(*runs)
    engine.shut_down()


def test_a_paused_request_that_finds_no_room_there_any_more_fails_alone(gpu: PretendGpu) -> None:
    # room for two questions, not for their answers
    engine = engine_there(private_bytes=20 * wrap_model(tiny_model("qwen2")).spec.kv_bytes_per_token)
    prompts = Prompts(engine, seed=5)
    requests = [prompts.request(5, (20,), (9,), max_tokens=8) for _ in range(2)]
    paused = []

    def on_event(*_: object) -> None:
        paused.append(engine.stats().paused)
        if paused[-1]:
            room_for(gpu, engine, 8)

    first, second = run(engine, *requests, on_event=on_event)
    assert max(paused) == 1
    assert_only_this_had_no_room(second, first)
    engine.shut_down()


def test_unused_segments_make_room_for_the_first_token_of_another_prefix(gpu: PretendGpu) -> None:
    engine = engine_there()
    prompts = Prompts(engine, seed=6)
    run(engine, prompts.request(5, (20,), (9,), max_tokens=2))
    assert engine.stats().resident_chunk_ids
    pool, there = engine._cache._pool, gpu.room

    class Room(dict[str, float]):
        """As long as anything is kept there, nothing large finds room."""

        def __getitem__(self, device: str) -> float:
            spec = engine.model.spec
            return 60 * spec.num_kv_heads * spec.head_dim if pool.num_bytes else 1e9

    gpu.room = Room(there)
    (one,) = run(engine, prompts.request(100, (), (9,), max_tokens=2))
    assert one.done.usage.generated_tokens == 2
    assert not engine.stats().resident_chunk_ids
    engine.shut_down()
