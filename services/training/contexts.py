"""Draws what a reader sees: passages of several documents in retrieval order, and questions that those
passages answer."""

from __future__ import annotations

import random
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from services.training.corpus import CorpusDocument, Section, Style, Worlds
from services.training.names import Split


@dataclass(frozen=True, slots=True)
class Passage:
    text: str
    fact_keys: frozenset[str]
    document: CorpusDocument

    @property
    def names_subject(self) -> bool:
        return self.document.name.lower() in " ".join(self.text.lower().split())


@dataclass(frozen=True, slots=True)
class TrainingQuestion:
    """``evidence``: the passages that it takes to answer, where more than one may be."""

    text: str
    answer: str
    value: str
    evidence: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Context:
    passages: tuple[Passage, ...]
    questions: tuple[TrainingQuestion, ...]


@dataclass(frozen=True, slots=True)
class TextLayout:
    """The way a document became text: heading marks and, for formats that break lines, a line width in
    characters."""

    title_mark: str = "# "
    heading_mark: str = "## "
    gap: str = "\n\n"
    width: int | None = None

    @classmethod
    def draw(cls, rng: random.Random) -> TextLayout:
        marks = ("# ", "## ") if rng.random() < 0.5 else ("", "")
        return cls(
            *marks, rng.choice(["\n\n", "\n\n", "\n"]), rng.randint(60, 100) if rng.random() < 0.15 else None
        )


@dataclass(frozen=True, slots=True)
class ContextShape:
    num_passages: int
    passage_chars: int


def draw_context(
    rng: random.Random, worlds: Worlds, shape: ContextShape, split: Split, num_questions: int
) -> Context:
    """Passages of documents in an order like a retriever's, with questions about them.

    Most contexts are about things of one kind, and often they are the same part of each document: then only
    the name in the question tells which of the passages to read.
    """
    kinds = list(worlds.kinds)
    if rng.random() < 0.75:
        kinds = [rng.choice(kinds)]
    same_part = rng.random() if rng.random() < 0.5 else None
    passages: list[Passage] = []
    while len(passages) < shape.num_passages:
        document = worlds.write(rng, rng.choice(kinds), split, Style.draw(rng))
        cut = list(
            cut_passages(document, TextLayout.draw(rng), int(shape.passage_chars * rng.uniform(0.7, 1.2)))
        )
        if same_part is not None:
            passages.append(cut[int(same_part * len(cut))])
        else:
            passages += rng.sample(cut, rng.randint(1, len(cut))) if rng.random() < 0.8 else cut
    passages = passages[: shape.num_passages]
    if rng.random() < 0.8:
        rng.shuffle(passages)
    return Context(tuple(passages), _draw_questions(rng, passages, num_questions))


def cut_passages(document: CorpusDocument, layout: TextLayout, max_chars: int) -> Iterator[Passage]:
    """Cuts a document as a splitter does: whole sections while they fit, else between sentences."""
    lines: list[str] = [layout.title_mark + document.title]
    keys: set[str] = set()

    def flush() -> Passage:
        passage = Passage(layout.gap.join(lines), frozenset(keys), document)
        lines.clear()
        keys.clear()
        return passage

    for section in document.sections:
        if keys and sum(map(len, lines)) + _section_chars(section) > max_chars:
            yield flush()
        lines.append(layout.heading_mark + section.heading)
        paragraph: list[str] = []
        for sentence in section.sentences:
            if paragraph and sum(map(len, [*lines, *paragraph])) + len(sentence.text) > max_chars:
                lines.append(_paragraph(paragraph, layout))
                paragraph = []
                yield flush()
            paragraph.append(sentence.text)
            keys.update(sentence.fact_keys)
        lines.append(_paragraph(paragraph, layout))
    yield flush()


def _section_chars(section: Section) -> int:
    return len(section.heading) + sum(len(sentence.text) for sentence in section.sentences)


def _paragraph(sentences: Sequence[str], layout: TextLayout) -> str:
    text = " ".join(sentences)
    return text if layout.width is None else "\n".join(textwrap.wrap(text, layout.width))


def _draw_questions(
    rng: random.Random, passages: Sequence[Passage], count: int
) -> tuple[TrainingQuestion, ...]:
    """Only what can be told: the passage names its subject, or no other passage is about something of the
    same kind."""
    kinds = [passage.document.kind for passage in passages]
    facts = [
        passage.document.facts[key]
        for passage in passages
        if passage.names_subject or kinds.count(passage.document.kind) == 1
        for key in sorted(passage.fact_keys)
    ]
    chosen = rng.sample(facts, min(count, len(facts)))
    return tuple(
        TrainingQuestion(as_typed(rng, rng.choice(fact.questions)), fact.answer, fact.value)
        for fact in chosen
    )


def as_typed(rng: random.Random, question: str) -> str:
    """People leave out capitals and question marks now and then."""
    if rng.random() < 0.1:
        question = question[:1].lower() + question[1:]
    return question.removesuffix("?") if rng.random() < 0.1 else question
