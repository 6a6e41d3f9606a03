"""Where a model and its KV live: devices that are not there, and memory that runs out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import pytest
import torch

from shared.engine import Engine, EngineConfig, load_model, wrap_model
from shared.engine.kv.memory import pool_bytes
from shared.engine.model.model import LoadedModel
from shared.engine_config import GIB
from shared.errors import ConfigError, Overloaded
from shared.generation.told import DoneEvent, Event, FailedEvent, TokenEvent
from tests.engine_runs import Prompts, engine_of, run
from tests.oracles import tiny_model
from tests.out_of_memory import CPU_IS_FULL, Scarce


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_a_device_that_is_not_there_is_an_error_that_names_the_setting_and_the_remedy() -> None:
    with pytest.raises(ConfigError, match=r"engine\.device: 'cuda' cannot be used \(.*\), or set engine"):
        load_model("nowhere", device="cuda")


@dataclass
class Memory:
    """A device with so many bytes left."""

    free: int = 0
    trims: int = 0

    def free_bytes(self) -> int:
        return self.free

    def trim(self) -> None:
        self.trims += 1


def no_room() -> Exception:
    return torch.OutOfMemoryError("no room")


def scarce_engine(
    too_much: Callable[[int], bool],
    memory: Memory | None = None,
    error: Callable[[], Exception] = no_room,
) -> Engine:
    model = wrap_model(tiny_model("qwen2"))
    return Engine(
        cast(LoadedModel, Scarce(model, too_much, error)),
        EngineConfig(num_threads=1),
        memory=memory or Memory(1 << 30),
    )


@pytest.mark.parametrize(
    ("device", "set_to", "expected"),
    [
        ("cpu", 77, 77),
        ("cuda", 77, 77),
        ("cpu", None, 3 * GIB),
        ("cuda", None, int(0.8 * 6 * GIB) - 2 * GIB),
    ],
)
def test_the_pools_size_follows_from_free_memory_unless_it_is_set(
    device: str, set_to: int | None, expected: int
) -> None:
    config = EngineConfig(device=device, resident_bytes=set_to)
    assert pool_bytes(config, torch.device(device), Memory(6 * GIB)) == expected


def test_on_a_large_host_the_pool_takes_no_more_than_4_gib_of_itself() -> None:
    assert pool_bytes(EngineConfig(), torch.device("cpu"), Memory(100 * GIB)) == 4 * GIB


@pytest.mark.parametrize(
    "error", [no_room, lambda: RuntimeError(CPU_IS_FULL), MemoryError], ids=["GPU", "CPU", "Python"]
)
def test_out_of_memory_fails_only_the_request_that_asked(error: Callable[[], Exception]) -> None:
    memory = Memory(1 << 30)
    engine = scarce_engine(lambda rows: rows > 60, memory, error)
    prompts = Prompts(engine, seed=1)
    small = [prompts.request(chunks=(20,), questions=(9,), max_tokens=4) for _ in range(2)]
    large = prompts.request(chunks=(20,), questions=(100,), max_tokens=4)
    told: dict[str, list[Event]] = {}
    for request in (small[0], large, small[1]):
        told[request.request_id] = []
        engine.submit(request, told[request.request_id].append)
    ends = (DoneEvent, FailedEvent)
    while not all(events and isinstance(events[-1], ends) for events in told.values()):
        engine.step()
        engine.check_invariants()
    assert memory.trims >= 1
    failed = told[large.request_id][-1]
    assert isinstance(failed, FailedEvent)
    assert isinstance(failed.error, Overloaded)
    assert "out of memory" in failed.error.detail
    sound = engine_of("qwen2")
    for request in small:
        assert isinstance(told[request.request_id][-1], DoneEvent)
        (alone,) = run(sound, request)
        tokens = [event for event in told[request.request_id] if isinstance(event, TokenEvent)]
        assert [event.token_id for event in tokens] == list(alone.branch().token_ids)


def test_unused_segments_are_given_up_before_a_request_fails() -> None:
    memory = Memory(1 << 30)
    engine = scarce_engine(lambda rows: rows > 60 and not memory.trims, memory)
    prompts = Prompts(engine, seed=2)
    run(engine, prompts.request(prefix=5, chunks=(20, 30), questions=(9,), max_tokens=2))
    assert len(engine.stats().resident_chunk_ids) == 2
    (large,) = run(engine, prompts.request(prefix=5, chunks=(), questions=(100,), max_tokens=2))
    assert large.done.usage.generated_tokens == 2
    assert memory.trims == 1
    assert not engine.stats().resident_chunk_ids


def test_after_it_the_engine_serves_as_before() -> None:
    scarce = {"on": True}
    engine = scarce_engine(lambda rows: scarce["on"])
    prompts = Prompts(engine, seed=3)
    request = prompts.request(questions=(9, 4), n=2, temperature=0.7)
    with pytest.raises(Overloaded, match="out of memory"):
        list(engine.generate(request))
    assert engine.stats().private_bytes == 0
    scarce["on"] = False
    (later,) = run(engine, replace(request, request_id="later"))
    (alone,) = run(engine_of("qwen2"), request)
    assert later.branches() == alone.branches()
