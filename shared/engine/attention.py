"""Lays out what one step computes and what its rows see: segment-major, in plain numbers; a backend
(``shared.engine.backends``) attends.

A row at position p sees the key at local position j of a segment placed at offset o iff ``o + j < p`` (``<=
p`` in its own private segment), j is in front of the place where the row's branch was forked from that
segment, and is not excluded. So all that a row and a piece have to say to each other is the distance ``p -
o``, which decides both the rotation of the query and where the row's sight ends, and the number of tokens
that may be seen at all. Shapes: H query heads, K kv heads, R rows, D head_dim.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from torch import Tensor

from shared.engine.kv.arrival import Arrival, Patience
from shared.engine.kv.branch import Branch, Tempering
from shared.engine.kv.exclusion import Excluded
from shared.engine.kv.segment import Ints, Places, Segment
from shared.engine.model.adapting import AdapterWeights, adapted_rows
from shared.identity import TokenIds


@dataclass(frozen=True, slots=True)
class Lane:
    """Rows [start, start + num_rows) of the step belong to ``branch``: its next pending tokens and, behind
    the last of these, a ``draft`` of what comes next. ``adapter``: what they go with, if that is not the
    model alone."""

    branch: Branch
    start: int
    num_rows: int
    adapter: AdapterWeights | None = None
    draft: TokenIds = ()

    @property
    def rows(self) -> slice:
        return slice(self.start, self.start + self.num_rows)

    @property
    def num_pending(self) -> int:
        """Rows of tokens that the branch has."""
        return self.num_rows - len(self.draft)

    @property
    def token_ids(self) -> list[int]:
        return [*self.branch.pending[: self.num_pending], *self.draft]

    def advance(self) -> None:
        """The rows' tokens are computed. Those of a draft are the branch's only once they were chosen."""
        self.branch.advance(self.num_pending)

    def places(self) -> Places:
        """Local positions of the rows in their own segment."""
        segment = self.branch.segment
        return segment.places(segment.length, segment.length + self.num_rows)


class Visit(NamedTuple):
    """Rows [start, start + num_rows) of the step look at the first ``num_tokens`` of a piece. The first of
    them stands ``distance`` positions behind local position 0 of the piece's segment, every next row one
    further, or ``steps`` [rows] further than the first. ``nth``: of the pieces that its branch sees, in the
    order of its path. ``tempering``: the piece is one of those that the branch weighs by it."""

    start: int
    num_rows: int
    distance: int
    num_tokens: int
    nth: int
    excluded: Excluded | None = None
    steps: Ints | None = None
    tempering: Tempering | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """A segment and all rows that look at it in this step, each at most once. ``own``: it is their private
    segment."""

    segment: Segment
    own: bool
    visits: list[Visit] = field(default_factory=list)

    def sight(self, visit: Visit) -> int:
        """Position and fork let the visit's first row see this many tokens, at least one. Of their own
        segment every next row sees one more, of others as many more as it stands further, up to
        ``visit.num_tokens``."""
        if self.own:
            return visit.num_tokens - visit.num_rows + 1
        return min(visit.num_tokens, visit.distance - self.segment.start)


class Attention(Protocol):
    """One step on one backend."""

    def run(self, layer: int, q_HRD: Tensor, k_KRD: Tensor, v_KRD: Tensor, scale: float) -> Tensor:
        """Appends the rows' keys and values to their segments and attends. q and k come unrotated. Returns
        [H, R, D]."""
        ...


class Backend(Protocol):
    def plan(self, lanes: Sequence[Lane]) -> Attention:
        """Once per step; what it returns runs once per layer. Segments have room for their lanes' rows
        (``Segment.reserve``)."""
        ...


class StepPlan:
    """One forward pass. ``patience``: of a pass that places segments which are still arriving."""

    def __init__(self, lanes: Sequence[Lane], backend: Backend, patience: Patience | None = None) -> None:
        self.lanes = lanes
        self.num_rows = sum(lane.num_rows for lane in lanes)
        self.token_ids = [t for lane in lanes for t in lane.token_ids]
        self.adapted = adapted_rows([(lane.adapter, lane.rows) for lane in lanes])
        self._attention = backend.plan(lanes)
        self._patience = patience or Patience()
        seen = {id(p.segment): p.segment for lane in lanes for p in lane.branch.seen()}
        self._arrivals: list[Arrival] = [
            s.arrival for s in seen.values() if s.arrival and not s.arrival.settled
        ]

    @property
    def uninterrupted(self) -> Attention | None:
        """What attends, if nothing else is to be done from layer to layer: none waits for what arrives, and
        no branch has a probe."""
        watched = any(lane.branch.probe is not None for lane in self.lanes)
        return None if self._arrivals or watched else self._attention

    def run(self, layer: int, q_HRD: Tensor, k_KRD: Tensor, v_KRD: Tensor, scale: float) -> Tensor:
        """See ``Attention.run``.

        Raises:
            GivenUp: a segment's layer is not there and was not to be waited for any longer.
        """
        for arrival in self._arrivals:
            arrival.wait_for(layer, self._patience)
        out_HRD = self._attention.run(layer, q_HRD, k_KRD, v_KRD, scale)
        for lane in self.lanes:
            if lane.branch.probe is not None:
                lane.branch.probe.look(lane.branch, lane.num_rows, layer, q_HRD[:, lane.rows], scale)
        return out_HRD


def pieces_of(lanes: Sequence[Lane]) -> list[Piece]:
    """Every segment that is seen in this step, once, with all who look at it. A segment that a branch has
    placed several times makes as many pieces. Private segments come last, in the order of the lanes:
    ``pieces[len(pieces) - len(lanes) + i]``."""
    shared: dict[tuple[int, int], Piece] = {}
    own: list[Piece] = []
    for lane in lanes:
        branch, seen, places = lane.branch, lane.branch.seen(), lane.places()
        seen_times: dict[int, int] = {}
        for nth, placement in enumerate(seen):
            key = id(placement.segment)
            times = seen_times[key] = seen_times.get(key, -1) + 1
            ahead = branch.offset - placement.offset
            # rows at its first token or in front of it see nothing
            blind = bisect_right(places, placement.segment.start - ahead)
            if blind >= lane.num_rows:
                continue
            visit = Visit(
                lane.start + blind,
                lane.num_rows - blind,
                int(places[blind]) + ahead,
                placement.num_tokens,
                nth,
                placement.excluded,
                _steps(places, blind),
                branch.tempering if branch.tempering and nth in branch.tempering.chunks else None,
            )
            piece = shared.get((key, times))
            if piece is None:
                piece = shared[key, times] = Piece(placement.segment, own=False)
            piece.visits.append(visit)
        num_tokens = branch.segment.length + lane.num_rows
        visit = Visit(
            lane.start, lane.num_rows, int(places[0]), num_tokens, len(seen), steps=_steps(places, 0)
        )
        own.append(Piece(branch.segment, own=True, visits=[visit]))
    return [*shared.values(), *own]


def _steps(places: Places, begin: int) -> Ints | None:
    return places[begin:] - places[begin] if isinstance(places, np.ndarray) else None
