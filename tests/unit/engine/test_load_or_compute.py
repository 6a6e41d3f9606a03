"""What loading and computing will take, by what they took, and which of them is chosen: without clocks."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.engine.kv.estimates import Estimates, LoadProgress, RunningMean
from shared.engine.kv.load_or_compute import Awaited, Rows, worth_computing

MB = 1 << 20


class TestRunningMean:
    def test_nothing_is_known_of_what_was_never_seen(self) -> None:
        assert RunningMean().mean is None

    def test_large_ones_weigh_more_and_old_ones_less(self) -> None:
        mean = RunningMean()
        mean.add(1.0, 10, kept=0.5)
        mean.add(6.0, 20, kept=0.5)
        assert mean.mean == pytest.approx((0.5 + 6) / (5 + 20))


class TestEstimates:
    def test_a_tier_is_as_quick_as_it_was_lately(self) -> None:
        estimates = Estimates()
        for _ in range(30):
            estimates.read("disk", 1.0, 10 * MB)
        for _ in range(30):
            estimates.read("objects", 8.0, 10 * MB)
        assert estimates.remaining_s(LoadProgress(0.0, 20 * MB, 5.0, "disk"), 5.0) == pytest.approx(2.0)
        assert estimates.remaining_s(LoadProgress(0.0, 20 * MB, 5.0, "objects"), 6.0) == pytest.approx(15.0)
        for _ in range(30):
            estimates.read("objects", 1.0, 10 * MB)
        assert estimates.remaining_s(LoadProgress(0.0, 20 * MB, 5.0, "objects"), 5.0) == pytest.approx(
            2, 0.02
        )

    def test_until_it_is_found_a_chunk_may_be_where_reading_is_quickest(self) -> None:
        estimates = Estimates()
        estimates.found(0.5)
        estimates.read("disk", 1.0, MB)
        estimates.read("objects", 8.0, MB)
        assert estimates.remaining_s(LoadProgress(10.0, MB), 10.25) == pytest.approx(1.25)

    def test_what_is_late_or_was_never_seen_takes_as_long_again(self) -> None:
        estimates = Estimates()
        assert estimates.remaining_s(LoadProgress(1.0, MB), 3.5) == 2.5
        assert estimates.remaining_s(LoadProgress(1.0, MB, 2.0, "disk"), 3.5) == 1.5
        estimates.read("disk", 1.0, MB)
        assert estimates.remaining_s(LoadProgress(1.0, MB, 2.0, "disk"), 3.5) == 1.5

    def test_a_load_that_was_given_up_counts_if_it_was_late(self) -> None:
        estimates, load = Estimates(), LoadProgress(0.0, MB, 0.0, "disk")
        estimates.read("disk", 1.0, MB)
        estimates.given_up(load, 0.5)
        assert estimates.reading["disk"].mean == 1.0 / MB
        estimates.given_up(load, 4.0)
        assert estimates.remaining_s(load, 0.0) == pytest.approx((0.8 + 4) / 1.8)
        estimates.given_up(LoadProgress(0.0, MB), 3.0)
        assert estimates.finding.mean == 3.0, "it was not even found"

    def test_passes_of_few_rows_count_until_there_was_one_of_many(self) -> None:
        estimates = Estimates()
        assert estimates.compute_s(100) is None
        estimates.computed(0.5, 5)
        assert estimates.compute_s(100) == pytest.approx(10.0)
        estimates.computed(1.0, 100)
        estimates.computed(0.5, 5)
        assert estimates.compute_s(100) == pytest.approx(1.0)


def rows(free: int = 512, ahead: int = 0, row_s: float | None = 0.001) -> Rows:
    return Rows(free, ahead, row_s)


class TestDecision:
    def test_a_chunk_that_comes_later_than_it_is_computed_is_computed(self) -> None:
        assert worth_computing([Awaited("a", 1.0, 500)], rows(), 0.1) == ("a",)
        assert worth_computing([Awaited("a", 0.4, 500)], rows(), 0.1) == ()

    @pytest.mark.parametrize("without", [rows(free=0), rows(row_s=None), rows(ahead=501)])
    def test_not_without_free_rows_nor_unless_it_is_known_how_long_it_takes(self, without: Rows) -> None:
        assert worth_computing([Awaited("a", 1.0, 500)], without, 0.0) == ()

    def test_not_for_less_than_is_to_be_saved_nor_for_less_than_a_tenth(self) -> None:
        assert worth_computing([Awaited("a", 0.55, 500)], rows(), 0.1) == ()
        assert worth_computing([Awaited("a", 10.0, 9500)], rows(), 0.1) == ()
        assert worth_computing([Awaited("a", 10.0, 9000)], rows(), 0.1) == ("a",)

    def test_computing_some_does_not_help_while_others_come_as_late(self) -> None:
        late = [Awaited(key, 1.0, 400) for key in "abc"]
        assert worth_computing(late, rows(), 0.1) == ()
        assert set(worth_computing(late[:2], rows(), 0.1)) == {"a", "b"}

    def test_the_last_to_arrive_are_computed_where_the_others_come_earlier(self) -> None:
        awaited = [Awaited("soon", 0.2, 400), Awaited("late", 2.0, 400), Awaited("later", 3.0, 400)]
        assert worth_computing(awaited, rows(), 0.1) == ("later", "late")

    def test_a_chunk_that_cannot_be_computed_is_waited_for_and_so_are_those_before_it(self) -> None:
        awaited = [Awaited("never", 2.0, None), Awaited("late", 1.5, 100)]
        assert worth_computing(awaited, rows(), 0.1) == ()
        assert worth_computing([Awaited("never", 0.5, None), awaited[1]], rows(), 0.1) == ("late",)

    def test_what_is_missing_of_its_chain_counts_and_once_for_chunks_that_share_it(self) -> None:
        chain = {"header": 300, "first": 300}
        assert worth_computing([Awaited("a", 0.65, 100, chain)], rows(), 0.1) == ()
        both = [Awaited("a", 1.0, 100, chain), Awaited("b", 1.0, 100, {"header": 300})]
        assert set(worth_computing(both, rows(), 0.1)) == {"a", "b"}

    def test_a_chunk_that_others_stand_behind_is_computed_once(self) -> None:
        awaited = [Awaited("b", 1.0, 300, {"a": 400}), Awaited("a", 0.9, 400)]
        assert worth_computing(awaited, rows(), 0.1) == ("b", "a")
        apart = [Awaited("b", 1.0, 300, {"link:a": 400}), Awaited("a", 0.9, 400)]
        assert worth_computing(apart, rows(), 0.1) == ()

    def test_where_the_last_to_arrive_cannot_be_computed_nothing_is(self) -> None:
        assert worth_computing([Awaited("a", 1.0, 100), Awaited("b", 0.5, 100)], rows(), 0.1) == ("a", "b")
        assert worth_computing([Awaited("a", 1.0, None), Awaited("b", 0.5, 100)], rows(), 0.1) == ()

    @settings(deadline=None)
    @given(
        awaited=st.lists(st.tuples(st.floats(0, 5), st.none() | st.integers(1, 2000)), max_size=6),
        ahead=st.integers(0, 1000),
        saved_s=st.floats(0, 0.5),
    )
    def test_what_is_computed_saves_what_it_is_to_save(
        self, awaited: list[tuple[float, int | None]], ahead: int, saved_s: float
    ) -> None:
        chunks = [Awaited(str(i), arrives_in_s, count) for i, (arrives_in_s, count) in enumerate(awaited)]

        def ready_in_s(computed: Collection[Awaited]) -> float:
            waits = [chunk.arrives_in_s for chunk in chunks if chunk not in computed]
            num_rows = ahead + sum(chunk.rows or 0 for chunk in computed)
            return max([0.001 * num_rows if computed else 0.0, *waits])

        keys = worth_computing(chunks, rows(ahead=ahead), saved_s)
        chosen = [chunk for chunk in chunks if chunk.key in keys]
        loaded_s, all_s = ready_in_s(()), ready_in_s(chunks)
        saves = max(saved_s, 0.1 * loaded_s)
        assert not chosen or loaded_s - ready_in_s(chosen) >= saves - 1e-9
        assert all(chunk.rows is not None and chunk.arrives_in_s > 0.001 * ahead for chunk in chosen)
        if chunks and all(chunk.rows is not None and chunk.arrives_in_s > all_s for chunk in chunks):
            assert (chosen == chunks) == (loaded_s - all_s >= saves) or abs(loaded_s - all_s - saves) < 1e-9
