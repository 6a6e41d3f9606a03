"""Replicas of the generator come when answers begin late, and go when nobody asks, down to none, without
cutting what is on its way."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator, Sequence
from pathlib import Path

import pytest

from cluster.local import launcher
from cluster.local.state import RunDirectory
from shared.clients.doors import forest_client, generation_client
from shared.generation.asked import SamplingParams
from shared.generation.forest import Edit, Grow, Start
from shared.generation.orders import ForestOrder, GenerationOrder
from shared.generation.told import DoneEvent, GrownEvent
from shared.request import RequestContext
from tests.e2e import stack as stacks
from tests.e2e.stack import Stack

pytestmark = pytest.mark.e2e
CHUNK = "Market day in Tambach is Monday."
NUM_FORESTS = 8
"""So many that both replicas have some."""


@pytest.fixture(scope="module")
def scaled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack in which no answer begins early enough: up to two generators, which soon go again."""
    settings: dict[str, object] = {
        "selector": {"model": ""},
        "internal_calls": True,
        "generator": {
            "scaling": {"latency_ms": 0.1},
            "deployment": {
                "num_replicas": 0,
                "max_replicas": 2,
                "upscale_delay_s": 0,
                "downscale_delay_s": 1,
            },
        },
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S", "1")
        running = stacks.start(tmp_path_factory.mktemp("scaled") / "data", **settings)
    try:
        yield running
    finally:
        launcher.stop(running.data_dir)


class Forest:
    """A live forest: it grows when it is told to, and ends when it is closed."""

    def __init__(self, target: str) -> None:
        self._edits: asyncio.Queue[Edit | None] = asyncio.Queue()
        self._grown = asyncio.Queue[GrownEvent]()
        self._living = asyncio.create_task(self._live(target))

    async def grow(self, edit: Edit) -> GrownEvent:
        self._edits.put_nowait(edit)
        growing = asyncio.create_task(self._grown.get())
        await asyncio.wait([growing, self._living], return_when=asyncio.FIRST_COMPLETED)
        if self._living.done():
            growing.cancel()
            raise AssertionError(f"the forest ended: {await self._living}")
        return await growing

    async def close(self) -> object:
        """Its last event."""
        self._edits.put_nowait(None)
        return await self._living

    async def _live(self, target: str) -> object:
        last: object = None
        async with forest_client(target) as client:
            stream = client.explore(RequestContext.create(), ForestOrder((CHUNK,)), self._commands())
            async with contextlib.aclosing(stream):
                async for last in stream:
                    if isinstance(last, GrownEvent):
                        self._grown.put_nowait(last)
        return last

    async def _commands(self) -> AsyncGenerator[Edit, None]:
        yield Start(0, "Which day is market day?")
        while (edit := await self._edits.get()) is not None:
            yield edit


def generators(stack: Stack) -> int:
    return len(stack.processes.of("generator"))


def log_of_decisions(stack: Stack) -> str:
    logs = Path(stack.state.ray_dir).rglob("serve/controller_*.log")
    return "".join(path.read_text(encoding="utf-8") for path in logs)


async def until(probe: object, what: str) -> None:
    await asyncio.to_thread(stacks.wait_for, probe, what, 90.0)  # type: ignore[arg-type]


GROW = Grow(0, SamplingParams(2, ignore_eos=True))


async def test_replicas_come_and_go_and_cut_nothing(scaled: Stack) -> None:
    asking = asyncio.create_task(keep_asking(scaled))
    try:
        await until(lambda: "to 2 replicas" in log_of_decisions(scaled) or None, "decision for two replicas")
        await until(lambda: generators(scaled) == 2 or None, "second generator")
        warmed = "1 of another replica's 1 hottest chunks are resident"
        log = RunDirectory(scaled.data_dir).log_path
        await until(lambda: warmed in log.read_text(encoding="utf-8") or None, "warm second generator")
    finally:
        asking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asking

    forests = [Forest(scaled.target) for _ in range(NUM_FORESTS)]
    first: Sequence[GrownEvent] = [await forest.grow(GROW) for forest in forests]
    await until(lambda: "to 1 replicas" in log_of_decisions(scaled) or None, "decision for one replica")
    assert generators(scaled) == 2, "whoever has forests waits for them"
    for forest, before in zip(forests, first, strict=True):
        assert await forest.grow(GROW) != before
    for forest in forests:
        assert isinstance(await forest.close(), DoneEvent)
    await until(lambda: generators(scaled) == 0 or None, "end of all generators")
    await ask(scaled)


async def keep_asking(stack: Stack) -> None:
    while True:
        await ask(stack)


async def ask(stack: Stack) -> None:
    order = GenerationOrder((CHUNK,), ("Which day is market day?",), sampling=SamplingParams(2))
    async with (
        generation_client(stack.target) as client,
        contextlib.aclosing(client.generate(RequestContext.create(), order)) as events,
    ):
        assert isinstance([event async for event in events][-1], DoneEvent)
