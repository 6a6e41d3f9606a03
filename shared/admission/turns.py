"""Shares places among tenants: of those that wait, whoever has the fewest for its weight is next, then who
waits longest. Of one tenant's the most urgent goes first (``shared.admission.priority``).

    come ──► a place is free ──────────────────────────────────────────► served
      └────► wait, one queue for each tenant ──► next of its tenant ──┘
                 └── refused: there is no room, or no time: as places become free now, its turn would come,
                     and the work be done, only after its deadline

With a full queue, whoever comes takes the place of the last of the tenant that has the most waiting; of its
own tenant's only if it is more urgent. Nothing is refused for time before anything is known of how long the
work takes.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from math import inf

from shared.admission.priority import first_of, in_order, last_of, went_first
from shared.errors import Overloaded

_SOON_S = 1.0
_NEWEST_SHARE = 0.1
"""Of a mean that follows what it is of."""


@dataclass(eq=False, slots=True)
class _InLine:
    given: asyncio.Future[None]
    deadline_s: float
    priority: int
    overtaken: int = 0


class Turns:
    """``num``: places; ``most_waiting``: for one, of all tenants. For one event loop. ``clock``: monotonic
    seconds, as deadlines are."""

    def __init__(
        self, num: int, most_waiting: float = inf, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._num, self._most_waiting, self._clock = num, most_waiting, clock
        self._held: Counter[str] = Counter()
        self._weights: dict[str, float] = {}
        self._waiting: dict[str, deque[_InLine]] = {}  # whoever waits longest first
        self._num_waiting = 0
        self._work_s = 0.0  # how long a place is held
        self._between_s = 0.0  # from one place that becomes free to the next, while somebody waits
        self._freed_at_s: float | None = None

    @asynccontextmanager
    async def turn(
        self, tenant: str, deadline_s: float = inf, weight: float = 1.0, priority: int = 0
    ) -> AsyncGenerator[None, None]:
        """A place while the context is open.

        Raises:
            Overloaded: too many wait, or its turn would come too late; says when to come again.
        """
        self._weights[tenant] = weight
        try:
            await self._take(tenant, deadline_s, priority)
        finally:
            self._forget(tenant)
        began_s = self._clock()
        try:
            yield
        finally:
            self._work_s = _following(self._work_s, self._clock() - began_s)
            self._free(tenant)

    def check_invariants(self) -> None:
        assert sum(self._held.values()) <= self._num
        assert all(self._held.values()), "who holds nothing is forgotten"
        assert all(self._waiting.values()), "who does not wait is forgotten"
        assert self._weights.keys() == self._held.keys() | self._waiting.keys()
        assert self._num_waiting == sum(map(len, self._waiting.values())) <= self._most_waiting
        assert not self._waiting or sum(self._held.values()) == self._num, "a place is free"

    async def _take(self, tenant: str, deadline_s: float, priority: int) -> None:
        if self._held.total() < self._num:
            self._held[tenant] += 1
            return
        self._make_room(tenant, priority)
        waiting = _InLine(asyncio.get_running_loop().create_future(), deadline_s, priority)
        self._waiting.setdefault(tenant, deque()).append(waiting)
        self._num_waiting += 1
        self._refuse_late(self._clock())
        try:
            await waiting.given
        except asyncio.CancelledError:
            if waiting.given.cancelled():
                self._leave(tenant, waiting)
            elif waiting.given.exception() is None:
                self._free(tenant)
            raise

    @property
    def _rhythm_s(self) -> float:
        return self._between_s or self._work_s / self._num

    def _make_room(self, tenant: str, priority: int) -> None:
        if self._num_waiting < self._most_waiting:
            return
        full = Overloaded(
            f"{self._num_waiting} requests wait already; retry in {_SOON_S:.1f} s", retry_after_s=_SOON_S
        )
        if not self._waiting:
            raise full
        longest = max(self._waiting, key=lambda name: len(self._waiting[name]) / self._weights[name])
        last = last_of(self._waiting[longest])
        if longest == tenant:
            if priority >= last.priority:
                raise full
        else:
            own = (len(self._waiting.get(tenant, ())) + 1) / self._weights[tenant]
            if own >= len(self._waiting[longest]) / self._weights[longest]:
                raise full
        self._refuse(longest, last, full)

    def _free(self, tenant: str) -> None:
        self._held[tenant] -= 1
        if not self._held[tenant]:
            del self._held[tenant]
        now_s = self._clock()
        if self._waiting:
            if self._freed_at_s is not None:
                self._between_s = _following(self._between_s, now_s - self._freed_at_s)
            self._freed_at_s = now_s
            self._give()
            self._refuse_late(now_s)
        else:
            self._freed_at_s = None
        self._forget(tenant)

    def _give(self) -> None:
        """The free place to the next that has not gone away."""
        while self._waiting:
            following = min(self._waiting, key=lambda name: self._held[name] / self._weights[name])
            queue = self._waiting.pop(following)
            called = first_of(queue)
            went_first(called, queue)
            queue.remove(called)
            self._num_waiting -= 1
            if queue:
                self._waiting[following] = queue  # behind the others
            if not called.given.done():
                called.given.set_result(None)
                self._held[following] += 1
                return

    def _refuse_late(self, now_s: float) -> None:
        """Those that will not be served in time, as it looks now."""
        rhythm_s = self._rhythm_s
        since_s = rhythm_s if self._freed_at_s is None else min(now_s - self._freed_at_s, rhythm_s)
        at_worst_s = now_s + self._num_waiting * rhythm_s - since_s + self._work_s
        if all(at_worst_s <= one.deadline_s for queue in self._waiting.values() for one in queue):
            return
        place = 1
        for tenant, waiting in self._in_order():
            wait_s = place * rhythm_s - since_s
            if now_s + wait_s + self._work_s > waiting.deadline_s:
                self._refuse(tenant, waiting, _too_late(wait_s))
            else:
                place += 1

    def _in_order(self) -> Iterator[tuple[str, _InLine]]:
        """Those that wait, as they would be called if nobody came or ended."""
        queues = {name: iter(in_order(queue)) for name, queue in self._waiting.items()}
        heap = [(self._held[name] / self._weights[name], i, name) for i, name in enumerate(queues)]
        weights = dict(self._weights)
        heapq.heapify(heap)
        for called in itertools.count(len(heap)):
            if not heap:
                return
            share, _, name = heapq.heappop(heap)
            if (waiting := next(queues[name], None)) is not None:
                yield name, waiting
                heapq.heappush(heap, (share + 1 / weights[name], called, name))

    def _refuse(self, tenant: str, waiting: _InLine, why: Overloaded) -> None:
        if not waiting.given.done():
            waiting.given.set_exception(why)
        self._leave(tenant, waiting)
        self._forget(tenant)

    def _leave(self, tenant: str, waiting: _InLine) -> None:
        """One that is not there any more was called, or refused, just before it went away."""
        queue = self._waiting.get(tenant)
        if queue and waiting in queue:
            queue.remove(waiting)
            self._num_waiting -= 1
            if not queue:
                del self._waiting[tenant]

    def _forget(self, tenant: str) -> None:
        if tenant not in self._held and tenant not in self._waiting:
            self._weights.pop(tenant, None)


def _following(mean: float, newest: float) -> float:
    """A mean of what came last; the first is its own."""
    return mean + _NEWEST_SHARE * (newest - mean) if mean else newest


def _too_late(wait_s: float) -> Overloaded:
    return Overloaded(
        f"its turn would come in {wait_s:.1f} s, too late to be answered before its deadline; retry in "
        f"{max(wait_s, _SOON_S):.1f} s, or set meta.deadline_ms higher",
        retry_after_s=max(wait_s, _SOON_S),
    )
