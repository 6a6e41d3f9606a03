"""The three forms of grouping against slow twins written another way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from shared.errors import InvalidRequest
from shared.generation.selection import Grouping
from shared.selection.grouping import best_tokens, group, num_asked, until
from shared.selection.mapping import UNTOUCHED

PROPERTY = settings(
    max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
chunk_lens = st.lists(st.one_of(st.integers(0, 3), st.integers(4, 60)), max_size=6)
ratios = st.one_of(st.sampled_from((0.0, 0.01, 0.1, 0.2, 0.5, 0.9, 1.0)), st.floats(0, 1))


@st.composite
def contexts(draw: st.DrawFn) -> tuple[list[float], list[int]]:
    """Scores of all chunks in a row, with many ties, few or none; and the chunks' lengths."""
    lens = draw(chunk_lens)
    levels, seed = draw(st.sampled_from((1, 3, 40, 1 << 24))), draw(st.integers(0, 999))
    return [int(x) / levels for x in np.random.default_rng(seed).integers(0, levels, sum(lens))], lens


def array(scores: Sequence[float]) -> NDArray[np.float32]:
    return np.array(scores, dtype=np.float32)


def chunks_of(lens: Sequence[int]) -> list[range]:
    return [range(sum(lens[:i]), sum(lens[: i + 1])) for i in range(len(lens))]


def twin(scores: Sequence[float], lens: Sequence[int], ratio: float, form: Grouping) -> set[int]:
    everything = range(len(scores))
    if ratio == 1:
        return set(everything)
    num = math.floor(ratio * len(scores) + 0.5)
    picked = set(sorted(everything, key=lambda t: (-scores[t], t))[:num])
    if form is Grouping.SLIDING:
        windows = [chunk[i : i + 8] for chunk in chunks_of(lens) for i in range(max(1, len(chunk) - 7))]
    else:
        windows = [chunk[i : i + 8] for chunk in chunks_of(lens) for i in range(0, len(chunk), 8)]
    windows = [window for window in windows if len(window)]
    chosen: set[int] = set()
    if form is not Grouping.BUDGET:
        for window in windows:
            if Fraction(len(picked.intersection(window)), len(window)) >= Fraction(5, 8):
                chosen.update(window)
        return chosen
    for window in sorted(windows, key=lambda w: (-math.fsum(scores[t] for t in w) / len(w), w[0])):
        if len(chosen) >= num:
            break
        chosen.update(window)
    return chosen


class TestForms:
    @pytest.mark.parametrize("form", list(Grouping), ids=lambda form: form.value)
    @PROPERTY
    @given(contexts(), ratios)
    def test_every_form_is_its_slow_twin(
        self, form: Grouping, context: tuple[list[float], list[int]], ratio: float
    ) -> None:
        scores, lens = [float(x) for x in array(context[0])], context[1]
        ours = group(array(scores), lens, ratio, form)
        assert set(np.flatnonzero(ours).tolist()) == twin(scores, lens, ratio, form)

    @pytest.mark.parametrize("form", list(Grouping), ids=lambda form: form.value)
    @PROPERTY
    @given(contexts())
    def test_ratio_1_takes_all_and_0_none(
        self, form: Grouping, context: tuple[list[float], list[int]]
    ) -> None:
        scores, lens = array(context[0]), context[1]
        assert group(scores, lens, 1.0, form).all()
        assert not group(scores, lens, 0.0, form).any()

    @PROPERTY
    @given(contexts(), ratios)
    def test_the_budget_is_met_within_one_window(
        self, context: tuple[list[float], list[int]], ratio: float
    ) -> None:
        scores, lens = context
        num_chosen, num = (
            group(array(scores), lens, ratio, Grouping.BUDGET).sum(),
            num_asked(ratio, len(scores)),
        )
        assert num <= num_chosen < num + 8

    @PROPERTY
    @given(contexts(), ratios, ratios)
    def test_a_larger_ratio_never_takes_less(
        self, context: tuple[list[float], list[int]], one: float, other: float
    ) -> None:
        for form in Grouping:
            small, large = (group(array(context[0]), context[1], r, form) for r in sorted((one, other)))
            assert not (small & ~large).any()

    def test_windows_restart_at_every_chunk_and_shorter_ones_need_the_same_share(self) -> None:
        lens = [10, 0, 1, 3]  # windows of 8, 2, 1, 3: they need 5, 2, 1, 2
        scores = array([0.9] * 4 + [0.1] * 4 + [0.9, 0.1] + [0.9] + [0.9, 0.1, 0.9])
        chosen = group(scores, lens, 8 / 14, Grouping.PAPER)
        assert np.flatnonzero(chosen).tolist() == [10, 11, 12, 13]

    @pytest.mark.parametrize(
        ("tail", "needed"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 4), (6, 4), (7, 5), (8, 5)]
    )
    def test_a_short_tail_is_a_window_of_its_own_that_needs_the_same_share(
        self, tail: int, needed: int
    ) -> None:
        for picked in (needed - 1, needed):
            scores = array([0.0] * 8 + [1.0] * picked + [0.0] * (tail - picked))
            chosen = group(scores, [8 + tail], picked / (8 + tail), Grouping.PAPER)
            assert chosen.tolist() == [False] * 8 + [picked == needed] * tail

    def test_a_short_tail_is_no_window_of_the_sliding_form_but_covered_by_the_last_full_one(self) -> None:
        scores = array([0.0] * 8 + [1.0, 1.0])
        assert group(scores, [10], 0.2, Grouping.SLIDING).sum() == 0  # 2 of the last 8
        scores = array([0.0] * 5 + [1.0] * 5)
        assert np.flatnonzero(group(scores, [10], 0.5, Grouping.SLIDING)).tolist() == list(range(2, 10))
        assert group(array([1.0, 1.0, 0.0]), [3], 2 / 3, Grouping.SLIDING).sum() == 3  # a short chunk

    def test_a_short_tail_competes_by_its_mean_for_the_budget(self) -> None:
        scores = array([0.5] * 8 + [0.9, 0.3])
        chosen = group(scores, [10], 0.1, Grouping.BUDGET)
        assert np.flatnonzero(chosen).tolist() == [8, 9]

    def test_sliding_windows_find_what_lies_across_a_border(self) -> None:
        scores = array([0.0] * 5 + [1.0] * 6 + [0.0] * 5)
        assert group(scores, [16], 6 / 16, Grouping.PAPER).sum() == 0
        assert np.flatnonzero(group(scores, [16], 6 / 16, Grouping.SLIDING)).tolist() == list(range(2, 14))

    def test_independent_picks_at_a_fifth_leave_a_hundredth_after_the_paper_form_and_a_fifth_after_budget(
        self,
    ) -> None:
        scores, lens = np.random.default_rng(0).random(51_200).astype(np.float32), [512] * 100
        assert group(scores, lens, 0.2, Grouping.PAPER).sum() / len(scores) < 0.013
        assert 0.2 <= group(scores, lens, 0.2, Grouping.BUDGET).sum() / len(scores) < 0.2002

    def test_what_is_no_number_goes_last(self) -> None:
        assert np.flatnonzero(best_tokens(array([math.nan, 0.1, math.inf, math.nan]), 3)).tolist() == [
            0,
            1,
            2,
        ]
        assert best_tokens(array([-math.inf, 0.1, -0.1]), 2).tolist() == [False, True, True]
        scores = array([math.nan] * 8 + [0.1] * 8 + [0.2] * 8)
        assert np.flatnonzero(group(scores, [24], 0.5, Grouping.BUDGET)).tolist() == list(range(8, 24))

    @pytest.mark.parametrize("ratio", [-0.01, 1.01, math.nan, math.inf])
    def test_a_ratio_out_of_range_is_refused_by_name(self, ratio: float) -> None:
        with pytest.raises(InvalidRequest, match="recompute_ratio"):
            group(array([1.0]), [1], ratio)

    def test_ranks_that_mean_never_are_never_taken(self) -> None:
        assert until(np.array([3, UNTOUCHED, 1, 1]), 3).tolist() == [True, False, True, True]
        assert until(np.array([UNTOUCHED, 0]), 2).tolist() == [False, True]
        assert until(np.array([UNTOUCHED]), 1).tolist() == [False]
