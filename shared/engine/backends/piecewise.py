"""Attention piece by piece: one call of a kernel per segment, the parts merged exactly by log-sum-exp.

Shapes: H query heads, K kv heads, R rows of the step, S rows of one call, T tokens, D head_dim.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shared.engine.attention import Lane, Piece, Visit, pieces_of
from shared.engine.backends.kernels import Kernel
from shared.engine.device_arrays import brought, integers
from shared.engine.kv.branch import Tempering
from shared.engine.kv.exclusion import Excluded
from shared.engine.kv.segment import Segment
from shared.engine.model.rope import Rotation
from shared.engine.model.spec import ModelSpec


class PiecewiseBackend:
    def __init__(self, spec: ModelSpec, kernel: Kernel) -> None:
        self.rotation, self.kernel = spec.rotation(), kernel

    def plan(self, lanes: Sequence[Lane]) -> PiecewiseAttention:
        return PiecewiseAttention(lanes, self.rotation, self.kernel)


@dataclass(frozen=True, slots=True)
class _Call:
    """Rows that see tokens [begin, end) of a segment: all of them or, ``causal``, row i the first i + 1.
    ``hidden_ST``: True where rows do not see tokens, if it is neither."""

    segment: Segment
    begin: int
    end: int
    visits: Sequence[Visit]
    causal: bool
    excluded: Excluded | None
    hidden_ST: Tensor | None = None

    @property
    def tempering(self) -> Tempering | None:
        return self.visits[0].tempering

    def rows(self) -> list[int]:
        return [row for v in self.visits for row in range(v.start, v.start + v.num_rows)]

    def distances(self) -> list[int]:
        return [
            v.distance + step
            for v in self.visits
            for step in (range(v.num_rows) if v.steps is None else v.steps.tolist())
        ]

    def hidden(self, layer: int) -> Tensor | None:
        """Marks what no row sees [T], or what each does not [S, T]."""
        if self.excluded is None:
            return self.hidden_ST
        hidden_T = self.excluded.hidden(layer, self.begin, self.end)
        return hidden_T if self.hidden_ST is None else hidden_T | self.hidden_ST


@dataclass(frozen=True, slots=True)
class _Joint:
    """In which calls P a row weighs its chunks, and by which power of their sum more."""

    joint_P1R: Tensor
    more_R: Tensor

    @classmethod
    def of(cls, calls: Sequence[_Call], num_rows: int, device: torch.device) -> _Joint | None:
        hot = [(p, call.tempering, call.rows()) for p, call in enumerate(calls) if call.tempering is not None]
        if not hot:
            return None
        joint_P1R = torch.zeros(len(calls), 1, num_rows, dtype=torch.bool)
        more_R = torch.zeros(num_rows)
        for p, tempering, rows in hot:
            joint_P1R[p, 0, rows], more_R[rows] = True, tempering.more
        return cls(brought(joint_P1R, device), brought(more_R, device))

    def more(self, lse_PHR: Tensor) -> Tensor:
        """Returns what comes on top of the log-sum-exp of each part."""
        sum_HR = lse_PHR.masked_fill(~self.joint_P1R, float("-inf")).logsumexp(0)
        return (self.more_R * sum_HR).masked_fill(sum_HR.isneginf(), 0.0) * self.joint_P1R


class PiecewiseAttention:
    """Per layer, the queries of all calls are rotated together; a decoding step would else spend its time on
    tiny operations."""

    def __init__(self, lanes: Sequence[Lane], rotation: Rotation, kernel: Kernel) -> None:
        device = rotation.device
        self._lanes = lanes
        self._rotation = rotation
        self._kernel = kernel
        self._device = device
        self._key_angles = rotation.angles([int(p) for lane in lanes for p in lane.places()])
        self._calls = [call for piece in pieces_of(lanes) for call in self._calls_of(piece)]
        rows = [call.rows() for call in self._calls]
        self._rows_Q = integers([row for of_call in rows for row in of_call], device)
        self._angles = rotation.angles([d for call in self._calls for d in call.distances()])
        self._joint = _Joint.of(self._calls, sum(lane.num_rows for lane in lanes), device)
        self._targets = [_rows(of_call, device) for of_call in rows]
        ends = [0, *accumulate(map(len, rows))]
        self._stacked = [slice(begin, end) for begin, end in pairwise(ends)]

    def run(self, layer: int, q_HRD: Tensor, k_KRD: Tensor, v_KRD: Tensor, scale: float) -> Tensor:
        append(self._lanes, layer, self._rotation.rotate(k_KRD, self._key_angles), v_KRD)
        q_HQD = self._rotation.rotate(q_HRD.index_select(1, self._rows_Q), self._angles)
        parts = []
        for call, stacked in zip(self._calls, self._stacked, strict=True):
            k_KTD = _between(call.segment.k_LKTD[layer], call.begin, call.end)
            v_KTD = _between(call.segment.v_LKTD[layer], call.begin, call.end)
            sharp = scale / call.tempering.temperature if call.tempering else scale
            parts.append(
                self._kernel(q_HQD[:, stacked], k_KTD, v_KTD, sharp, call.causal, call.hidden(layer))
            )
        return self._merged(q_HRD, parts)

    def _merged(self, q_HRD: Tensor, parts: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """Exact combination of partial attentions: softmax over the union is the mean of the parts, weighted
        by their sums. Every row sees itself at least, so no sum of weights is 0."""
        if len(parts) == 1:
            return parts[0][0].to(q_HRD.dtype)
        lse_PHR = torch.full((len(parts), *q_HRD.shape[:2]), float("-inf"), device=q_HRD.device)
        for p, (rows, (_, lse_HS)) in enumerate(zip(self._targets, parts, strict=True)):
            lse_PHR[p, :, rows] = lse_HS
        if self._joint is not None:
            lse_PHR += self._joint.more(lse_PHR)
        weights_PHR = lse_PHR.softmax(0)
        out_HRD = torch.zeros(q_HRD.shape, dtype=torch.float32, device=q_HRD.device)
        for p, (rows, (out_HSD, _)) in enumerate(zip(self._targets, parts, strict=True)):
            weights_HS1 = weights_PHR[p, :, rows, None]
            if isinstance(rows, slice):
                out_HRD[:, rows].addcmul_(out_HSD, weights_HS1)
            else:
                out_HRD[:, rows] += out_HSD * weights_HS1
        return out_HRD.to(q_HRD.dtype)

    def _calls_of(self, piece: Piece) -> Iterator[_Call]:
        """::

            rows of one visit   see of the piece
            ┌ row 0             |whole|.          all rows of a visit see what its first row sees but for one token ("whole");
            │ row 1             |whole|..         then comes a triangle;
            └ row 2             |whole|...|       rows beyond it see all that the visit may see

        Rows that see a whole, exclude the same and weigh it alike share calls: the tokens are cut where one of them ends,
        and read once. Of a segment that is not their own, rows that do not stand one behind the other see no
        triangle; a mask says what they see.
        """  # noqa: E501
        # by exclusions and tempering: the end of a whole, who sees it
        stacks: dict[tuple[int, Tempering | None], list[tuple[int, Visit]]] = {}
        for visit in piece.visits:
            stack, sight = stacks.setdefault((id(visit.excluded), visit.tempering), []), piece.sight(visit)
            if visit.steps is not None and not piece.own:
                seen_S = np.minimum(visit.num_tokens, sight + visit.steps)
                inside = int(np.searchsorted(seen_S, visit.num_tokens))
                if inside:
                    yield self._masked(piece.segment, _part(visit, 0, inside), seen_S[:inside])
                if visit.num_rows > inside:
                    stack.append((visit.num_tokens, _part(visit, inside, visit.num_rows)))
                continue
            triangle = (
                0
                if sight == visit.num_tokens or visit.num_rows == 1
                else min(visit.num_rows, visit.num_tokens - sight + 1)
            )
            if triangle:
                head = _part(visit, 0, triangle)
                yield _Call(piece.segment, sight - 1, sight - 1 + triangle, [head], True, head.excluded)
                stack.append((sight - 1, head))
            if visit.num_rows > triangle:
                stack.append(
                    (visit.num_tokens if triangle else sight, _part(visit, triangle, visit.num_rows))
                )
        for stack in stacks.values():
            for begin, end in pairwise(sorted({0, *(end for end, _ in stack)})):
                visits = [visit for whole, visit in stack if whole >= end]
                yield _Call(piece.segment, begin, end, visits, False, visits[0].excluded)

    def _masked(self, segment: Segment, visit: Visit, seen_S: NDArray[np.int64]) -> _Call:
        end = int(seen_S[-1])
        hidden_ST = brought(torch.from_numpy(np.arange(end) >= seen_S[:, None]), self._device)
        return _Call(segment, 0, end, [visit], False, visit.excluded, hidden_ST)


def append(lanes: Sequence[Lane], layer: int, rotated_KRD: Tensor, v_KRD: Tensor) -> None:
    """Keys, rotated to their local positions, and values go behind what their segments hold already."""
    for lane in lanes:
        segment, room = (
            lane.branch.segment,
            slice(lane.branch.segment.length, lane.branch.segment.length + lane.num_rows),
        )
        segment.k_LKTD[layer][:, room] = rotated_KRD[:, lane.rows]
        segment.v_LKTD[layer][:, room] = v_KRD[:, lane.rows]


def _part(visit: Visit, begin: int, end: int) -> Visit:
    step = begin if visit.steps is None else int(visit.steps[begin])
    steps = None if visit.steps is None else visit.steps[begin:end] - step
    return visit._replace(
        start=visit.start + begin, num_rows=end - begin, distance=visit.distance + step, steps=steps
    )


def _rows(rows: Sequence[int], device: torch.device) -> slice | Tensor:
    if rows[-1] - rows[0] + 1 == len(rows):  # each row is there once, in ascending order
        return slice(rows[0], rows[-1] + 1)
    return integers(rows, device)


def _between(x_KTD: Tensor, begin: int, end: int) -> Tensor:
    return x_KTD if begin == 0 and end == x_KTD.shape[1] else x_KTD[:, begin:end]
