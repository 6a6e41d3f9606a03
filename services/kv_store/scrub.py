"""Scrubbing: every copy in every tier is read and verified, and what is damaged is replaced by a good copy from elsewhere.

    other nodes ─▶ each verifies (and repairs) its own tiers ─┐
    home node   ─▶ its own tiers, and the object store        ├─▶ which referenced chunks have no good copy left: ``missing``
                                                              ┘
A file of a newer format version is whole for all that we can tell: it is neither damaged nor touched.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from shared.errors import CorruptData, FailedPrecondition, KvquiltError, NotFound
from shared.kv_types import DamagedCopy, VerifyProgress
from shared.request import RequestContext

log = logging.getLogger(__name__)

_AT_ONCE = 4
_REPORT_S = 0.5


@dataclass(frozen=True, slots=True)
class Copy:
    """One copy of a chunk."""

    tier: str
    chunk_id: str
    size_bytes: int


class Copies(Protocol):
    """Where copies are: a node's tiers, or the object store. Blocking ones may be called from any thread; ``Unavailable`` from any
    of them ends the scrub."""

    def all(self) -> Iterator[Copy]: ...

    def of(self, chunk_id: str) -> Sequence[Copy]: ...

    def verify(self, copy: Copy) -> None:
        """
        Raises:
            CorruptData: it is not what was stored.
            NotFound: it is gone by now.
            FailedPrecondition: a newer version of this program wrote it.
        """
        ...

    def remove_damaged(self, copy: Copy) -> bool:
        """Removes it, unless a good one has taken its place by now."""
        ...

    async def restore(self, ctx: RequestContext, copy: Copy) -> bool:
        """Brings a good copy from elsewhere; whether there was one."""
        ...


@dataclass(slots=True)
class Scrub:
    """One run over some places of one node. ``lost``: chunks of which damaged copies were found and no good one is left here."""

    node_id: str
    places: Sequence[Copies]
    repair: bool
    num_copies: int = 0
    num_bytes: int = 0
    lost: set[str] = field(default_factory=set)
    _suspects: set[str] = field(default_factory=set)

    async def run(self, ctx: RequestContext) -> AsyncGenerator[VerifyProgress, None]:
        """Progress from time to time; ``missing`` of the last one is ``lost``."""
        reported = time.monotonic()
        news: list[DamagedCopy] = []
        for place in self.places:
            copies = place.all()
            while batch := await asyncio.to_thread(_take, copies):
                ctx.check_deadline("verifying the store")
                for damaged in await asyncio.gather(*(self._look_at(ctx, place, copy) for copy in batch)):
                    news += damaged
                if news or time.monotonic() - reported > _REPORT_S:
                    yield VerifyProgress(self.num_copies, self.num_bytes, tuple(news))
                    reported, news = time.monotonic(), []
        for chunk_id in self._suspects:
            if not await asyncio.to_thread(self._has_good_copy, chunk_id):
                self.lost.add(chunk_id)
        yield VerifyProgress(self.num_copies, self.num_bytes, missing=tuple(sorted(self.lost)))

    async def _look_at(self, ctx: RequestContext, place: Copies, copy: Copy) -> list[DamagedCopy]:
        """The damage, if there is any."""
        try:
            reason = await asyncio.to_thread(_damage, place, copy)
        except NotFound:
            return []
        self.num_copies += 1
        self.num_bytes += copy.size_bytes
        if not reason:
            return []
        log.warning("damaged copy of chunk %s in tier %s: %s", copy.chunk_id, copy.tier, reason)
        self._suspects.add(copy.chunk_id)
        restored = self.repair and await self._repair(ctx, place, copy)
        return [DamagedCopy(copy.chunk_id, self.node_id, copy.tier, reason, restored)]

    async def _repair(self, ctx: RequestContext, place: Copies, copy: Copy) -> bool:
        if not await asyncio.to_thread(place.remove_damaged, copy):
            return True  # a good one took its place meanwhile
        try:
            return await place.restore(ctx, copy)
        except KvquiltError as error:
            log.warning("chunk %s was not restored in tier %s: %s", copy.chunk_id, copy.tier, error.detail)
            return False

    def _has_good_copy(self, chunk_id: str) -> bool:
        for place in self.places:
            for copy in place.of(chunk_id):
                try:
                    if not _damage(place, copy):
                        return True
                except NotFound:
                    continue
        return False


PeerVerify = Callable[[], AsyncGenerator[VerifyProgress, None]]
Stored = Callable[[Sequence[str]], Awaitable[dict[str, Collection[str]]]]
"""Which of these chunks each node has (the home node: in its tiers or in the object store). Raises ``Unavailable``."""
_PAGE = 1000


async def scrub_cluster(
    ctx: RequestContext, home: Scrub, peers: dict[str, PeerVerify], referenced: Callable[[], Collection[str]], stored: Stored
) -> AsyncGenerator[VerifyProgress, None]:
    """The other nodes first, all at once, then the home node; the last message says what is ``missing`` in the whole cluster.

    Raises:
        Unavailable: a node did not answer to the end; what was found until then has been told.
    """
    lost: dict[str, Collection[str]] = {}
    copies, num_bytes = 0, 0
    async with aclosing(_merged(peers)) as updates:
        async for node_id, now, before in updates:
            copies, num_bytes = copies + now.num_copies - before.num_copies, num_bytes + now.num_bytes - before.num_bytes
            lost[node_id] = now.missing
            yield VerifyProgress(copies, num_bytes, now.damaged)
    async with aclosing(home.run(ctx)) as progress:
        async for now in progress:
            yield VerifyProgress(copies + now.num_copies, num_bytes + now.num_bytes, now.damaged)
    lost[home.node_id] = home.lost
    missing = [c async for c in _missing(sorted(referenced()), lost, stored)]
    yield VerifyProgress(copies + home.num_copies, num_bytes + home.num_bytes, missing=tuple(missing))


async def _missing(chunk_ids: Sequence[str], lost: dict[str, Collection[str]], stored: Stored) -> AsyncGenerator[str, None]:
    """Those that no node has, other than in damaged copies."""
    for begin in range(0, len(chunk_ids), _PAGE):
        page = chunk_ids[begin : begin + _PAGE]
        good = {c for node_id, found in (await stored(page)).items() for c in found if c not in lost.get(node_id, ())}
        for chunk_id in page:
            if chunk_id not in good:
                yield chunk_id


async def _merged(peers: dict[str, PeerVerify]) -> AsyncGenerator[tuple[str, VerifyProgress, VerifyProgress], None]:
    """What each node says, as it comes, with what it had said before. The first error ends them all, after the others' news."""
    updates: asyncio.Queue[tuple[str, VerifyProgress, VerifyProgress] | None] = asyncio.Queue()

    async def follow(node_id: str, verify: PeerVerify) -> None:
        before = VerifyProgress(0, 0)
        try:
            async with aclosing(verify()) as progress:
                async for now in progress:
                    updates.put_nowait((node_id, now, before))
                    before = now
        finally:
            updates.put_nowait(None)

    tasks = [asyncio.create_task(follow(node_id, verify)) for node_id, verify in peers.items()]
    try:
        for _ in tasks:
            while (update := await updates.get()) is not None:
                yield update
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _take(copies: Iterator[Copy]) -> list[Copy]:
    return list(islice(copies, _AT_ONCE))


def _damage(place: Copies, copy: Copy) -> str:
    """What is wrong with the copy; empty if nothing. ``NotFound``: it is gone."""
    try:
        place.verify(copy)
    except CorruptData as error:
        return error.detail
    except FailedPrecondition as error:
        log.info("chunk %s in tier %s is left alone: %s", copy.chunk_id, copy.tier, error.detail)
    return ""
