"""Tables that are carried over from one decoding step to the next are those that would be built."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.engine.attention import Lane
from shared.engine.backends.decode_tables import DecodeTables
from shared.engine.backends.native import NativeBackend, best_level
from shared.engine.backends.tables import FIXED, Tables, Tiling, plan_tables
from shared.engine.kv.branch import Branch, Tempering
from shared.engine.kv.exclusion import Excluded
from shared.engine.kv.segment import Segment
from tests.attention_steps import NUM_LAYERS, BranchCase, Case, PlacementCase, Shape, Step, cases, spec_of

MANY = 1 << 19
TILINGS = st.sampled_from((None, FIXED, Tiling(16, 64)))
EVENTS = ("none",) * 6 + ("grow", "leave", "back", "temper", "hide", "less", "move", "swap", "rows", "rest")

needs_native = pytest.mark.skipif(not best_level(), reason="there is no compiler, or no x86 processor")


def decoding(case: Case) -> Step:
    """The case, with room for a row of each branch in every step."""
    return Step(replace(case, branches=tuple(replace(one, num_rows=90) for one in case.branches)))


def crowd(num_branches: int, old: int = 3) -> Case:
    placed = (PlacementCase(0, 0), PlacementCase(1, 300, 0.2), PlacementCase(2, 370))
    questions = tuple(BranchCase(500, 20 + i, 1, placed) for i in range(num_branches))
    answers = tuple(BranchCase(0, old, 1, parent=i) for i in range(num_branches))
    return Case(Shape(torch.bfloat16), (300, 70, 130), (*questions, *answers))


def lanes_of(branches: Sequence[Branch], num_rows: int = 1) -> list[Lane]:
    for branch in branches:
        branch.segment.reserve(num_rows)
    return [Lane(branch, nth * num_rows, num_rows) for nth, branch in enumerate(branches)]


def grow(branches: Sequence[Branch]) -> None:
    for branch in branches:
        branch.pending[:] = [0]
        branch.advance(1)


def assert_same_tables(ours: Tables, theirs: Tables) -> None:
    for field in fields(Tables):
        mine, other = getattr(ours, field.name), getattr(theirs, field.name)
        if isinstance(other, np.ndarray):
            assert mine.dtype == other.dtype
            np.testing.assert_array_equal(mine, other, field.name)
        elif field.name not in ("pieces", "num_positions"):
            assert mine == other, field.name


def happen(event: str, step: Step, branches: list[Branch]) -> None:
    """What may come between two steps."""
    first = branches[0]
    match event:
        case "grow":
            first.segment.reserve(first.segment.capacity + 1)
        case "leave":
            branches[:] = branches[1:] or branches
        case "back":
            branches[:] = step.branches
        case "temper" if first.context:
            first.tempering = Tempering(0, 1, 0.5, 1.5 if first.tempering is None else 0.5)
        case "hide" if first.parent is not None:
            hidden_LT = torch.ones(NUM_LAYERS, max(1, first.parent.segment.length), dtype=torch.bool)
            first.parent.excluded = Excluded.of(hidden_LT)
        case "less" | "move" | "swap" if first.context:
            one = first.context[0]
            other = {
                "less": replace(one, length=1),
                "move": replace(one, offset=one.offset - 1),
                "swap": replace(one, segment=copy_of(one.segment)),
            }[event]
            first.context = (other, *first.context[1:])


def copy_of(segment: Segment) -> Segment:
    copy = Segment(spec_of(Shape()), segment.capacity, segment.start)
    copy.length = segment.length
    return copy


@settings(max_examples=150, deadline=None)
@given(
    case=cases(),
    tiling=TILINGS,
    room=st.sampled_from((MANY, 3)),
    events=st.lists(st.sampled_from(EVENTS), min_size=1, max_size=40),
)
def test_carried_tables_are_those_built_anew(
    case: Case, tiling: Tiling | None, room: int, events: list[str]
) -> None:
    """Whatever happens between two steps."""
    step = decoding(case)
    branches = list(step.branches)
    most, carried = MANY, None
    for event in events:
        happen(event, step, branches)
        lanes = lanes_of(branches, 2 if event == "rows" else 1)
        built = plan_tables(lanes, step.spec, tiling, 2)
        if carried is not None and carried.advance(lanes):
            assert_same_tables(carried.tables, built)
            assert built.num_positions <= most
        else:
            most = built.num_positions + room
            carried = DecodeTables.of(lanes, built, most)
        if event != "rest":
            grow(branches)


@pytest.mark.parametrize("tiling", [None, FIXED, Tiling(16, 64)])
@pytest.mark.parametrize(
    "case",
    [crowd(1), crowd(8), Case(Shape(num_kv_heads=2), (), (BranchCase(0, 480, 1),))],
    ids=["one", "eight", "alone"],
)
def test_most_steps_of_answers_are_carried_over(case: Case, tiling: Tiling | None) -> None:
    step = Step(case)
    answers = [one for one in step.branches if one.parent is not None] or step.branches
    carried, num_built = None, 0
    for _ in range(300):
        lanes = lanes_of(answers)
        built = plan_tables(lanes, step.spec, tiling, 2)
        if carried is not None and carried.advance(lanes):
            assert_same_tables(carried.tables, built)
        else:
            carried, num_built = DecodeTables.of(lanes, built, MANY), num_built + 1
        grow(answers)
    # at first, whenever segments grow, and where a split ends
    assert num_built <= 1 + 6 + 300 // min(256, tiling.split_len if tiling else 256)


def test_tables_go_no_further_than_there_are_angles() -> None:
    step = Step(crowd(2))
    built = plan_tables(lanes_of(step.branches), step.spec, None, 2)
    carried = DecodeTables.of(lanes_of(step.branches), built, built.num_positions + 1)
    assert carried is not None
    for expected in (True, False):
        grow(step.branches)
        assert carried.advance(lanes_of(step.branches)) is expected


@needs_native
def test_every_bit_of_attention_is_that_of_a_plan_built_anew() -> None:
    step, twin = Step(crowd(3)), Step(crowd(3))
    backend = NativeBackend(step.spec)
    for _ in range(70):
        for one in (step, twin):
            lanes_of(one.branches)
        ours, theirs = step.run(backend), twin.run(NativeBackend(twin.spec))
        assert torch.equal(ours.out_HRD, theirs.out_HRD)
        assert all(map(torch.equal, (*ours.keys, *ours.values), (*theirs.keys, *theirs.values)))
        for one in (step, twin):
            grow(one.branches)


@needs_native
def test_a_plan_keeps_no_segment_alive() -> None:
    step = Step(crowd(2))
    backend = NativeBackend(step.spec)
    step.run(backend)
    segments = [weakref.ref(placement.segment) for branch in step.branches for placement in branch.seen()]
    del step
    gc.collect()
    assert not any(segment() for segment in segments)


@needs_native
def test_another_number_of_threads_is_another_plan() -> None:
    step = Step(crowd(2))
    backend, before = NativeBackend(step.spec), torch.get_num_threads()
    lanes = lanes_of(step.branches)
    try:
        torch.set_num_threads(2)
        first = backend.plan(lanes)
        grow(step.branches)
        torch.set_num_threads(1)
        assert backend.plan(lanes_of(step.branches)) is not first
    finally:
        torch.set_num_threads(before)
