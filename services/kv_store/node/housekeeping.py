"""Runs the periodic work of an agent, beside its requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from services.kv_store.config import GarbageConfig
from services.kv_store.fetching.nodes import Nodes
from services.kv_store.node.agent import Agent
from services.kv_store.node.uploader import Sleep
from shared.audit import Actor
from shared.audited import Recorder, on_record
from shared.errors import KvquiltError
from shared.request import RequestContext

log = logging.getLogger(__name__)

_LONG_MS = 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class Housekeeping:
    agent: Agent
    nodes: Nodes
    node_id: str
    garbage: GarbageConfig
    pins_s: float
    sleep: Sleep = asyncio.sleep
    recorder: Recorder | None = None

    async def follow_pins(self) -> None:
        """For ever: what is pinned or pinned no more, the node knows soon."""
        await every(self.pins_s, "following pins", self.agent.follow_pins, self.sleep)

    async def collect_garbage(self) -> None:
        """For ever, on the home node; not at all where the period is 0."""
        while self.garbage.period_s:
            await self.sleep(self.garbage.period_s)
            if self.nodes.home() == self.node_id:
                await _try("collecting garbage", self._collect_garbage())

    async def _collect_garbage(self) -> None:
        ctx = RequestContext.create(deadline_ms=_LONG_MS)
        found = await self.agent.collect_garbage(ctx, self.garbage.grace_s)
        if self.recorder is not None and found.num_chunks:
            actor = Actor("service/kv_store", "", ctx.request_id)
            gone = self.recorder.did("gc", actor, num_chunks=found.num_chunks, num_bytes=found.num_bytes)
            await on_record(gone)


async def every(
    period_s: float,
    doing: str,
    work: Callable[[RequestContext], Awaitable[object]],
    sleep: Sleep = asyncio.sleep,
    level: int = logging.INFO,
) -> None:
    """For ever; what fails because something does not answer is logged at ``level``."""
    while True:
        await _try(doing, work(RequestContext.create()), level)
        await sleep(period_s)


async def _try(doing: str, work: Awaitable[object], level: int = logging.INFO) -> None:
    try:
        await work
    except KvquiltError as error:
        log.log(level, "%s failed, and is tried again: %s", doing, error.detail)
    except Exception:
        log.exception("%s failed", doing)
