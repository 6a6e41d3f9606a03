"""RULER's tasks: what they hide, where, how long they are, and that a seed decides."""

from __future__ import annotations

import random
import re

import pytest

from cluster.evaluation.cases import EvalTask
from cluster.evaluation.metrics import Metric
from cluster.evaluation.ruler.haystacks import Haystack
from cluster.evaluation.ruler.tasks import RulerMaker
from cluster.evaluation.ruler.variants import AVERAGED, NEEDLES, Variant, draw_hidden
from shared.errors import InvalidRequest
from tests.unit.evaluation.words import word_cutter

LENGTH = 600


def made(
    variant: Variant, num_cases: int = 3, seed: int = 0, length: int = LENGTH, essay: str = ""
) -> EvalTask:
    maker = RulerMaker(word_cutter(length), length, seed, essay)
    return maker.task(variant, num_cases, lambda: None)


@pytest.mark.parametrize("variant", Variant)
def test_every_reference_stands_in_the_text_which_is_as_long_as_it_may_be(variant: Variant) -> None:
    cutter = word_cutter(LENGTH)
    for case in made(variant).cases:
        (document,) = case.documents
        for (reference,) in case.references:
            assert reference in document.text
        length = cutter.around(case.question, variant.max_tokens) + cutter.num_tokens(document.text)
        assert 0.9 * LENGTH < length <= LENGTH
        assert len(cutter.cut(case.documents, case.question, variant.max_tokens).placed) > 10


def test_the_tasks_differ_as_rulers_do() -> None:
    counts = {v: len(made(v, 1).cases[0].references) for v in Variant}
    assert counts == {
        **dict.fromkeys(Variant, 1),
        Variant.MULTIVALUE: 4,
        Variant.MULTIQUERY: 4,
        Variant.TRACKING: 5,
    }
    needles = {v: made(v, 1).cases[0].documents[0].text.count("special magic") for v in NEEDLES}
    assert {v: n for v, n in needles.items() if v.row.haystack is not Haystack.NEEDLES} == {
        Variant.SINGLE_1: 1,
        Variant.SINGLE_2: 1,
        Variant.SINGLE_3: 1,
        Variant.MULTIKEY_1: 4,
        Variant.MULTIVALUE: 4,
        Variant.MULTIQUERY: 4,
    }
    assert needles[Variant.MULTIKEY_2] > 10 < needles[Variant.MULTIKEY_3]
    assert made(Variant.TRACKING).max_tokens == 30
    assert made(Variant.SINGLE_2).metric is Metric.COVERAGE
    assert [made(v).numbers for v in (Variant.SINGLE_2, Variant.SINGLE_3, Variant.TRACKING)] == [
        True,
        False,
        False,
    ]


def test_cacheclips_variants_are_the_eight_needles_of_which_its_average_leaves_two_out() -> None:
    assert len(NEEDLES) == 8
    assert set(NEEDLES) - set(AVERAGED) == {Variant.MULTIKEY_2, Variant.MULTIKEY_3}


def test_questions_ask_for_what_is_hidden() -> None:
    rng = random.Random(1)
    one, several = draw_hidden(Variant.SINGLE_2, rng), draw_hidden(Variant.MULTIQUERY, rng)
    key = re.fullmatch(
        r"What is the special magic number for (\S+) mentioned in the provided text\?", one.question
    )
    assert key is not None
    assert one.needles == (f"One of the special magic numbers for {key[1]} is: {one.references[0]}.",)
    assert several.question.startswith("What are all the special magic numbers for ")
    assert several.question.count(",") == 3
    many = draw_hidden(Variant.MULTIVALUE, rng)
    assert len({needle.split(" is: ")[0] for needle in many.needles}) == 1
    assert len(set(many.references)) == 4


def test_a_chain_of_variables_stands_in_its_order() -> None:
    for case in made(Variant.TRACKING, 5).cases:
        lines = re.findall(r"VAR (\w+) = (?:VAR )?(\w+)", case.documents[0].text)
        assert [name for name, _ in lines] == [reference for (reference,) in case.references]
        assert [source for _, source in lines[1:]] == [name for name, _ in lines[:-1]]
        assert lines[0][1] in case.question


def test_cases_are_a_function_of_seed_length_and_number() -> None:
    three, five = made(Variant.SINGLE_2), made(Variant.SINGLE_2, 5)
    assert three.cases == five.cases[:3]
    assert len({case.question for case in five.cases}) == 5
    assert made(Variant.SINGLE_2, seed=1).cases != three.cases


def test_needles_are_hidden_in_prose_of_ones_own() -> None:
    essay = "It rained all day.\nNobody came! Was it worth it?"
    (case,) = made(Variant.SINGLE_2, 1, essay=essay).cases
    around = re.sub(r"One of the special magic.*?: \d+\. ?", "", case.documents[0].text)
    assert set(re.split(r"(?<=[.!?]) ", around.strip())) <= {
        "It rained all day.", "Nobody came!", "Was it worth it?"
    }  # fmt: skip


def test_a_length_in_which_nothing_fits_is_refused_with_the_one_that_does() -> None:
    with pytest.raises(
        InvalidRequest, match=r"--length: 150 tokens leave no room .* give at least \d+"
    ) as refused:
        made(Variant.SINGLE_2, 1, length=150)
    least = int(re.findall(r"at least (\d+)", str(refused.value))[0])
    assert made(Variant.SINGLE_2, 1, length=least + 10).cases
