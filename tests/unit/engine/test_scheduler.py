"""Who runs next, by counts alone."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.engine.scheduler import IDLE_ROWS, TILE, Demand, Scheduler, Slice
from shared.engine_config import EngineConfig


@dataclass(frozen=True)
class Branch:
    name: str
    num_pending: int
    num_done: int = 0
    whole: bool = False
    idle: bool = False
    late: bool = False


def scheduler(
    max_step_tokens: int = 100,
    private_bytes: int = 100,
    branches: int = 4,
    batch_invariant: bool = False,
    late_rows: int = 512,
) -> Scheduler:
    return Scheduler(
        EngineConfig(
            max_step_tokens=max_step_tokens,
            private_bytes=private_bytes,
            max_running_branches=branches,
            batch_invariant=batch_invariant,
            late_rows=late_rows,
        )
    )


def rows(passes: list[list[Slice[Branch]]]) -> list[list[tuple[str, int]]]:
    return [[(piece.work.name, piece.num_rows) for piece in one] for one in passes]


def test_decoding_branches_get_their_row_before_a_long_prefill() -> None:
    works = [Branch("prefill", 500), Branch("first", 1), Branch("second", 1)]
    assert rows(scheduler(10).pick(works)) == [[("first", 1), ("second", 1), ("prefill", 8)]]


def test_prefills_share_what_is_left_in_order_of_arrival() -> None:
    works = [Branch("old", 6), Branch("young", 50), Branch("youngest", 50)]
    assert rows(scheduler(10).pick(works)) == [[("old", 6), ("young", 4)]]


def test_what_nobody_waits_for_takes_short_steps() -> None:
    works = [Branch("idle", 500, idle=True), Branch("prefill", 500)]
    assert rows(scheduler(1000).pick(works)) == [[("idle", IDLE_ROWS), ("prefill", 500)]]


def test_a_budget_that_is_used_up_leaves_the_rest_for_the_next_step() -> None:
    works = [Branch(name, 1) for name in "abc"]
    assert rows(scheduler(2).pick(works)) == [[("a", 1), ("b", 1)]]


def test_nothing_to_do_is_no_pass() -> None:
    assert scheduler().pick([]) == []


def test_what_is_late_has_what_others_leave_up_to_a_budget_of_its_own() -> None:
    late = [Branch("late", 500, late=True), Branch("later", 500, late=True)]
    others = [Branch("decoding", 1), Branch("prefill", 200)]
    first = [("decoding", 1), ("prefill", 200)]
    pick = scheduler(1000, late_rows=600).pick
    assert rows(pick([*late, *others])) == [[*first, ("late", 500), ("later", 100)]]
    assert rows(scheduler(300, late_rows=600).pick([*late, *others])) == [[*first, ("late", 99)]]
    assert rows(scheduler(201, late_rows=600).pick([*late, *others])) == [first]
    assert rows(pick([*late, *others], queued=True)) == [first]
    assert pick(late, queued=True) == scheduler(1000, late_rows=0).pick(late) == []


def test_a_whole_work_has_a_pass_of_its_own_whatever_its_length() -> None:
    works = [Branch("answer", 1), Branch("blended", 500, whole=True), Branch("question", 5)]
    assert rows(scheduler(10).pick(works)) == [[("answer", 1)], [("blended", 500)]]
    assert rows(scheduler(510).pick(works)) == [[("answer", 1), ("question", 5)], [("blended", 500)]]
    both = [Branch("old", 5, whole=True), Branch("young", 5, whole=True)]
    assert rows(scheduler(10).pick(both)) == [[("old", 5)], [("young", 5)]]


def test_under_batch_invariance_every_slice_is_a_pass_cut_at_multiples_of_the_tile() -> None:
    works = [Branch("begun", 200, num_done=10), Branch("new", 200), Branch("answer", 1, num_done=70)]
    cut = rows(scheduler(1000, batch_invariant=True).pick(works))
    assert cut == [[("answer", 1)], [("begun", TILE - 10)], [("new", TILE)]]


@given(
    works=st.lists(st.tuples(st.integers(1, 200), st.integers(0, 200), st.booleans()), max_size=12),
    budget=st.integers(1, 300),
    invariant=st.booleans(),
)
def test_a_step_stays_within_its_budget_and_always_gets_on(
    works: list[tuple[int, int, bool]], budget: int, invariant: bool
) -> None:
    branches = [Branch(str(i), pending, done, whole) for i, (pending, done, whole) in enumerate(works)]
    passes = scheduler(budget, batch_invariant=invariant).pick(branches)
    slices = [piece for one in passes for piece in one]
    assert bool(slices) == bool(branches)
    assert len({piece.work.name for piece in slices}) == len(slices)
    for piece in slices:
        assert 0 < piece.num_rows <= piece.work.num_pending
        assert not piece.work.whole or piece.num_rows == piece.work.num_pending
        if invariant and not piece.work.whole:
            done, end = piece.work.num_done, piece.work.num_done + piece.num_rows
            assert done // TILE == (end - 1) // TILE
    cut = [piece.num_rows for piece in slices if not piece.work.whole]
    assert sum(cut[:-1]) < budget, "tiles are fixed: under batch invariance the last may be too much"
    assert invariant or sum(cut) <= budget
    assert not any(piece.work.whole and len(one) > 1 for one in passes for piece in one)


def test_alone_anything_may_run() -> None:
    assert scheduler(private_bytes=10).fits(Demand(99, 1000), [])


@pytest.mark.parametrize(
    ("candidate", "fits"), [(Demand(2, 40), True), (Demand(3, 40), False), (Demand(2, 41), False)]
)
def test_beside_others_it_needs_room_for_its_branches_and_its_kv(candidate: Demand, fits: bool) -> None:
    assert scheduler().fits(candidate, [Demand(1, 30), Demand(1, 30)]) is fits


def test_the_youngest_pause_as_few_as_will_do_and_never_the_oldest() -> None:
    running = [Demand(1, 80), Demand(1, 10), Demand(1, 40), Demand(1, 20)]
    limits = (150, 149, 130, 129, 90, 89, 1)
    assert [scheduler(private_bytes=limit).num_to_pause(running) for limit in limits] == [0, 1, 1, 2, 2, 3, 3]
    assert scheduler(private_bytes=1).num_to_pause([]) == 0
