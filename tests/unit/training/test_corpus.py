"""Invented documents: the same seed gives the same text, facts stand where they are said to stand, names are
held out."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from services.training.contexts import Context, ContextShape, TextLayout, cut_passages, draw_context
from services.training.corpus import CorpusDocument, Worlds
from services.training.demo_documents import demo_documents, demo_questions
from services.training.evaluate import answers
from services.training.names import Split
from services.training.rendering import RENDERERS
from shared.measuring.paired import wilson

WORLDS = Worlds.load()
ASSETS = Path(__file__).parents[3] / "cluster" / "demo_assets"


def written(kind: str, seed: int, split: Split = Split.TRAIN) -> CorpusDocument:
    return WORLDS.write(random.Random(seed), kind, split)


def context(seed: int) -> Context:
    return draw_context(random.Random(seed), WORLDS, ContextShape(5, 300), Split.TRAIN, 6)


@pytest.mark.parametrize("kind", WORLDS.kinds)
def test_the_same_seed_writes_the_same_document(kind: str) -> None:
    assert written(kind, 1) == written(kind, 1)
    assert written(kind, 1) != written(kind, 2)


@pytest.mark.parametrize("kind", WORLDS.kinds)
def test_every_fact_can_be_found_in_the_text_of_its_document(kind: str) -> None:
    for seed in range(20):
        document = written(kind, seed)
        text = RENDERERS["txt"](document).decode()
        assert document.title in text
        assert "{" not in text
        for fact in document.facts.values():
            assert answers(text, fact.value)
            assert answers(fact.answer, fact.value)
            assert all(document.name in question for question in fact.questions)


def test_every_fact_of_a_kind_is_stated_by_some_sentence() -> None:
    for key, kind in WORLDS.kinds.items():
        stated = {fact for seed in range(10) for fact in written(key, seed).facts}
        assert stated == set(kind.facts)


def test_a_name_is_either_for_training_or_held_out() -> None:
    def names(split: Split) -> set[str]:
        maker = WORLDS.names(random.Random(5), split)
        return {maker.place() for _ in range(2000)} | {maker.ship() for _ in range(400)}

    training, held_out = names(Split.TRAIN), names(Split.HELD_OUT)
    assert not training & held_out
    assert all(Split.HELD_OUT.holds(name) and not Split.TRAIN.holds(name) for name in held_out)


def test_passages_hold_a_whole_document_in_order() -> None:
    for seed in range(30):
        document = written("town", seed)
        layout = TextLayout.draw(random.Random(seed))
        passages = list(cut_passages(document, layout, 120))
        words = " ".join(passage.text for passage in passages).replace("#", "").split()
        assert words == RENDERERS["txt"](document).decode().split()
        assert {key for passage in passages for key in passage.fact_keys} == set(document.facts)


def test_every_question_of_a_context_is_answered_in_one_of_its_passages() -> None:
    for seed in range(30):
        drawn = context(seed)
        assert len(drawn.passages) == 5
        texts = [" ".join(passage.text.split()) for passage in drawn.passages]
        assert drawn.questions
        for question in drawn.questions:
            assert any(answers(text, question.value) for text in texts)


def test_contexts_depend_on_their_seed_only() -> None:
    assert context(3) == context(3)
    assert context(3) != context(4)


def test_the_shipped_documents_and_questions_are_those_that_the_script_writes() -> None:
    documents = demo_documents()
    assert sorted(entry.path for entry in documents) == sorted(
        str(path.relative_to(ASSETS / "documents")) for path in (ASSETS / "documents").rglob("*.*")
    )
    for entry in documents:
        path = ASSETS / "documents" / entry.path
        if path.suffix != ".pdf":
            assert path.read_bytes() == RENDERERS[path.suffix[1:]](entry.document)
    shipped = json.loads((ASSETS / "questions.json").read_text(encoding="utf-8"))
    assert [(q["question"], q["answer"], q["document"]) for q in shipped] == [
        (q.question, q.answer, q.document) for q in demo_questions(documents)
    ]


def test_the_shipped_documents_have_names_that_training_never_saw() -> None:
    documents = [entry.document for entry in demo_documents()]
    assert len({document.name for document in documents}) == len(documents) >= 40
    for document in documents:
        name = document.name if document.kind == "ship" else document.name.removeprefix("the ").split()[0]
        assert Split.HELD_OUT.holds(name)


def test_shipped_answers_stand_in_the_document_they_name() -> None:
    pypdf = pytest.importorskip("pypdf")
    for question in json.loads((ASSETS / "questions.json").read_text(encoding="utf-8")):
        path = ASSETS / "documents" / question["document"]
        if path.suffix == ".pdf":
            text = " ".join(page.extract_text() for page in pypdf.PdfReader(path).pages)
        else:
            text = path.read_text(encoding="utf-8")
        assert answers(" ".join(text.split()), question["answer"])


@pytest.mark.parametrize(
    ("text", "value", "right"),
    [
        ("The mayor of Velbrin is Toma Keldar.", "Toma Keldar", True),
        ("Velbrin has 14,318 inhabitants.", "4,318", False),
        ("Velbrin has 4,318 inhabitants.", "318", False),
        ("It was founded in 1823, they say.", "1823", True),
        ("The twin town is Velbrinau.", "Velbrin", False),
    ],
)
def test_an_answer_counts_only_with_the_whole_value(text: str, value: str, right: bool) -> None:
    assert answers(text, value) is right


def test_the_interval_of_a_share_contains_it() -> None:
    low, high = wilson(90, 100)
    assert low == pytest.approx(0.8256, abs=1e-3)
    assert high == pytest.approx(0.9448, abs=1e-3)
