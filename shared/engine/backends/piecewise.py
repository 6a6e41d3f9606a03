"""Attention piece by piece: one call of a kernel per segment, the parts merged exactly by log-sum-exp.

Shapes: H query heads, K kv heads, R rows of the step, S rows of one call, T tokens, D head_dim.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch

from shared.engine.attention import Lane, Piece, Visit, pieces_of
from shared.engine.backends.kernels import Kernel
from shared.engine.exclusion import Excluded
from shared.engine.rope import Angles, Rotation
from shared.engine.segment import Segment


@dataclass(frozen=True, slots=True)
class PiecewiseBackend:
    rotation: Rotation
    kernel: Kernel
    device: torch.device

    def plan(self, lanes: Sequence[Lane]) -> PiecewiseAttention:
        return PiecewiseAttention(lanes, self.rotation, self.kernel, self.device)


@dataclass(frozen=True, slots=True)
class _Call:
    """Rows that see tokens [begin, end) of a segment: all of them or, ``causal``, row i the first i + 1."""

    segment: Segment
    begin: int
    end: int
    rows: slice | torch.Tensor
    angles: Angles
    causal: bool
    excluded: Excluded | None


class PiecewiseAttention:
    def __init__(self, lanes: Sequence[Lane], rotation: Rotation, kernel: Kernel, device: torch.device) -> None:
        self._lanes = lanes
        self._rotation = rotation
        self._kernel = kernel
        self._device = device
        self._key_angles = rotation.angles([p for lane in lanes for p in own_positions(lane)])
        self._calls = [call for piece in pieces_of(lanes) for call in self._calls_of(piece)]

    def run(self, layer: int, q_HRD: torch.Tensor, k_KRD: torch.Tensor, v_KRD: torch.Tensor, scale: float) -> torch.Tensor:
        append(self._lanes, layer, self._rotation.rotate(k_KRD, self._key_angles), v_KRD)
        merged = _Merge(q_HRD)
        for call in self._calls:
            q_HSD = self._rotation.rotate(q_HRD[:, call.rows], call.angles)
            k_KTD = call.segment.k_LKTD[layer][:, call.begin : call.end]
            v_KTD = call.segment.v_LKTD[layer][:, call.begin : call.end]
            hidden_T = call.excluded.hidden(layer, call.begin, call.end) if call.excluded else None
            merged.add(call.rows, *self._kernel(q_HSD, k_KTD, v_KTD, scale, call.causal, hidden_T))
        return merged.result()

    def _calls_of(self, piece: Piece) -> Iterator[_Call]:
        """::

            rows of one visit   see of the piece
            ┌ row 0             |whole|.          all rows of a visit see what its first row sees but for one token ("whole");
            │ row 1             |whole|..         then comes a triangle;
            └ row 2             |whole|...|       rows beyond it see all that the visit may see

        Rows that see a whole, and exclude the same, share calls: the tokens are cut where one of them ends, and read once.
        """
        stacks: dict[int, list[tuple[int, Visit]]] = {}  # by exclusions: the end of a whole, who sees it
        for visit in piece.visits:
            stack, sight = stacks.setdefault(id(visit.excluded), []), piece.sight(visit)
            triangle = 0 if sight == visit.num_tokens or visit.num_rows == 1 else min(visit.num_rows, visit.num_tokens - sight + 1)
            if triangle:
                head = _part(visit, 0, triangle)
                yield self._call(piece, sight - 1, sight - 1 + triangle, [head], causal=True)
                stack.append((sight - 1, head))
            if visit.num_rows > triangle:
                stack.append((visit.num_tokens if triangle else sight, _part(visit, triangle, visit.num_rows)))
        for stack in stacks.values():
            for begin, end in pairwise(sorted({0, *(end for end, _ in stack)})):
                yield self._call(piece, begin, end, [visit for whole, visit in stack if whole >= end], causal=False)

    def _call(self, piece: Piece, begin: int, end: int, visits: Sequence[Visit], causal: bool) -> _Call:
        distances = [d for v in visits for d in range(v.distance, v.distance + v.num_rows)]
        angles = self._rotation.angles(distances)
        return _Call(piece.segment, begin, end, self._rows(visits), angles, causal, visits[0].excluded)

    def _rows(self, visits: Sequence[Visit]) -> slice | torch.Tensor:
        if all(a.start + a.num_rows == b.start for a, b in pairwise(visits)):
            return slice(visits[0].start, visits[-1].start + visits[-1].num_rows)
        return torch.cat([torch.arange(v.start, v.start + v.num_rows, device=self._device) for v in visits])


def own_positions(lane: Lane) -> range:
    """Local positions of the lane's rows in their own segment."""
    first = lane.branch.computed - lane.branch.offset
    return range(first, first + lane.num_rows)


def append(lanes: Sequence[Lane], layer: int, rotated_KRD: torch.Tensor, v_KRD: torch.Tensor) -> None:
    """Keys, rotated to their local positions, and values go behind what their segments hold already."""
    for lane in lanes:
        segment, room = lane.branch.segment, slice(lane.branch.segment.length, lane.branch.segment.length + lane.num_rows)
        segment.k_LKTD[layer][:, room] = rotated_KRD[:, lane.rows]
        segment.v_LKTD[layer][:, room] = v_KRD[:, lane.rows]


def _part(visit: Visit, begin: int, end: int) -> Visit:
    return replace(visit, start=visit.start + begin, num_rows=end - begin, distance=visit.distance + begin)


class _Merge:
    """Exact combination of partial attentions: softmax over the union is the LSE-weighted mean of the parts."""

    def __init__(self, q_HRD: torch.Tensor) -> None:
        self._dtype = q_HRD.dtype
        self._out_HRD = torch.zeros(q_HRD.shape, dtype=torch.float32, device=q_HRD.device)
        # Not −∞: less −∞, which a row that sees nothing of a piece has there, that would be no number.
        self._lse_HR = torch.full(q_HRD.shape[:2], torch.finfo(torch.float32).min, device=q_HRD.device)

    def add(self, rows: slice | torch.Tensor, out_HSD: torch.Tensor, lse_HS: torch.Tensor) -> None:
        old_HS = self._lse_HR[:, rows]
        new_HS = torch.logaddexp(old_HS, lse_HS)
        kept_HS, added_HS = (old_HS - new_HS).exp_(), (lse_HS - new_HS).exp_()
        self._out_HRD[:, rows] = torch.addcmul(self._out_HRD[:, rows] * kept_HS[..., None], out_HSD.float(), added_HS[..., None])
        self._lse_HR[:, rows] = new_HS

    def result(self) -> torch.Tensor:
        return self._out_HRD.to(self._dtype)
