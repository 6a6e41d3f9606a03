"""The controls: tokens that are chosen without looking, exactly as many as are asked for."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate, pairwise

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.engine.modes.epic import first_of_chunks
from shared.engine.modes.random import at_random

PROPERTY = settings(
    max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
chunk_lens = st.lists(st.one_of(st.integers(0, 3), st.integers(4, 60)), max_size=6)


@PROPERTY
@given(chunk_lens, st.floats(0, 1), st.integers(0, 2**63))
def test_controls_take_exactly_as_many_as_they_are_told(lens: list[int], part: float, seed: int) -> None:
    num = int(part * sum(lens))
    for chosen in (at_random(sum(lens), num, seed), first_of_chunks(lens, num)):
        assert len(chosen) == num
        assert list(chosen) == sorted(set(chosen))
        assert all(0 <= token < sum(lens) for token in chosen)


def test_random_tokens_depend_on_the_seed_alone_and_are_spread() -> None:
    assert at_random(100, 20, 7) == at_random(100, 20, 7) != at_random(100, 20, 8)
    times = Counter(token for seed in range(2000) for token in at_random(50, 10, seed))
    assert 300 < min(times[token] for token in range(50)) <= max(times.values()) < 500


@PROPERTY
@given(chunk_lens, st.floats(0, 1))
def test_leading_tokens_are_the_first_of_every_chunk_but_the_first(lens: list[int], part: float) -> None:
    num = int(part * sum(lens))
    chosen = set(first_of_chunks(lens, num))
    taken = []
    for begin, end in pairwise([0, *accumulate(lens)]):
        taken.append(sum(begin <= token < end for token in chosen))
        assert chosen >= set(range(begin, begin + taken[-1]))
    assert sum(taken[:1]) == max(0, num - sum(lens[1:]))
    open_ones = [count for count, length in zip(taken[1:], lens[1:], strict=True) if count < length]
    assert max(taken[1:], default=0) - min(open_ones, default=max(taken[1:], default=0)) <= 1
