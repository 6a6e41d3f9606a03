"""Answers routers: what this node holds, in its own tiers and in the engines of its replicas."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from services.kv_store.tiers.files import FileCopy
from shared.routing.costs import Tier
from shared.routing.journal import ComparedNames, HeldJournal
from shared.routing.links import with_shared_links
from shared.routing.noticeboard import Known, NoticeBoard
from shared.routing.reports import MOST_HELD, LaneName, plain

LOOK_AGAIN_MS = 400.0
"""Below the pause between two questions of a router."""


class HoldsCopies(Protocol):
    """The part of ``LocalTier`` that is used here."""

    name: str

    def copies(self, start_after: str = "", limit: int = 0, primary_only: bool = False) -> list[FileCopy]: ...


class NodeNotices:
    """Tiers are looked at while routers ask, and not oftener than every ``LOOK_AGAIN_MS``; of one that holds
    more than a report tells, the first ones by their ids. ``clock``: in milliseconds. ``epoch``: see
    ``HeldJournal``. A tier that is None is not there.
    Blocks for a moment."""

    def __init__(
        self,
        node_id: str,
        epoch: int,
        tiers: Iterable[HoldsCopies | None],
        lease_ms: float,
        clock: Callable[[], float],
    ) -> None:
        self._board, self._clock, self._looked_ms = NoticeBoard(lease_ms), clock, -math.inf
        self._tiers = [
            (tier, HeldJournal(LaneName(node_id, Tier(tier.name)), epoch))
            for tier in tiers
            if tier is not None
        ]
        self._names = [ComparedNames(journal) for _, journal in self._tiers]

    def told(self, notice: Mapping[str, object]) -> bool:
        """By a replica on this node; see ``NoticeBoard``."""
        return self._board.told(notice, self._clock())

    def since(self, known: Known) -> list[dict[str, object]]:
        """For one router; see ``NoticeBoard``. Links are busy for all replicas here together."""
        now_ms = self._clock()
        if now_ms - self._looked_ms >= LOOK_AGAIN_MS:
            self._looked_ms = now_ms
            self._look(now_ms)
        return with_shared_links(self._board.since(known, now_ms))

    def _look(self, now_ms: float) -> None:
        for (tier, journal), names in zip(self._tiers, self._names, strict=True):
            names.hold([copy.chunk_id for copy in tier.copies(limit=MOST_HELD)])
            if not self._board.told({"report": plain(journal.tell())}, now_ms):
                self._board.told({"report": plain(journal.snapshot())}, now_ms)
