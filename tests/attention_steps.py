"""Random attention steps: forests of branches over placed segments, built alike for every backend that is to
be compared.

Shapes: H query heads, K kv heads, R rows, T tokens, D head_dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray

from shared.engine.attention import Backend, Lane, StepPlan
from shared.engine.kv.branch import Branch, Placement, Tempering
from shared.engine.kv.exclusion import Excluded
from shared.engine.kv.segment import Segment
from shared.engine.model.rope import RopeSpec
from shared.engine.model.spec import ModelSpec

NUM_LAYERS = 2
CPU = torch.device("cpu")
# Relative, RMS over RMS: of the same step in the same type, computed in another order.
TOLERANCE = {torch.float32: 5e-6, torch.bfloat16: 1.5e-2, torch.float16: 2e-3}


@dataclass(frozen=True)
class Shape:
    dtype: torch.dtype = torch.float32
    num_kv_heads: int = 2
    group: int = 2
    head_dim: int = 64
    rotated: float = 1.0  # of the head's dimensions


@dataclass(frozen=True)
class PlacementCase:
    """``hidden``: the fraction of its tokens that are excluded, None for a placement without exclusions."""

    segment: int
    offset: int
    hidden: float | None = None


@dataclass(frozen=True)
class BranchCase:
    """``num_rows`` rows behind ``old`` tokens of its own. ``parent``: an earlier branch, whose context it has
    and behind whose tokens it hangs, whatever ``offset`` says; ``forked``: behind the first so many of them,
    and with the parent's origin.
    ``gap``: its tokens stand up to so many positions apart. ``tempered``: (first, number, temperature, scale)
    of placements, for it and those that hang on it."""

    offset: int
    old: int
    num_rows: int
    placements: tuple[PlacementCase, ...] = ()
    parent: int | None = None
    forked: int | None = None
    gap: int = 0
    tempered: tuple[int, int, float, float] | None = None


@dataclass(frozen=True)
class Case:
    shape: Shape
    segment_lens: tuple[int, ...]
    branches: tuple[BranchCase, ...]
    seed: int = 0


def spec_of(shape: Shape, device: torch.device = CPU) -> ModelSpec:
    half = int(shape.head_dim * shape.rotated) // 2
    return ModelSpec(
        num_layers=NUM_LAYERS,
        num_heads=shape.num_kv_heads * shape.group,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        vocab_size=8,
        max_positions=1 << 20,
        sliding_window=None,
        eos_ids=frozenset(),
        dtype=shape.dtype,
        device=device,
        rope=RopeSpec(tuple(10000.0 ** (-i / half) for i in range(half))),
    )


@dataclass(frozen=True)
class Outcome:
    """Attention [H, R, D], and what the rows' segments hold now, per lane [K, T, D]."""

    out_HRD: torch.Tensor
    keys: list[torch.Tensor]
    values: list[torch.Tensor]


class Step:
    """One case, its tensors drawn anew from its seed: ``lanes`` grow when it runs."""

    def __init__(self, case: Case, device: torch.device = CPU) -> None:
        self.case, self.spec, self.device = case, spec_of(case.shape, device), device
        self._generator = torch.Generator().manual_seed(case.seed)
        segments = [self._segment(length) for length in case.segment_lens]
        self.branches: list[Branch] = []
        for one in case.branches:
            branch = self._branch(one, segments)
            if one.tempered is not None:
                branch.tempering = Tempering(*one.tempered)
            branch.segment = self._segment(one.old, one.num_rows, branch.segment.start, self._places(one))
            self.branches.append(branch)
        self.lanes: list[Lane] = []
        for branch in self.branches:
            self.lanes.append(Lane(branch, sum(lane.num_rows for lane in self.lanes), len(branch.pending)))
        num_rows = sum(lane.num_rows for lane in self.lanes)
        # as models give it
        self.q_HRD = self._noise(self.spec.num_heads, num_rows).transpose(0, 1).contiguous().transpose(0, 1)
        self.k_KRD, self.v_KRD = (
            self._noise(self.spec.num_kv_heads, num_rows),
            self._noise(self.spec.num_kv_heads, num_rows),
        )

    @torch.inference_mode()
    def run(self, backend: Backend, only: Sequence[int] | None = None, layer: int = 1) -> Outcome:
        """``only``: these lanes, without the others' company."""
        chosen = [self.lanes[i] for i in (range(len(self.lanes)) if only is None else only)]
        rows = torch.cat([torch.arange(lane.start, lane.start + lane.num_rows) for lane in chosen]).to(
            self.device
        )
        lanes: list[Lane] = []
        for lane in chosen:
            lanes.append(Lane(lane.branch, sum(one.num_rows for one in lanes), lane.num_rows))
        plan = StepPlan(lanes, backend)
        out_HRD = plan.run(
            layer, *(x[:, rows] for x in (self.q_HRD, self.k_KRD, self.v_KRD)), self.spec.head_dim**-0.5
        )
        ends = [(lane.branch.segment, lane.branch.segment.length + lane.num_rows) for lane in lanes]
        return Outcome(
            out_HRD,
            [s.k_LKTD[layer][:, :end] for s, end in ends],
            [s.v_LKTD[layer][:, :end] for s, end in ends],
        )

    def _branch(self, one: BranchCase, segments: Sequence[Segment]) -> Branch:
        pending = (0,) * one.num_rows
        if one.parent is None:
            return Branch(
                self.spec, pending, one.offset, tuple(self._placement(p, segments) for p in one.placements)
            )
        parent = self.branches[one.parent]
        if one.forked is None:
            return Branch(self.spec, pending, parent.computed, parent=parent)
        return parent.fork(pending, one.forked)

    def _places(self, one: BranchCase) -> NDArray[np.int64] | None:
        if not one.gap:
            return None
        gaps = torch.randint(one.gap + 1, (one.old + one.num_rows,), generator=self._generator) + 1
        near = torch.rand(len(gaps), generator=self._generator) < 0.5
        return np.concatenate(([0], gaps.masked_fill(near, 1).cumsum(0).numpy()))

    def _segment(
        self, length: int, room: int = 0, start: int = 0, places: NDArray[np.int64] | None = None
    ) -> Segment:
        """What lies behind its tokens is poison."""
        segment = Segment(self.spec, length + room + 3, start, places)
        segment.length = length
        for x_KTD in (*segment.k_LKTD, *segment.v_LKTD):
            x_KTD.fill_(float("nan"))
            x_KTD[:, :length] = self._noise(self.spec.num_kv_heads, length)
        return segment

    def _placement(self, one: PlacementCase, segments: Sequence[Segment]) -> Placement:
        segment = segments[one.segment]
        if one.hidden is None:
            return Placement(segment, one.offset)
        hidden_LT = torch.rand(NUM_LAYERS, segment.length, generator=self._generator) < one.hidden
        return Placement(segment, one.offset, excluded=Excluded.of(hidden_LT.to(self.device)))

    def _noise(self, num_heads: int, num_rows: int) -> torch.Tensor:
        noise = torch.randn(num_heads, num_rows, self.spec.head_dim, generator=self._generator)
        return (2 * noise).to(self.device, self.spec.dtype)


def assert_same_step(
    ours: Outcome, theirs: Outcome, dtype: torch.dtype, tolerance: float | None = None
) -> None:
    """Every row by itself, so that no wrong one hides among many right ones."""
    tolerance = TOLERANCE[dtype] if tolerance is None else tolerance
    assert ours.out_HRD.dtype == theirs.out_HRD.dtype == dtype
    for row in range(theirs.out_HRD.shape[1]):
        error = relative_error(ours.out_HRD[:, row], theirs.out_HRD[:, row])
        assert error < tolerance, f"row {row}: relative error {error:.2g}"
    for mine, other in zip((*ours.keys, *ours.values), (*theirs.keys, *theirs.values), strict=True):
        assert relative_error(mine, other) < tolerance


def relative_error(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float(
        (ours.double() - theirs.double()).pow(2).mean().sqrt() / theirs.double().pow(2).mean().sqrt()
    )


def cases(
    dtypes: Sequence[torch.dtype] = (torch.float32, torch.bfloat16, torch.float16),
    max_tokens: int = 80,
    max_branches: int = 4,
    exclusions: bool = True,
) -> st.SearchStrategy[Case]:
    shapes = st.builds(
        Shape,
        dtype=st.sampled_from(list(dtypes)),
        num_kv_heads=st.integers(1, 2),
        group=st.sampled_from((1, 2, 3, 7)),
        head_dim=st.sampled_from((16, 64, 96, 128)),
        rotated=st.sampled_from((1.0, 0.5)),
    )
    return st.tuples(
        shapes, st.lists(st.integers(1, max_tokens), min_size=1, max_size=4), st.integers(0, 3)
    ).flatmap(
        lambda drawn: _forests(drawn[1], max_branches, exclusions).map(
            lambda branches: Case(drawn[0], tuple(drawn[1]), tuple(branches), drawn[2])
        )
    )


@st.composite
def _forests(draw: st.DrawFn, lens: Sequence[int], max_branches: int, exclusions: bool) -> list[BranchCase]:
    """Half of the branches have a context of their own, some of them tokens with gaps; others hang on an
    earlier branch or are forked from one without gaps."""
    branches: list[BranchCase] = []
    for one in draw(st.lists(_branches(len(lens), lens, exclusions), min_size=1, max_size=max_branches)):
        kind = draw(st.sampled_from(("root", "root", "hangs", "forked"))) if branches else "root"
        if kind != "root":
            parent = draw(st.integers(0, len(branches) - 1))
            can_fork = kind == "forked" and not branches[parent].gap
            forked = draw(st.integers(0, branches[parent].old)) if can_fork else None
            one = replace(one, placements=(), parent=parent, forked=forked, gap=0, tempered=None)
        branches.append(one)
    return branches


def _branches(num_segments: int, lens: Sequence[int], exclusions: bool) -> st.SearchStrategy[BranchCase]:
    """Far and near, with gaps, the same segment twice, rows that stand in the middle of a placement or in
    front of it."""
    hidden = st.sampled_from((None, 0.0, 0.3, 1.0)) if exclusions else st.none()
    placement = st.tuples(st.integers(0, num_segments - 1), st.integers(0, 5), hidden)

    @st.composite
    def branch(draw: st.DrawFn) -> BranchCase:
        position = draw(st.sampled_from((0, 0, 3000, 250_000)))
        placed = []
        for segment, gap, part in draw(st.lists(placement, max_size=4)):
            placed.append(PlacementCase(segment, position + gap, part))
            position += gap + lens[segment]
        behind = draw(st.sampled_from((0, 0, 7, -5, -40, -150)))
        num_rows, old = draw(st.integers(1, 20)), draw(st.sampled_from((0, 0, 1, 37)))
        gap = draw(st.sampled_from((0, 0, 3, 20)))
        first = draw(st.integers(0, max(0, len(placed) - 1)))
        number = st.integers(1, max(1, len(placed) - first))
        tempered = st.tuples(
            st.just(first), number, st.sampled_from((0.3, 1.0, 1.7)), st.sampled_from((0.5, 1.4))
        )
        return BranchCase(
            max(0, position + behind),
            old,
            num_rows,
            tuple(placed),
            gap=gap,
            tempered=draw(st.one_of(st.none(), tempered)) if placed else None,
        )

    return branch()
