"""Contexts and questions are as they are said to be."""

from __future__ import annotations

import itertools

import pytest

from cluster.gate.trials import Shapes, draw_trial, draw_trials, is_spread
from services.training.evaluate import answers
from services.training.names import Split
from shared.errors import InvalidRequest
from tests.unit.quality.worlds import SHAPES, flat


def test_only_the_first_passage_of_a_document_names_it() -> None:
    for number in range(40):
        passages = draw_trial(0, number, SHAPES).context.passages
        assert len({passage.document.name for passage in passages}) >= 2
        assert len({passage.document.kind for passage in passages}) == 1
        for _, group in itertools.groupby(passages, key=lambda passage: passage.document.name):
            first, *later = group
            assert flat(first.document.name) in flat(first.text)
            assert later
            assert not any(flat(first.document.name) in flat(passage.text) for passage in later)


def test_spread_evidence_is_the_naming_passage_and_a_later_one_that_states_the_answer() -> None:
    seen = 0
    for number in range(40):
        trial = draw_trial(0, number, SHAPES)
        for question in filter(is_spread, trial.questions):
            naming, stating = (trial.context.passages[i] for i in question.evidence)
            assert naming.document is stating.document
            assert flat(naming.document.name) in flat(question.text)
            assert flat(naming.document.name) in flat(naming.text)
            assert answers(" ".join(stating.text.split()), question.value)
            assert not stating.names_subject
            seen += 1
    assert seen >= 80


def test_another_document_answers_every_spread_question_otherwise_in_a_passage_that_does_not_name_it_either() -> (  # noqa: E501
    None
):
    for number in range(40):
        trial = draw_trial(0, number, SHAPES)
        for question in filter(is_spread, trial.questions):
            document = trial.context.passages[question.evidence[1]].document
            (key,) = [k for k, fact in document.facts.items() if fact.answer == question.answer]
            others = [
                p
                for p in trial.context.passages
                if p.document is not document and key in p.fact_keys and not p.names_subject
            ]
            assert others
            assert all(p.document.facts[key].value != question.value for p in others)


def test_single_chunk_questions_are_answered_by_the_one_passage_that_names_its_subject() -> None:
    for number in range(40):
        trial = draw_trial(0, number, SHAPES)
        for question in trial.questions:
            if not is_spread(question):
                (stating,) = question.evidence
                assert trial.context.passages[stating].names_subject
                assert answers(" ".join(trial.texts[stating].split()), question.value)


def test_trials_depend_on_seed_and_number_only_and_are_about_unseen_names() -> None:
    assert draw_trial(0, 3, SHAPES).context == draw_trial(0, 3, SHAPES).context
    assert draw_trial(0, 3, SHAPES).texts != draw_trial(1, 3, SHAPES).texts
    for passage in draw_trial(0, 3, SHAPES).context.passages:
        name = passage.document.name
        assert Split.HELD_OUT.holds(
            name if passage.document.kind == "ship" else name.removeprefix("the ").split()[0]
        )


def test_trials_are_drawn_until_enough_questions_are_spread() -> None:
    trials = list(draw_trials(0, 30, SHAPES))
    spread = [sum(map(is_spread, trial.questions)) for trial in trials]
    assert sum(spread) >= 30 > sum(spread[:-1])


def test_contexts_of_many_documents_have_five_and_more_and_questions_of_both_kinds() -> None:
    for number in range(8):
        trial = draw_trial(0, number, SHAPES, many=True)
        names = [passage.document.name for passage in trial.passages]
        assert len(set(names)) in range(5, 10)
        assert all(2 <= names.count(name) <= 3 for name in set(names))
        assert {is_spread(question) for question in trial.questions} == {True, False}
        assert trial.context != draw_trial(0, number, SHAPES).context


def test_passages_are_filled_up_with_other_things_and_contexts_have_a_longest_one() -> None:
    def count(text: str) -> int:
        return len(text.split())

    shapes = Shapes(passage_tokens=150, context_tokens=800)
    plain = draw_trial(0, 1, SHAPES)
    filled = draw_trial(0, 1, shapes, count=count)
    assert filled == draw_trial(0, 1, shapes, count=count)
    assert [p.document.name for p in filled.passages] == [p.document.name for p in plain.passages]
    for passage, before in zip(filled.passages, plain.passages, strict=True):
        assert passage.text.startswith(before.text)
        assert 90 < count(passage.text) <= 150
        assert passage.names_subject == before.names_subject
    assert sum(map(count, draw_trial(0, 3, Shapes(context_tokens=150), count=count).texts)) <= 150
    with pytest.raises(InvalidRequest, match="--context-tokens"):
        draw_trial(0, 1, Shapes(context_tokens=20), count=count)
    longest = max(map(count, plain.texts))
    short = draw_trial(0, 1, Shapes(chunk_tokens=longest - 1), count=count)
    assert max(map(count, short.texts)) < longest
    with pytest.raises(
        InvalidRequest, match="--chunk-tokens: of 200 contexts each had a passage of more than 5"
    ):
        draw_trial(0, 1, Shapes(chunk_tokens=5), count=count)
