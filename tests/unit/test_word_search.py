"""Texts that are found by a question's words."""

from __future__ import annotations

from cluster.word_search import found_by_words

TEXTS = ["The lease was signed by Ann.", "The roof is red.", "Ann likes the roof.", "Nothing of it."]


def test_a_text_is_found_by_the_words_that_it_has_rare_ones_first() -> None:
    assert found_by_words(["Who signed the lease?"], TEXTS, 2)[0] == 0
    assert found_by_words(["What about the red roof of Ann?"], TEXTS, 2) == [1, 2]


def test_questions_take_turns() -> None:
    assert found_by_words(["Who signed the lease?", "Is the roof red?"], TEXTS, 2) == [0, 1]


def test_there_are_never_more_than_texts() -> None:
    assert sorted(found_by_words(["Ann?"], TEXTS, 9)) == [0, 1, 2, 3]
    assert found_by_words(["Ann?"], [], 3) == []


def test_a_text_that_says_the_answer_comes_first() -> None:
    assert found_by_words(["Who signed the lease?"], TEXTS, 1, [TEXTS[2].upper()[2:9]]) == [2]


def test_an_answer_that_no_text_says_counts_by_its_words() -> None:
    assert found_by_words(["Who?"], TEXTS, 1, ["Ann signed the lease."]) == [0]
    assert found_by_words(["Which colour is it?"], TEXTS, 1, ["The roof of the house is red."]) == [1]
