"""Attention of stacked rows over pieces of KV, merged exactly by log-sum-exp.

``StepPlan`` arranges one step segment-major: each segment is read once, with all rows of all branches that see it stacked
against it; row and placement decide the rotation of the query. ``run`` is called once per layer.

Shapes: H query heads, K kv heads, G = H/K, R rows, S rows of one piece, T tokens, D head_dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import torch

from shared.engine.arrival import Arrival, Patience
from shared.engine.rope import Rotation
from shared.engine.segment import Branch, Placement, Segment

Angles = tuple[torch.Tensor, torch.Tensor]


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
class Piece:
    """Tokens [begin, end) of a segment and the rows that see them, each rotated to its distance from the placement.

    ``causal``: the tokens are the rows' own, so row i sees the first i + 1 of them; otherwise every row sees all.
    """

    segment: Segment
    begin: int
    end: int
    rows: slice | torch.Tensor
    angles: Angles
    causal: bool


class Kernel(Protocol):
    def __call__(
        self, q_HSD: torch.Tensor, k_KTD: torch.Tensor, v_KTD: torch.Tensor, scale: float, causal: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Output [H, S, D] and its log-sum-exp [H, S] in float32. ``causal`` needs S = T. S and T are at least 1."""
        ...


def matmul_kernel(
    q_HSD: torch.Tensor, k_KTD: torch.Tensor, v_KTD: torch.Tensor, scale: float, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention as it is written down, in float32: the slow twin, and the kernel of devices without a fused one."""
    group = q_HSD.shape[0] // k_KTD.shape[0]
    k_HTD, v_HTD = k_KTD.float().repeat_interleave(group, 0), v_KTD.float().repeat_interleave(group, 0)
    scores_HST = (q_HSD.float() * scale) @ k_HTD.transpose(1, 2)
    if causal:
        hidden_ST = torch.ones(scores_HST.shape[1:], dtype=torch.bool, device=q_HSD.device).triu(1)
        scores_HST = scores_HST.masked_fill(hidden_ST, float("-inf"))
    lse_HS = scores_HST.logsumexp(-1)
    return (scores_HST - lse_HS[..., None]).exp() @ v_HTD, lse_HS


def fused_cpu_kernel(
    q_HSD: torch.Tensor, k_KTD: torch.Tensor, v_KTD: torch.Tensor, scale: float, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """torch's fused CPU kernel. It kills the process on zero rows or keys; pieces never have any."""
    num_heads, num_rows, dim = q_HSD.shape
    num_kv_heads, num_tokens, _ = k_KTD.shape
    group = num_heads // num_kv_heads
    if causal:  # kv heads as batch, a group's query heads as heads over one expanded (not copied) kv head
        q = q_HSD.view(num_kv_heads, group, num_rows, dim)
        k = k_KTD[:, None].expand(num_kv_heads, group, num_tokens, dim)
        v = v_KTD[:, None].expand(num_kv_heads, group, num_tokens, dim)
    else:  # a group's query heads folded into rows: each kv head is read once
        q = q_HSD.view(1, num_kv_heads, group * num_rows, dim)
        k, v = k_KTD[None], v_KTD[None]
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, scale=scale)
    return out.reshape(num_heads, num_rows, dim), lse.reshape(num_heads, num_rows)


def kernel_for(backend: str, device: torch.device) -> Kernel:
    return fused_cpu_kernel if backend == "torch" and device.type == "cpu" else matmul_kernel


class StepPlan:
    """What one forward pass computes and what its rows see. Built once per step, read by every layer.

    ``patience``: of a pass that places segments which are still arriving.
    """

    def __init__(
        self,
        lanes: Sequence[Lane],
        rotation: Rotation,
        kernel: Kernel,
        device: torch.device,
        patience: Patience | None = None,
    ) -> None:
        self.lanes = lanes
        self.num_rows = sum(lane.num_rows for lane in lanes)
        self._rotation = rotation
        self._kernel = kernel
        self._device = device
        self._key_angles = rotation.angles(torch.cat([self._local(lane) for lane in lanes]))
        self._pieces = [*self._shared_pieces(), *self._own_pieces()]
        self._patience = patience or Patience()
        self._arrivals: list[Arrival] = [p.segment.arrival for p in self._pieces if p.segment.arrival and not p.segment.whole]

    def run(self, layer: int, q_HRD: torch.Tensor, k_KRD: torch.Tensor, v_KRD: torch.Tensor, scale: float) -> torch.Tensor:
        """Appends the rows' keys and values to their segments and attends. q and k come unrotated. Returns [H, R, D].

        Raises:
            GivenUp: a segment's layer is not there and was not to be waited for any longer.
        """
        self._append(layer, k_KRD, v_KRD)
        for arrival in self._arrivals:
            arrival.wait_for(layer, self._patience)
        merged = _Merge(q_HRD)
        for piece in self._pieces:
            q_HSD = self._rotation.rotate(q_HRD[:, piece.rows], piece.angles)
            k_KTD = piece.segment.k_LKTD[layer][:, piece.begin : piece.end]
            v_KTD = piece.segment.v_LKTD[layer][:, piece.begin : piece.end]
            merged.add(piece.rows, *self._kernel(q_HSD, k_KTD, v_KTD, scale, piece.causal))
        return merged.result()

    def _append(self, layer: int, k_KRD: torch.Tensor, v_KRD: torch.Tensor) -> None:
        rotated_KRD = self._rotation.rotate(k_KRD, self._key_angles)
        for lane in self.lanes:
            segment = lane.branch.segment
            room = slice(segment.length, segment.length + lane.num_rows)
            segment.k_LKTD[layer][:, room] = rotated_KRD[:, lane.rows]
            segment.v_LKTD[layer][:, room] = v_KRD[:, lane.rows]

    def _shared_pieces(self) -> list[Piece]:
        """Context and ancestors. A segment placed twice by one branch makes two pieces, so that a piece holds a row once; one of
        which rows see different lengths is cut at those lengths."""
        stacks: dict[tuple[int, int], tuple[Segment, list[tuple[Lane, Placement]]]] = {}
        for lane in self.lanes:
            seen_times: dict[int, int] = {}
            for placement in lane.branch.seen():
                key = id(placement.segment)
                times = seen_times[key] = seen_times.get(key, -1) + 1
                stacks.setdefault((key, times), (placement.segment, []))[1].append((lane, placement))
        pieces = []
        for segment, stack in stacks.values():
            cuts = sorted({placement.num_tokens for _, placement in stack})
            for begin, end in pairwise([0, *cuts]):
                pieces.append(self._shared_piece(segment, begin, end, [(la, p.offset) for la, p in stack if p.num_tokens >= end]))
        return pieces

    def _shared_piece(self, segment: Segment, begin: int, end: int, stack: list[tuple[Lane, int]]) -> Piece:
        distances = torch.cat([self._local(lane) + lane.branch.offset - offset for lane, offset in stack])
        rows = self._rows([lane for lane, _ in stack])
        return Piece(segment, begin, end, rows, self._rotation.angles(distances), causal=False)

    def _own_pieces(self) -> list[Piece]:
        """A branch's own tokens: those before this step in whole, those of this step causally; a single row sees all in one."""
        pieces = []
        for lane in self.lanes:
            segment, old = lane.branch.segment, lane.branch.segment.length
            angles = self._rotation.angles(self._local(lane))
            if lane.num_rows == 1:
                pieces.append(Piece(segment, 0, old + 1, lane.rows, angles, causal=False))
                continue
            if old:
                pieces.append(Piece(segment, 0, old, lane.rows, angles, causal=False))
            pieces.append(Piece(segment, old, old + lane.num_rows, lane.rows, angles, causal=True))
        return pieces

    def _local(self, lane: Lane) -> torch.Tensor:
        """Local positions of the lane's rows in their own segment."""
        first = lane.branch.segment.start + lane.branch.segment.length
        return torch.arange(first, first + lane.num_rows, device=self._device)

    def _rows(self, lanes: Sequence[Lane]) -> slice | torch.Tensor:
        if all(a.start + a.num_rows == b.start for a, b in pairwise(lanes)):
            return slice(lanes[0].start, lanes[-1].start + lanes[-1].num_rows)
        return torch.cat([torch.arange(lane.start, lane.start + lane.num_rows, device=self._device) for lane in lanes])


class _Merge:
    """Exact combination of partial attentions: softmax over the union is the LSE-weighted mean of the parts."""

    def __init__(self, q_HRD: torch.Tensor) -> None:
        self._dtype = q_HRD.dtype
        self._out_HRD = torch.zeros(q_HRD.shape, dtype=torch.float32, device=q_HRD.device)
        self._lse_HR = torch.full(q_HRD.shape[:2], float("-inf"), device=q_HRD.device)

    def add(self, rows: slice | torch.Tensor, out_HSD: torch.Tensor, lse_HS: torch.Tensor) -> None:
        old_HS = self._lse_HR[:, rows]
        new_HS = torch.logaddexp(old_HS, lse_HS)
        kept_HS, added_HS = (old_HS - new_HS).exp_(), (lse_HS - new_HS).exp_()
        self._out_HRD[:, rows] = torch.addcmul(self._out_HRD[:, rows] * kept_HS[..., None], out_HSD.float(), added_HS[..., None])
        self._lse_HR[:, rows] = new_HS

    def result(self) -> torch.Tensor:
        return self._out_HRD.to(self._dtype)
