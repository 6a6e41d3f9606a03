"""Tells the agent of the node what of the engine's KV is resident, and how busy it is; routers ask there.

What is resident stands in the engine's snapshots: once a period they are compared with what was told before.
The engine knows nothing of it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping

from services.generator.listening import PERIOD_S
from shared.engine.stats import EngineStats
from shared.errors import Unavailable
from shared.routing.costs import MOST_MS, ReplicaLoad, Tier
from shared.routing.journal import ComparedNames, HeldJournal
from shared.routing.links import LINKS, busy_ms
from shared.routing.reports import MOST_HELD, LaneName, plain, plain_load

log = logging.getLogger(__name__)

Notice = dict[str, object]


class ResidencyTeller:
    """``stats``: the engine's; ``bytes_per_token``: of its KV. ``work_ms``: for how long a request keeps
    others waiting, lately, asked where the engine does not measure what a token takes. ``send``: brings a
    notice to the agent and returns whether it follows what was told there before; raises ``Unavailable``.
    ``epoch``: see ``HeldJournal``."""

    def __init__(
        self,
        replica_id: str,
        epoch: int,
        stats: Callable[[], EngineStats],
        bytes_per_token: int,
        work_ms: Callable[[], float],
        send: Callable[[Notice], Awaitable[bool]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._journal = HeldJournal(LaneName(replica_id, Tier.RESIDENT), epoch)
        self._stats, self._bytes_per_token, self._send = stats, bytes_per_token, send
        self._work_ms, self._clock = work_ms, clock
        self._names = ComparedNames(self._journal)
        self._whole = True  # what was told last may not have arrived

    async def tell(self) -> None:
        """
        Raises:
            Unavailable: the agent does not answer; the next time it is told all.
        """
        stats = self._stats()
        self._names.hold(stats.resident_chunk_ids[-MOST_HELD:])  # where there are more, those used last
        report = self._journal.tell()
        if self._whole:
            report = self._journal.snapshot()
        self._whole = True
        beside = self._beside(stats)
        if not await self._send({"report": plain(report), **beside}):
            await self._send({"report": plain(self._journal.snapshot()), **beside})
        self._whole = False

    async def forever(self, period_s: float = PERIOD_S) -> None:
        """An agent that is away is told again when it is back."""
        silent = False
        while True:
            try:
                await self.tell()
                silent = False
            except Unavailable as error:
                if not silent:
                    log.warning("routers do not hear what is resident here: %s", error.detail)
                silent = True
            await asyncio.sleep(period_s)

    def _beside(self, stats: EngineStats) -> Mapping[str, object]:
        """Says how busy it and its links are and, as far as it has seen any, how fast; ``age_ms``: how long
        ago that was so. A step that prefills may be long; of an engine that rests all is as it was."""
        byte_ms = {tier: seconds * 1e3 for tier, seconds in stats.read_s.items() if tier in LINKS}
        loading = dict(_loading(stats.loading_bytes, byte_ms))
        wait_ms = stats.waiting * self._work_ms() if stats.ahead_ms is None else stats.ahead_ms
        load = ReplicaLoad(min(wait_ms, MOST_MS), busy_ms(loading.items()), stats.running)
        rates: dict[str, object] = {}
        if stats.compute_s is not None:
            rates["prefill_ms"] = stats.compute_s * 1e3
        if stats.find_s is not None:
            rates["find_ms"] = stats.find_s * 1e3
        if byte_ms:
            rates["link_ms"] = {tier: ms * self._bytes_per_token for tier, ms in byte_ms.items()}
        age_ms = max(0.0, self._clock() - stats.at_s) * 1e3 if stats.tokens_ahead else 0.0
        return {"load": plain_load(load), "loading": loading, "rates": rates, "age_ms": age_ms}


def _loading(num_bytes: Mapping[str, int], byte_ms: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """By tier, how long it takes to bring what is on its way. What is not found yet is, with luck, where
    reading is quickest; of a tier that was never read from, it takes as long as from the slowest one."""
    if not byte_ms:
        return
    quickest, slowest_ms = min(byte_ms, key=byte_ms.__getitem__), max(byte_ms.values())
    left_ms: defaultdict[str, float] = defaultdict(float)
    for tier, count in num_bytes.items():
        of = tier if tier in LINKS else quickest
        left_ms[of] += count * byte_ms.get(of, slowest_ms)
    for tier, tier_ms in left_ms.items():
        yield tier, min(tier_ms, MOST_MS)
