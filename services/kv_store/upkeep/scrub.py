"""Scrubbing: every copy in every tier is read and verified, and what is damaged is replaced by a good copy
from elsewhere.

    other nodes ─▶ each verifies (and repairs) its own tiers ─┐
    home node   ─▶ its own tiers, and the object store        ├─▶ which referenced chunks have no good copy left: missing
                                                              ┘
A file of a newer format version is whole for all that we can tell: it is neither damaged nor touched.
Copies without a seal of the current key are counted, and sealed if that is asked for.
"""  # noqa: E501

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, starmap
from typing import Protocol

from shared.errors import CorruptData, FailedPrecondition, KvquiltError, NotFound
from shared.kv_reports import DamagedCopy, VerifyProgress
from shared.request import RequestContext
from shared.streams import merged

log = logging.getLogger(__name__)

_AT_ONCE = 4
_REPORT_S = 0.5


@dataclass(frozen=True, slots=True)
class Copy:
    """One copy of a chunk. ``tier``: memory, disk, pending or objects."""

    chunk_id: str
    tier: str
    size_bytes: int


class Copies(Protocol):
    """The copies that a node looks after: those in its tiers, and on the home node the objects too.
    ``Unavailable`` and ``StorageFull`` from any method end the scrub."""

    @property
    def tiers(self) -> Sequence[str]:
        """Names of those that a copy of a chunk may be in."""
        ...

    def all(self) -> Iterator[Copy]:
        """May block."""
        ...

    async def verify_copy(self, chunk_id: str, tier: str) -> int:
        """Bytes that were read.

        Raises:
            CorruptData: it is not what was stored.
            NotFound: it is gone by now.
            FailedPrecondition: a newer version of this program wrote it.
        """
        ...

    async def restore(self, chunk_id: str) -> bool:
        """Replaces damaged copies by good ones, from here or from elsewhere; whether there was one."""
        ...

    async def remove_copy(self, chunk_id: str, tier: str) -> bool: ...

    @property
    def unsealed(self) -> set[tuple[str, str]]:
        """(chunk id, tier) of verified copies without a seal of the current key."""
        ...

    async def seal(self, chunk_id: str) -> bool:
        """Gives the chunk's copies a seal of the current key; whether it could."""
        ...


@dataclass(slots=True)
class Scrub:
    """One run over the copies of one node."""

    node_id: str
    copies: Copies
    repair: bool
    seal: bool = False
    num_copies: int = 0
    num_bytes: int = 0
    _suspects: set[str] = field(default_factory=set)

    async def run(self, ctx: RequestContext) -> AsyncGenerator[VerifyProgress, None]:
        """Progress from time to time; missing in the last one: chunks of which damaged copies were found and
        no good one is left here."""
        reported = time.monotonic()
        news: list[DamagedCopy] = []
        copies = self.copies.all()
        while batch := await asyncio.to_thread(_take, copies):
            ctx.check_deadline("verifying the store")
            found = await asyncio.gather(*(self._look_at(copy) for copy in batch))
            news += [damaged for damaged in found if damaged is not None]
            if news or time.monotonic() - reported > _REPORT_S:
                yield VerifyProgress(self.num_copies, self.num_bytes, tuple(news))
                reported, news = time.monotonic(), []
        lost = [c for c in sorted(self._suspects) if not await self._has_good_copy(c)]
        unsealed = {chunk_id for chunk_id, _ in self.copies.unsealed}
        sealed = {c for c in sorted(unsealed) if await self._sealed(c)} if self.seal else set[str]()
        yield VerifyProgress(
            self.num_copies,
            self.num_bytes,
            missing_chunk_ids=tuple(lost),
            num_unsealed=len(unsealed - sealed),
            num_sealed=len(sealed),
        )

    async def _look_at(self, copy: Copy) -> DamagedCopy | None:
        """The damage, if there is any."""
        try:
            reason = await self._damage(copy.chunk_id, copy.tier)
        except NotFound:
            return None
        self.num_copies += 1
        self.num_bytes += copy.size_bytes
        if not reason:
            return None
        log.warning("damaged copy of chunk %s in tier %s: %s", copy.chunk_id, copy.tier, reason)
        self._suspects.add(copy.chunk_id)
        restored = self.repair and await self._repair(copy)
        return DamagedCopy(copy.chunk_id, self.node_id, copy.tier, reason, restored)

    async def _repair(self, copy: Copy) -> bool:
        """Whether the chunk is whole here now; if not, the damaged copy is gone, so that nobody takes it for
        one."""
        if await self.restored(copy.chunk_id):
            return True
        try:
            if await self._damage(copy.chunk_id, copy.tier):  # still
                await self.copies.remove_copy(copy.chunk_id, copy.tier)
        except NotFound:
            pass
        return False

    async def restored(self, chunk_id: str) -> bool:
        """Whether there was still a good copy somewhere, which has been brought where it must be."""
        try:
            return await self.copies.restore(chunk_id)
        except KvquiltError as error:
            log.warning("chunk %s was not restored: %s", chunk_id, error.detail)
            return False

    async def _sealed(self, chunk_id: str) -> bool:
        try:
            return await self.copies.seal(chunk_id)
        except KvquiltError as error:
            log.warning("chunk %s was not sealed: %s", chunk_id, error.detail)
            return False

    async def _has_good_copy(self, chunk_id: str) -> bool:
        for tier in self.copies.tiers:
            try:
                if not await self._damage(chunk_id, tier):
                    return True
            except NotFound:
                continue
        return False

    async def _damage(self, chunk_id: str, tier: str) -> str:
        """Says what is wrong with the copy; empty if nothing. ``NotFound``: it is gone."""
        try:
            await self.copies.verify_copy(chunk_id, tier)
        except CorruptData as error:
            return error.detail
        except FailedPrecondition as error:
            log.info("chunk %s in tier %s is left alone: %s", chunk_id, tier, error.detail)
        return ""


Verify = Callable[[], AsyncGenerator[VerifyProgress, None]]
Stored = Callable[[Sequence[str]], Awaitable[dict[str, Collection[str]]]]
"""Which of these chunks each node has (the home node: in its tiers or in the object store). Raises
``Unavailable``."""
_PAGE = 1000


async def scrub_cluster(
    ctx: RequestContext,
    home: Scrub,
    peers: Mapping[str, Verify],
    referenced: Callable[[], Collection[str]],
    stored: Stored,
) -> AsyncGenerator[VerifyProgress, None]:
    """The other nodes first, all at once, then the home node; the last message says what is missing in the
    whole cluster.

    Raises:
        Unavailable: a node did not answer to the end; what was found until then has been told.
    """
    told: dict[str, VerifyProgress] = {}
    for verifying in (peers, {home.node_id: partial(home.run, ctx)}):
        async with aclosing(merged(starmap(_of_node, verifying.items()), patient=True)) as updates:
            async for node_id, now in updates:
                told[node_id] = now
                yield replace(_total(told), damaged=now.damaged)
    lost = {node_id: set(last.missing_chunk_ids) for node_id, last in told.items()}
    missing = [
        c
        async for c in _missing(sorted(referenced()), lost, stored)
        if not (home.repair and await home.restored(c))
    ]
    yield replace(_total(told), missing_chunk_ids=tuple(missing))


def _total(told: Mapping[str, VerifyProgress]) -> VerifyProgress:
    return VerifyProgress(
        sum(p.num_copies for p in told.values()),
        sum(p.num_bytes for p in told.values()),
        num_unsealed=sum(p.num_unsealed for p in told.values()),
        num_sealed=sum(p.num_sealed for p in told.values()),
    )


async def _missing(
    chunk_ids: Sequence[str], lost: Mapping[str, Collection[str]], stored: Stored
) -> AsyncGenerator[str, None]:
    """Those that no node has, other than in damaged copies."""
    for begin in range(0, len(chunk_ids), _PAGE):
        page = chunk_ids[begin : begin + _PAGE]
        good = {
            c
            for node_id, found in (await stored(page)).items()
            for c in found
            if c not in lost.get(node_id, ())
        }
        for chunk_id in page:
            if chunk_id not in good:
                yield chunk_id


async def _of_node(node_id: str, verify: Verify) -> AsyncGenerator[tuple[str, VerifyProgress], None]:
    async with aclosing(verify()) as updates:
        async for now in updates:
            yield node_id, now


def _take(copies: Iterator[Copy]) -> list[Copy]:
    return list(islice(copies, _AT_ONCE))
