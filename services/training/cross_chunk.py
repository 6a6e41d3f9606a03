"""Contexts in which evidence lies in two passages: documents about things of one kind, cut in order, named in
their first ones.

    # Velbrin              ## Daily life            # Halford             ## Daily life
    Velbrin lies on ...    The mayor of the town    Halford was ...       The mayor of the town
                           is Toma Keldar. ...                            is Ada Ostell. ...

"Who is the mayor of Velbrin?" takes the first passage to know which of the others is meant: every one of the
documents states in passages that name nothing what is asked about one of them. Questions about what first
passages state take one passage.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice

from services.training.contexts import (
    Context,
    ContextShape,
    Passage,
    TextLayout,
    TrainingQuestion,
    as_typed,
    cut_passages,
)
from services.training.corpus import CorpusDocument, Style, Worlds
from services.training.names import Split

LEAST_PASSAGES = 4
_STYLE = Style(back_reference=1.0, filler=0.35, omission=0.05, name_sections=False)


def draw_cross_chunk(
    rng: random.Random, worlds: Worlds, shape: ContextShape, split: Split, num_questions: int
) -> Context:
    """At least two documents of at least two passages each, so ``LEAST_PASSAGES``, also if the shape asks for
    fewer. As many questions as there are, at most ``num_questions``; those whose evidence lies in two
    passages first."""
    kind = rng.choice(list(worlds.kinds))
    num_documents = rng.randint(2, max(2, shape.num_passages // 2))
    parted = [_part(rng, document, shape) for document in _unlike(rng, worlds, kind, split, num_documents)]
    spare = max(0, shape.num_passages - 2 * num_documents)
    passages: list[Passage] = []
    for cut in parted:
        extra = min(spare, rng.randint(0, len(cut) - 2))
        spare -= extra
        passages += cut[: 2 + extra]
    asked = [*_ask(rng, passages, apart=True), *_ask(rng, passages, apart=False)]
    return Context(tuple(passages), tuple(asked[:num_questions]))


def draw_documents(
    rng: random.Random,
    worlds: Worlds,
    passage_chars: int,
    split: Split,
    num_documents: int,
    num_questions: tuple[int, int],
) -> Context:
    """Two or three passages of each of so many documents. At most so many questions whose evidence lies in
    two passages, and so many about first passages."""
    kind, shape = rng.choice(list(worlds.kinds)), ContextShape(0, passage_chars)
    documents = _unlike(rng, worlds, kind, split, num_documents)
    passages = [p for document in documents for p in _part(rng, document, shape)[: rng.randint(2, 3)]]
    num_spread, num_single = num_questions
    spread, single = _ask(rng, passages, apart=True), _ask(rng, passages, apart=False)
    return Context(tuple(passages), (*islice(spread, num_spread), *islice(single, num_single)))


def _unlike(rng: random.Random, worlds: Worlds, kind: str, split: Split, count: int) -> list[CorpusDocument]:
    """Documents of which no two have a name in common, nor the value of a fact."""
    documents: list[CorpusDocument] = []
    while len(documents) < count:
        document = worlds.write(rng, kind, split, _STYLE)
        if all(document.name != other.name and not _shared_values(document, other) for other in documents):
            documents.append(document)
    return documents


def _shared_values(one: CorpusDocument, other: CorpusDocument) -> set[str]:
    return {
        key for key, fact in one.facts.items() if key in other.facts and other.facts[key].value == fact.value
    }


def _part(rng: random.Random, document: CorpusDocument, shape: ContextShape) -> list[Passage]:
    """At least two passages: shorter ones if one would hold the document."""
    layout, max_chars = TextLayout.draw(rng), int(shape.passage_chars * rng.uniform(0.7, 1.2))
    while len(cut := list(cut_passages(document, layout, max_chars))) < 2:
        max_chars //= 2
    return cut


def _ask(rng: random.Random, passages: list[Passage], apart: bool) -> Iterator[TrainingQuestion]:
    """Questions, in random order. ``apart``: about facts of passages that do not name their subject, and that
    another document states in such a passage too."""
    facts = [
        (i, key)
        for i, passage in enumerate(passages)
        for key in sorted(passage.fact_keys)
        if passage.names_subject != apart
    ]
    for i, key in rng.sample(facts, len(facts)):
        document = passages[i].document
        if not apart or any(
            key in passages[j].fact_keys and passages[j].document is not document for j, _ in facts
        ):
            fact = document.facts[key]
            naming = next(j for j, passage in enumerate(passages) if passage.document is document)
            yield TrainingQuestion(
                as_typed(rng, rng.choice(fact.questions)), fact.answer, fact.value, tuple(sorted({naming, i}))
            )
