"""What one step computes and what its rows see: segment-major, in plain numbers; a backend (``shared.engine.backends``) attends.

A row at position p sees key j of a segment placed at offset o iff ``o + j < p`` (``<= p`` in its own private segment) and j is not
excluded. So all that a row and a piece have to say to each other is the distance ``p - o``: it decides both the rotation of the
query and where the row's sight ends. Shapes: H query heads, K kv heads, R rows, D head_dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from shared.engine.arrival import Arrival, Patience
from shared.engine.exclusion import Excluded
from shared.engine.segment import Branch, Segment


@dataclass(frozen=True, slots=True)
class Lane:
    """Rows [start, start + num_rows) of the step belong to ``branch``: its next pending tokens."""

    branch: Branch
    start: int
    num_rows: int

    @property
    def rows(self) -> slice:
        return slice(self.start, self.start + self.num_rows)


@dataclass(frozen=True, slots=True)
class Visit:
    """Rows [start, start + num_rows) of the step look at a piece. The first of them stands ``distance`` positions behind the
    piece's first token, every next row one further. ``nth``: of the pieces that its branch sees, in the order of its path."""

    start: int
    num_rows: int
    distance: int
    nth: int
    excluded: Excluded | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """The first ``length`` tokens of a segment and all that look at them in this step; each row at most once, and each sees at
    least one token. A row sees token j iff ``j < distance + own`` and j is not excluded. ``own``: the rows' private segment."""

    segment: Segment
    length: int
    own: bool
    visits: list[Visit] = field(default_factory=list)


class Attention(Protocol):
    """One step on one backend."""

    def run(self, layer: int, q_HRD: torch.Tensor, k_KRD: torch.Tensor, v_KRD: torch.Tensor, scale: float) -> torch.Tensor:
        """Appends the rows' keys and values to their segments and attends. q and k come unrotated. Returns [H, R, D]."""
        ...


class Backend(Protocol):
    def plan(self, lanes: Sequence[Lane]) -> Attention:
        """Once per step; what it returns runs once per layer. Segments have room for their lanes' rows (``Segment.reserve``)."""
        ...


class StepPlan:
    """One forward pass. ``patience``: of a pass that places segments which are still arriving."""

    def __init__(self, lanes: Sequence[Lane], backend: Backend, patience: Patience | None = None) -> None:
        self.lanes = lanes
        self.num_rows = sum(lane.num_rows for lane in lanes)
        self._attention = backend.plan(lanes)
        self._patience = patience or Patience()
        seen = {id(p.segment): p.segment for lane in lanes for p in lane.branch.seen()}
        self._arrivals: list[Arrival] = [s.arrival for s in seen.values() if s.arrival and not s.whole]

    def run(self, layer: int, q_HRD: torch.Tensor, k_KRD: torch.Tensor, v_KRD: torch.Tensor, scale: float) -> torch.Tensor:
        """See ``Attention.run``.

        Raises:
            GivenUp: a segment's layer is not there and was not to be waited for any longer.
        """
        for arrival in self._arrivals:
            arrival.wait_for(layer, self._patience)
        return self._attention.run(layer, q_HRD, k_KRD, v_KRD, scale)


def pieces_of(lanes: Sequence[Lane]) -> list[Piece]:
    """Every segment that is seen in this step, once, with all who look at it. A segment that a branch has placed several times
    makes as many pieces. Private segments come last, in the order of the lanes: ``pieces[len(pieces) - len(lanes) + i]``."""
    shared: dict[tuple[int, int], Piece] = {}
    own: list[Piece] = []
    for lane in lanes:
        old = lane.branch.segment.length
        seen_times: dict[int, int] = {}
        seen = lane.branch.seen()
        for nth, placement in enumerate(seen):
            key = id(placement.segment)
            times = seen_times[key] = seen_times.get(key, -1) + 1
            distance = lane.branch.offset + old - placement.offset
            blind = max(0, 1 - distance)  # rows that stand at the segment's first token or in front of it see nothing
            if blind >= lane.num_rows:
                continue
            visit = Visit(lane.start + blind, lane.num_rows - blind, distance + blind, nth, placement.excluded)
            shared.setdefault((key, times), Piece(placement.segment, placement.segment.length, own=False)).visits.append(visit)
        visits = [Visit(lane.start, lane.num_rows, old, len(seen))]
        own.append(Piece(lane.branch.segment, old + lane.num_rows, own=True, visits=visits))
    return [*shared.values(), *own]
