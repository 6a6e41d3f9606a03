"""The benchmark of pasted documents: what is asked, and what is found."""

from __future__ import annotations

import pytest

from load_tests.pasted.documents import prose
from load_tests.pasted.pairs import AskedOnce, AskedTwice, ask_twice, findings


def test_a_document_has_nearly_as_many_tokens_as_asked_for_and_each_seed_another_one() -> None:
    texts = [prose(f"{seed}", 120, lambda text: len(text.split())) for seed in range(5)]
    assert all(100 < len(text.split()) <= 120 for text in texts)
    assert len(set(texts)) == 5
    assert texts[0] == prose("0", 120, lambda text: len(text.split()))


async def test_the_second_time_the_same_documents_come_in_another_order() -> None:
    asked: list[list[str]] = []

    async def ask(message: str) -> AskedOnce:
        asked.append(message.split("\n\n"))
        return AskedOnce(1.0 / len(asked), 100, 10 * len(asked), 0)

    pair = await ask_twice(ask, ["a", "b", "c"], "Why?", seed=1)
    assert (pair.first.ttft_s, pair.again.ttft_s) == (1.0, 0.5)
    assert asked[0] == ["a", "b", "c", "Why?"]
    assert sorted(asked[1][:3]) == ["a", "b", "c"]
    assert asked[1][3] == "Why?"
    assert all(one != other for one, other in zip(asked[0][:3], asked[1][:3], strict=True))


def test_the_ratio_is_of_pairs_with_its_interval() -> None:
    pairs = [AskedTwice(AskedOnce(i, 200, 20, 150), AskedOnce(i / 4, 200, 180, 0)) for i in (1.0, 2.0, 3.0)]
    rows = {row.name: row for row in findings(pairs)}
    ratio = rows["ttft_again_over_first"]
    assert (ratio.value, ratio.min, ratio.max) == pytest.approx((0.25, 0.25, 0.25))
    assert rows["ttft_pasted_again"].value == pytest.approx(500)
    assert rows["ttft_pasted_again"].baseline == pytest.approx(2000)
    names = ("cached_first", "cached_again", "written_first", "written_again")
    assert [rows[name].value for name in names] == pytest.approx([10, 90, 75, 0])
