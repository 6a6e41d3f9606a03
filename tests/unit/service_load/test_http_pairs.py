"""What HTTP costs is found in pairs of the same questions."""

from __future__ import annotations

import pytest

from load_tests.http.pairs import DoorPair, findings, first_token_ms, in_pairs, token_ms
from load_tests.service.driver import Ask, OnToken
from load_tests.service.sample import Reply
from shared.generation.told import Timings, Usage


def asked(name: str, calls: list[tuple[str, int]]) -> Ask:
    async def ask(number: int, on_token: OnToken) -> Reply:
        calls.append((name, number))
        on_token((0, 0))
        on_token((0, 0))
        return Reply(Usage(10, 5, 5, 5), Timings())

    return ask


async def test_every_question_goes_both_ways_and_which_comes_first_alternates() -> None:
    calls: list[tuple[str, int]] = []
    pairs = await in_pairs(first_token_ms, asked("grpc", calls), asked("http", calls), 3)
    assert calls == [("grpc", 0), ("http", 0), ("http", 1), ("grpc", 1), ("grpc", 2), ("http", 2)]
    assert all(pair.grpc >= 0 and pair.http >= 0 for pair in pairs)


async def test_streams_are_asked_at_once_with_numbers_of_their_own() -> None:
    calls: list[tuple[str, int]] = []
    pairs = await in_pairs(token_ms(3), asked("grpc", calls), asked("http", calls), 2)
    assert [number for name, number in calls if name == "http"] == [0, 1, 2, 3, 4, 5]
    assert len(pairs) == 2


def test_what_was_added_stands_beside_its_aim() -> None:
    both, added = findings("ttft", [DoorPair(20.0 + i, 22.0 + i) for i in range(9)], aim_ms=3.0)
    assert (both.name, both.value, both.baseline) == ("ttft_http", 26.0, 24.0)
    assert (added.name, added.limit, added.n) == ("ttft_http_added", 3.0, 9)
    assert (added.value, added.min, added.max) == pytest.approx((2.0, 2.0, 2.0))
