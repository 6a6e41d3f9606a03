"""Drafts from the text itself: where they come from, how long they are, and when there are none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.engine.decoding.drafting import (
    FIRST_LEN,
    LONGEST_RUN,
    MOST_REST,
    SHORTEST_RUN,
    DraftCounts,
    Drafter,
    repeated,
)


def text_of(token_ids: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(token_ids, dtype=np.int32)


def searched(tokens: Sequence[int]) -> int | None:
    """``repeated`` by looking everywhere."""
    for length in range(min(LONGEST_RUN, len(tokens)), SHORTEST_RUN - 1, -1):
        for end in range(len(tokens) - 1, length - 1, -1):
            if list(tokens[end - length : end]) == list(tokens[-length:]):
                return end
    return None


def drafter_of(context: Sequence[int], own: Sequence[int], room: int = 64, longest: int = 16) -> Drafter:
    return Drafter(text_of(context), own, room, longest)


class TestWhereItStoodBefore:
    @settings(max_examples=300, deadline=None, derandomize=True)
    @given(st.lists(st.integers(0, 3), min_size=1, max_size=60))
    def test_equals_a_search_everywhere(self, tokens: list[int]) -> None:
        assert repeated(text_of(tokens)) == searched(tokens)

    def test_the_longest_run_decides(self) -> None:
        assert repeated(text_of([1, 2, 3, 9, 7, 2, 3, 8, 1, 2, 3])) == 3

    def test_of_equally_long_ones_the_last(self) -> None:
        assert repeated(text_of([2, 3, 9, 7, 2, 3, 8, 5, 2, 3])) == 6

    def test_a_single_token_is_no_run(self) -> None:
        assert repeated(text_of([3, 4, 5, 3])) is None


class TestDrafts:
    def test_what_stands_behind_the_last_tokens_in_the_context(self) -> None:
        assert drafter_of(range(10, 40), [7, 12, 13]).draft(16) == (14, 15, 16, 17)

    def test_generated_tokens_are_looked_for_and_found(self) -> None:
        drafter = drafter_of(range(10, 40), [7])
        assert drafter.draft(16) == ()
        for token_id in (20, 21):
            drafter.push(token_id)
        assert drafter.draft(16) == (22, 23, 24, 25)
        for token_id in (99, 98, 97, 20, 21, 99, 98):
            drafter.push(token_id)
        assert drafter.draft(16)[:4] == (97, 20, 21, 99), "what it said itself, too"

    def test_a_text_that_repeats_itself_goes_on_repeating(self) -> None:
        assert drafter_of((), [5, 6, 7, 5, 6]).draft(16) == (7, 5, 6, 7)
        assert drafter_of((), [5, 5, 5]).draft(16) == (5, 5, 5, 5)

    def test_no_more_than_there_are_rows(self) -> None:
        assert drafter_of(range(10, 40), [12, 13]).draft(3) == (14, 15, 16)

    def test_no_more_than_may_be_generated(self) -> None:
        drafter = drafter_of(range(10, 40), [11], room=5)
        for token_id, expected in ((12, (13, 14, 15)), (13, (14, 15)), (14, (15,)), (15, ())):
            drafter.push(token_id)
            assert drafter.draft(16) == expected

    def test_longer_while_they_are_right(self) -> None:
        drafter = drafter_of(range(10, 200), [12, 13], longest=20)
        lengths = []
        for _ in range(4):
            drafted = len(drafter.draft(64))
            lengths.append(drafted)
            drafter.judge(drafted, drafted)
        drafter.judge(20, 19)
        assert [*lengths, len(drafter.draft(64))] == [FIRST_LEN, 8, 16, 20, FIRST_LEN]

    def test_more_rarely_while_they_are_wrong(self) -> None:
        drafter = drafter_of(range(10, 40), [12, 13])
        rests, resting = [], 0
        for _ in range(100):
            if drafter.draft(16):
                rests.append(resting)
                resting = 0
                drafter.judge(4, 0)
            else:
                resting += 1
        assert rests[:7] == [0, 1, 3, 7, MOST_REST, MOST_REST, MOST_REST]
        while not drafter.draft(16):
            pass
        drafter.judge(4, 1)
        assert drafter.draft(16), "one that was right ends it"


def test_counts_what_became_of_drafts() -> None:
    counts = DraftCounts()
    counts.add(4, 4)
    counts.add(8, 3)
    assert counts == DraftCounts(num_drafts=2, drafted_tokens=12, accepted_tokens=7)
