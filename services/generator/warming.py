"""Loads into a new replica's memory what other replicas are asked for most, before it is asked itself.

    new replica ──"which are your hottest chunks?"──▶ another replica of the deployment
         └── loads them from the KV store, hottest first, into free memory, while no request waits

Nothing depends on it: chunks that cannot be had are left out, and a request never waits for what is warmed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from shared.engine.kv.hot_chunks import HotChunk
from shared.engine.stats import EngineStats
from shared.threads import call_on

_AT_A_TIME = 8
_BATCH_S = 30.0
"""So long it waits for a batch; a load that takes longer goes on beside the next."""
_MOST_ASKED = 8
"""A handle may lead to this very replica."""


@dataclass(frozen=True, slots=True)
class HottestChunks:
    """What one replica says. ``fingerprint``: of its model."""

    replica_id: str
    fingerprint: str
    chunks: tuple[HotChunk, ...]


class WarmsChunks(Protocol):
    """The part of ``shared.engine.Engine`` that is used here."""

    def warm(self, chunks: Sequence[HotChunk], told: Callable[[bool], None]) -> None: ...
    def stats(self) -> EngineStats: ...


async def of_another(
    ask: Callable[[], Awaitable[HottestChunks | None]],
    replica_id: str,
    fingerprint: str,
    pause_s: float = 0.5,
) -> Sequence[HotChunk]:
    """What another replica than ``replica_id`` says, if it has the same model. Empty: there seems to be
    none. ``ask`` calls any replica, perhaps this one."""
    for _ in range(_MOST_ASKED):
        told = await ask()
        if told is not None and told.replica_id != replica_id:
            return told.chunks if told.fingerprint == fingerprint else ()
        await asyncio.sleep(pause_s)
    return ()


async def warm(engine: WarmsChunks, chunks: Sequence[HotChunk], pause_s: float = 0.1) -> int:
    """Loads them in this order, while no request waits, and returns how many are resident."""
    num_resident = 0
    for start in range(0, len(chunks), _AT_A_TIME):
        while engine.stats().waiting:
            await asyncio.sleep(pause_s)
        num_resident += await _load(engine, chunks[start : start + _AT_A_TIME])
    return num_resident


async def _load(engine: WarmsChunks, chunks: Sequence[HotChunk]) -> int:
    loop, told = asyncio.get_running_loop(), asyncio.Queue[bool]()
    engine.warm(chunks, lambda resident: call_on(loop, told.put_nowait, resident))
    num_resident = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_BATCH_S):
            for _ in chunks:
                num_resident += await told.get()
    return num_resident
