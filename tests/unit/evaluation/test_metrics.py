"""Scores: what their authors' definitions say of small answers."""

from __future__ import annotations

import pytest

from cluster.evaluation.metrics import Metric, cut_short, lcs_len


@pytest.mark.parametrize(
    ("metric", "text", "references", "score"),
    [
        (Metric.COVERAGE, "They are 12 and 34.", [["12"], ["34"], ["56"], ["78"]], 0.5),
        (Metric.COVERAGE, "ABCDE, FGHIJ", [["abcde"], ["FGHIJ"]], 1.0),
        (Metric.COVERAGE, "", [["12"]], 0.0),
        (Metric.PART, "only 34", [["12"], ["34"]], 1.0),
        (Metric.PART, "none", [["12"], ["34"]], 0.0),
        (Metric.ALL_TOLD, "On January 2, 2022.", [["Jan 2", "January 2"]], 1.0),
        (Metric.ALL_TOLD, "It was 6.4%.", [["6.4%"], ["18%"]], 0.0),
        (Metric.ALL_TOLD, "在 1 月 3 日", [["1月3日"]], 1.0),
        (Metric.ALL_TOLD, "6.4%, but there is insufficient information in documents.", [["6.4%"]], 0.0),
        (Metric.REJECTION, "I can not answer because of the insufficient information.", [["x"]], 1.0),
        (Metric.REJECTION, "文档信息不足，因此我无法回答", [["x"]], 1.0),
        (Metric.REJECTION, "It is x.", [["x"]], 0.0),
        (Metric.EXACT, "The Broncos!", [["Panthers", "broncos"]], 1.0),
        (Metric.EXACT, "It is the Broncos", [["broncos"]], 0.0),
        (Metric.SUBSPAN, "It was Wilhelm Röntgen, I think.", [["Wilhelm Röntgen"]], 1.0),
        (Metric.SUBSPAN, "It was Röntgen.", [["Wilhelm Röntgen"]], 0.0),
        (Metric.SUBSPAN, "It was Röntgen.", [["", "The The"]], 0.0),
        (Metric.SUBSPAN, "I like The The!", [["The The"]], 1.0),
        (Metric.PART, "only 34", [["", " "]], 0.0),
        (Metric.F1, "It was the Denver Broncos", [["Broncos", "Denver Broncos"]], 2 / 3),
        (Metric.F1, "", [["Broncos"]], 0.0),
        (Metric.ROUGE_L, "the cat sat", [["the cat ran away", "a dog"]], 4 / 7),
        (Metric.ROUGE_L, "", [["a"]], 0.0),
        (Metric.ROUGE_L_ZH, "北京，上海", [["上海", "北京和上海"]], 8 / 9),
        (Metric.F1_ZH, "上海北京。", [["北京上海"]], 1.0),
        (Metric.CHOICE, "The answer is B.", [["B"]], 1.0),
        (Metric.CHOICE, "C", [["B"]], 0.0),
        (Metric.CHOICE, "Cats", [["C"]], 0.0),
        (Metric.NUMBER, "3 + 4 = 7, so 1,250.00 in all", [["1250"]], 1.0),
        (Metric.NUMBER, "nobody knows", [["7"]], 0.0),
    ],
)
def test_an_answer_scores_as_its_suite_has_it(
    metric: Metric, text: str, references: list[list[str]], score: float
) -> None:
    assert metric.score(text, references) == pytest.approx(score)


@pytest.mark.parametrize("metric", Metric)
def test_every_metric_scores_from_0_to_1(metric: Metric) -> None:
    for text in ("", "A", "7", "a whole sentence, 12 words long: 不足"):
        assert 0 <= metric.score(text, [["7", "A"]]) <= 1


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("The number is 566362.", 1.0),  # CacheClip's case: 5663623
        ("The number is 5663623.", 0.0),
        ("The number is 566.", 0.0),  # less than half of it
        ("The number is 1234567.", 0.0),
        ("The number is 566362, no, 5663623.", 0.0),
        ("", 0.0),
    ],
)
def test_a_number_is_cut_short_where_only_a_part_of_it_is_told(text: str, share: float) -> None:
    assert cut_short(text, [["5663623"]]) == share
    assert cut_short(text, [["5663623"], ["9999999"]]) == share / 2


def test_the_longest_common_subsequence_may_have_gaps() -> None:
    assert lcs_len("abcbdab", "bdcaba") == 4
    assert lcs_len("", "abc") == 0
