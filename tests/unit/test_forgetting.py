"""Resident KV goes when its chunk was deleted."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from shared.errors import Unavailable
from shared.kv_types import ChunkStat
from shared.request import RequestContext
from shared.stored_segments.forgetting import Forgetting


class Here:
    """An engine and a store in one."""

    def __init__(self, resident: str, stored: str) -> None:
        self.resident, self.stored, self.down = list(resident), set(stored), False

    def resident_chunk_ids(self) -> Sequence[str]:
        return tuple(self.resident)

    def forget(self, chunk_ids: Sequence[str]) -> None:
        self.resident = [c for c in self.resident if c not in chunk_ids]

    async def stat(self, ctx: RequestContext, chunk_ids: Sequence[str]) -> list[ChunkStat]:
        if self.down:
            raise Unavailable("down")
        return [ChunkStat(c, c in self.stored) for c in chunk_ids]


async def test_what_was_stored_and_is_no_more_is_forgotten() -> None:
    here = Here("abc", "ab")
    forgetting = Forgetting(here, here)
    await forgetting.once()
    assert here.resident == ["a", "b", "c"], "c was never stored: it may be on its way"
    here.stored.discard("a")
    await forgetting.once()
    assert here.resident == ["b", "c"]


async def test_a_store_that_does_not_answer_makes_nothing_forgotten() -> None:
    here = Here("a", "a")
    forgetting, pauses = Forgetting(here, here), 0

    class Enough(Exception):
        pass

    async def sleep(seconds: float) -> None:
        nonlocal pauses
        pauses += 1
        here.down = pauses == 2
        if pauses == 3:
            here.stored.clear()
        if pauses == 4:
            raise Enough

    with pytest.raises(Enough):
        await forgetting.forever(60.0, sleep)
    assert (here.resident, pauses) == ([], 4)


async def test_a_period_of_0_asks_nobody() -> None:
    here = Here("a", "")
    here.down = True
    await Forgetting(here, here).forever(0.0)
