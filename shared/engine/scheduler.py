"""Decides who runs next. Pure decisions over counts: no tensors, no clocks, no threads.

Every step gives decoding branches (one pending token) their row first, so that a long prefill never stalls a
stream; what is left of the budget goes to prefill in order of arrival, in pieces. Private KV above its budget
pauses the youngest request; it resumes, with its KV, before anything new is admitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from shared.engine_config import EngineConfig
from shared.identity import TokenIds

# Rows of one forward pass under batch invariance: a branch's tokens are always cut at multiples of this.
TILE = 64
IDLE_ROWS = 2 * TILE
"""Most of a step for which nobody waits, so that it ends soon for somebody who comes."""


class Work(Protocol):
    """A branch with tokens to compute, in order of arrival of its request."""

    @property
    def num_pending(self) -> int: ...
    @property
    def num_done(self) -> int: ...
    @property
    def whole(self) -> bool:
        """It cannot be cut, nor share a pass."""
        ...

    @property
    def idle(self) -> bool:
        """Nobody waits for it."""
        ...

    @property
    def late(self) -> bool:
        """Says whether the KV that it computes is on its way as well."""
        ...


WorkT = TypeVar("WorkT", bound=Work)


@dataclass(frozen=True, slots=True)
class Demand:
    """The room that a request occupies, or will at once when admitted."""

    num_branches: int
    private_bytes: int


@dataclass(frozen=True, slots=True)
class Slice(Generic[WorkT]):
    """The next ``num_rows`` pending tokens of a work and, behind the last of all, a ``draft`` of what comes
    next, in the same pass."""

    work: WorkT
    num_rows: int
    draft: TokenIds = ()


class Scheduler:
    """``together``: whatever the rows beside it, a row of the model has the same bits, so that slices may
    share a pass under batch invariance too."""

    def __init__(self, config: EngineConfig, together: bool = False) -> None:
        self._config = config
        self._apart = config.batch_invariant and not together

    @property
    def late_rows(self) -> int:
        """See ``EngineConfig``."""
        return self._config.rows_of_late_chunks

    def fits(self, candidate: Demand, running: Iterable[Demand]) -> bool:
        """May it run beside these? Alone, anything may: a request never waits for room that cannot come."""
        running = list(running)
        if not running:
            return True
        return (
            sum(d.num_branches for d in running) + candidate.num_branches <= self._config.max_running_branches
            and sum(d.private_bytes for d in running) + candidate.private_bytes <= self._config.private_bytes
        )

    def num_to_pause(self, running: Sequence[Demand]) -> int:
        """The number of these, youngest (last) first, must pause; never the oldest."""
        total = sum(d.private_bytes for d in running)
        count = 0
        while total > self._config.private_bytes and count < len(running) - 1:
            count += 1
            total -= running[-count].private_bytes
        return count

    def pick(self, works: Iterable[WorkT], queued: bool = False) -> list[list[Slice[WorkT]]]:
        """The step's forward passes, each a list of slices. Under batch invariance every slice may have to
        be a pass of its own. A work that is whole gets its pass although it may exceed the budget. A late one
        gets what others leave, up to a budget of its own, and nothing if requests are ``queued``."""
        ordered = sorted(works, key=lambda work: (work.late, work.num_pending > 1))
        room, late_room = self._config.max_step_tokens, 0 if queued else self.late_rows
        slices: list[Slice[WorkT]] = []
        apart: list[Slice[WorkT]] = []
        for work in ordered:
            if work.late:
                room = min(room, late_room)
            if room <= 0:
                break
            if work.whole:
                rows = work.num_pending
            elif self._config.batch_invariant:
                rows = min(work.num_pending, TILE - work.num_done % TILE)
            else:
                rows = min(work.num_pending, room, IDLE_ROWS if work.idle else room)
            (apart if work.whole else slices).append(Slice(work, rows))
            room -= rows
            late_room -= rows if work.late else 0
        if self._apart:
            return [[s] for s in (*slices, *apart)]
        return ([slices] if slices else []) + [[s] for s in apart]
