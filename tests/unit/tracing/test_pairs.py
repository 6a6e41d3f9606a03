"""What tracing costs is found in pairs of the same question."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from load_tests.tracing.pairs import Pair, Times, ask_in_pairs, findings
from shared.answer import AnswerDone, AnswerEvent
from shared.generation.told import TokenEvent


async def test_each_question_is_asked_both_ways_and_which_comes_first_alternates() -> None:
    asked = []

    async def ask(number: int, traced: bool) -> AsyncGenerator[AnswerEvent, None]:
        asked.append((number, traced))
        yield TokenEvent(0, 0, 1, "a", 0.0)
        yield AnswerDone("r")

    pairs = await ask_in_pairs(ask, 3)
    assert asked == [(0, False), (0, True), (1, True), (1, False), (2, False), (2, True)]
    assert all(0 < one.first_token_s <= one.total_s for pair in pairs for one in (pair.quiet, pair.traced))


def test_what_was_added_is_a_time_and_a_share_with_their_interval() -> None:
    quiet = [100.0 + i for i in range(50)]
    pairs = [Pair(Times(q / 2000, q / 1000), Times(q / 2000, q / 1000 + 0.001)) for q in quiet]
    rows = {row.name: row for row in findings(pairs)}
    assert rows["first token, added by tracing"].value == pytest.approx(0.0, abs=1e-9)
    assert rows["whole answer, added by tracing"].value == pytest.approx(100 / 124.5)
    time = rows["whole answer, time added by tracing"]
    assert (time.value, time.min, time.max) == pytest.approx((1.0, 1.0, 1.0))
    assert time.unit == "ms"
    assert rows["whole answer, traced, p50"].baseline == pytest.approx(124.5)
