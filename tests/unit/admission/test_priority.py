"""What is urgent goes first, and nothing waits for ever."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from shared.admission.priority import MOST_OVERTAKEN, first_of, in_order, last_of, went_first


@dataclass(eq=False)
class Request:
    number: int
    priority: int = 0
    overtaken: int = 0


def line_of(*priorities: int) -> list[Request]:
    return [Request(number, priority) for number, priority in enumerate(priorities)]


def numbers(line: list[Request]) -> list[int]:
    return [request.number for request in line]


def test_lower_goes_earlier_and_of_equals_the_oldest() -> None:
    line = line_of(0, 5, -1, 0, -1)
    assert first_of(line).number == 2
    assert last_of(line).number == 1
    assert last_of(line_of(3, 3)).number == 1
    assert numbers(in_order(line)) == [2, 4, 0, 3, 1]


def test_whoever_was_overtaken_often_enough_is_due() -> None:
    line = line_of(9, 5, -1)
    line[0].overtaken = MOST_OVERTAKEN - 1
    went_first(line[2], line)
    assert [request.overtaken for request in line] == [MOST_OVERTAKEN, 1, 0]
    assert first_of(line).number == 0
    assert numbers(in_order(line)) == [0, 2, 1]


arrivals = st.lists(st.one_of(st.integers(-3, 3), st.none()), max_size=150)


@given(arrivals)
def test_each_is_overtaken_by_a_bounded_number_and_urgent_ones_wait_for_none_that_is_not_due(
    steps: list[int | None],
) -> None:
    """A number: a request of this priority comes; None: one goes."""
    line: list[Request] = []
    all_ever: list[Request] = []
    gone: list[Request] = []
    for step in (*steps, *[None] * len(steps)):
        if step is not None:
            request = Request(len(all_ever), step)
            line.append(request)
            all_ever.append(request)
        elif line:
            called = first_of(line)
            assert called is in_order(line)[0]
            due = called.overtaken >= MOST_OVERTAKEN
            assert due or all(other.priority >= called.priority for other in line)
            went_first(called, line)
            line.remove(called)
            gone.append(called)
    for place, request in enumerate(gone):
        later = [other for other in gone[:place] if other.number > request.number]
        assert len(later) == request.overtaken <= MOST_OVERTAKEN
    assert not line


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, MOST_OVERTAKEN)), max_size=60))
def test_nobody_stands_further_back_than_he_may_be_pushed(given: list[tuple[int, int]]) -> None:
    line = [Request(number, *told) for number, told in enumerate(given)]
    order = in_order(line)
    assert sorted(numbers(order)) == numbers(line)
    if all(request.priority == 0 for request in line):
        assert order == line
