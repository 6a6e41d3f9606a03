"""Whom a new replica asks for the hottest chunks, and how it loads them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import pytest

from services.generator.warming import HottestChunks, of_another, warm
from shared.engine.kv.hot_chunks import HotChunk
from shared.engine.stats import EngineStats

CHUNKS = tuple(HotChunk(f"chunk-{i}", (i,), "tenant") for i in range(20))


def replicas(*told: HottestChunks | None) -> Callable[[], Awaitable[HottestChunks | None]]:
    """A handle that leads to these, one after the other, to the last one for ever."""
    answers = list(told)

    async def ask() -> HottestChunks | None:
        return answers.pop(0) if len(answers) > 1 else answers[0]

    return ask


OTHER, OWN = HottestChunks("other", "model", CHUNKS), HottestChunks("own", "model", ())


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ((OTHER,), CHUNKS),
        ((OWN, OWN, OTHER), CHUNKS),
        ((OWN,), ()),
        ((None,), ()),
        ((HottestChunks("other", "another model", CHUNKS),), ()),
    ],
    ids=["another", "itself first", "nobody else", "one that serves nothing", "another model"],
)
async def test_the_chunks_are_those_of_another_replica_with_the_same_model(
    told: Sequence[HottestChunks | None], expected: Sequence[HotChunk]
) -> None:
    assert await of_another(replicas(*told), "own", "model", pause_s=0) == expected


class Engine:
    """Has room for ``room`` chunks, and requests that wait for the first ``busy`` looks."""

    def __init__(self, room: int, busy: int = 0) -> None:
        self.room, self.busy = room, busy
        self.warmed: list[HotChunk] = []

    def warm(self, chunks: Sequence[HotChunk], told: Callable[[bool], None]) -> None:
        assert self.busy == 0, "requests come first"
        for chunk in chunks:
            fits = len(self.warmed) < self.room
            if fits:
                self.warmed.append(chunk)
            told(fits)

    def stats(self) -> EngineStats:
        self.busy = max(0, self.busy - 1)
        return EngineStats(waiting=self.busy)


@pytest.mark.parametrize("room", [20, 11, 0])
async def test_chunks_are_loaded_in_their_order_as_far_as_there_is_room(room: int) -> None:
    engine = Engine(room)
    assert await warm(engine, CHUNKS) == room
    assert tuple(engine.warmed) == CHUNKS[:room]


async def test_nothing_is_loaded_while_requests_wait() -> None:
    engine = Engine(20, busy=4)
    assert await warm(engine, CHUNKS, pause_s=0) == 20
