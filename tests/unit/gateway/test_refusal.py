"""Which questions are refused, from what was found."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from services.gateway.config import RefusalConfig
from services.gateway.refusal import evidence, refusals, renumbered
from shared.answer import Refusal
from shared.generation.told import ChosenEvent, DoneEvent, SelectedEvent, Timings, Usage
from shared.search import SearchHit
from tests.unit.gateway.fakes import hit

QUESTION = "Who built the Orla bridge?"


def found(*texts: str, similarity: float | None = None) -> list[SearchHit]:
    return [replace(hit(f"h{i}", text), similarity=similarity) for i, text in enumerate(texts)]


def test_the_evidence_is_the_best_chunks_mean_of_cosine_and_share_of_words() -> None:
    assert evidence(QUESTION, found("Tam built the Orla bridge.", similarity=0.8)) == pytest.approx(0.9)
    assert evidence(QUESTION, found("Nothing of it.", similarity=0.3)) == pytest.approx(0.15)
    both = [*found("Tam built the Orla bridge.", similarity=0.2), *found("Off.", similarity=0.9)]
    assert evidence(QUESTION, both) == pytest.approx(0.6)


def test_a_word_that_no_chunk_has_weighs_more_than_one_that_all_have() -> None:
    others = [f"The bridge over water {i} was built of stone." for i in range(7)]
    named, unnamed = (
        found(*others, "Tam built the Orla bridge."),
        found(*others, "Tam built the Kell bridge."),
    )
    assert evidence(QUESTION, named) == pytest.approx(1.0)
    assert evidence(QUESTION, unnamed) < 0.4


def test_without_an_embedder_the_words_decide_and_without_hits_there_is_no_evidence() -> None:
    assert evidence(QUESTION, found("Tam built the Orla bridge.")) == pytest.approx(1.0)
    assert evidence(QUESTION, []) == 0.0


def test_a_question_of_question_words_alone_is_judged_by_them() -> None:
    assert evidence("Who are you?", found("You are who you are.")) == pytest.approx(1.0)


def test_in_a_script_without_spaces_characters_decide() -> None:
    asked = "多比镇的镇长是谁?"
    right, wrong = "多比镇在海边。它的镇长是金维尔。", "矿山很深,没有人去那里。"
    config = RefusalConfig()
    for mode, similarity in product((Refusal.LENIENT, Refusal.STRICT), (None, 0.5)):
        ranking = found(wrong, right, similarity=similarity)
        assert refusals(mode, config, [asked], [ranking]) == {}
        assert refusals(mode, config, [asked], [found(wrong, similarity=similarity)])


def test_strict_refuses_more_than_lenient_and_off_nothing() -> None:
    config = RefusalConfig(lenient=0.3, strict=0.6)
    rankings = [found("Off.", similarity=score * 2) for score in (0.1, 0.45, 0.7)]
    asked = ["Orla?"] * 3
    refused = {mode: list(refusals(mode, config, asked, rankings)) for mode in Refusal}
    assert refused == {Refusal.OFF: [], Refusal.LENIENT: [0], Refusal.STRICT: [0, 1]}
    assert refusals(None, config, asked, rankings) == {}
    configured = replace(config, mode=Refusal.LENIENT)
    assert refusals(None, configured, asked, rankings) == {
        0: "refused: the evidence in the documents is 0.10, below 0.3 (lenient)"
    }
    assert refusals(Refusal.OFF, configured, asked, rankings) == {}


def test_events_of_some_questions_are_told_as_those_of_all() -> None:
    assert renumbered(ChosenEvent(1, 0), [0, 2]) == ChosenEvent(2, 0)
    for event in (SelectedEvent((1,)), DoneEvent(Usage(1, 0, 1, 0), Timings())):
        assert renumbered(event, [0, 2]) == event


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"strict": 1.5}, "strict: must be 0 to 1"),
        ({"lenient": -0.1}, "lenient: must be 0 to 1"),
        ({"lenient": 0.7, "strict": 0.6}, "strict: 0.6 is below lenient"),
        ({"text": " "}, "text: must not be empty"),
    ],
)
def test_settings_that_cannot_be_are_named(settings: dict[str, float], names: str) -> None:
    with pytest.raises(ValueError, match=names):
        RefusalConfig(**settings)  # type: ignore[arg-type]
