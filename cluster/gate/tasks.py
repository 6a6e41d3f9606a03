"""Says what is asked about a context: which of its passages were retrieved, in which order, out of documents
that were ingested in which way.

========================  ===========  =====================================================================
kind                      ingested     retrieved
========================  ===========  =====================================================================
``spread``                titled       all passages, shuffled, as retrieval gives them
``document_order``        titled       all passages, in order
``partial``               titled       the evidence and about half of the others, shuffled
``unnamed``               titled       all but the passage that names the thing, shuffled
``in_front``              untitled     the same: nothing but the passages in front of it in its document says
                                       what a passage is about
``cross_document``        apart        all passages, in order: who names the thing is a document of its own,
                                       so that no chunk can know from its own document
``single``                titled       all passages, shuffled, asked about what a naming passage states
``unanswerable``          titled       all passages of other documents than the one that tells, shuffled: the
                                       right answer is that they do not say
========================  ===========  =====================================================================
"""

from __future__ import annotations

import enum
import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from cluster.gate.names import parse_names
from cluster.gate.trials import Trial, is_spread
from services.training.contexts import Passage

_SELDOM = 4  # kinds that only stand beside others are asked about one of so many contexts


class DocumentLayout(enum.StrEnum):
    """The documents that a context's passages are ingested as."""

    TITLED = "titled"
    UNTITLED = "untitled"
    APART = "apart"


class TaskKind(enum.StrEnum):
    SPREAD = "spread"
    DOCUMENT_ORDER = "document_order"
    PARTIAL = "partial"
    UNNAMED = "unnamed"
    IN_FRONT = "in_front"
    CROSS_DOCUMENT = "cross_document"
    SINGLE = "single"
    UNANSWERABLE = "unanswerable"

    @property
    def layout(self) -> DocumentLayout:
        return _LAYOUTS.get(self, DocumentLayout.TITLED)

    @property
    def is_seldom(self) -> bool:
        return self in (TaskKind.DOCUMENT_ORDER, TaskKind.PARTIAL, TaskKind.IN_FRONT, TaskKind.UNANSWERABLE)


_LAYOUTS = {TaskKind.IN_FRONT: DocumentLayout.UNTITLED, TaskKind.CROSS_DOCUMENT: DocumentLayout.APART}
KINDS = tuple(TaskKind)


@dataclass(frozen=True, slots=True)
class Task:
    """``placed``: passages of the trial, in the order of the prompt; ``questions``: of the trial, asked over
    them."""

    kind: TaskKind
    placed: tuple[int, ...]
    questions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TaskDocument:
    """One document that is ingested: numbers of its passages, and their texts."""

    title: str
    passages: tuple[int, ...]
    texts: tuple[str, ...]


def tasks_of(seed: int, trial: Trial, kinds: Collection[TaskKind]) -> list[Task]:
    """All that is asked about one context; the same for the same seed and trial, whatever else is asked."""
    asked = [task for task in _tasks(random.Random(f"{seed} tasks {trial.name}"), trial) if task.questions]
    seldom = not trial.many and trial.number % _SELDOM
    return [task for task in asked if task.kind in kinds and not (seldom and task.kind.is_seldom)]


def sources_of(trial: Trial, layout: DocumentLayout) -> list[TaskDocument]:
    """The documents that the passages of a trial come from."""
    return [source for document in _documents(trial) for source in _sources(trial, layout, document)]


def blocks_of(trial: Trial, placed: Collection[int]) -> tuple[int, ...]:
    """All passages of the documents of which some are placed, in order."""
    return tuple(i for document in _documents(trial) if set(document) & set(placed) for i in document)


def parse_kinds(names: str) -> tuple[TaskKind, ...]:
    """
    Raises:
        InvalidRequest: names what is no kind.
    """
    return parse_names("--kinds", names, TaskKind)


def _tasks(rng: random.Random, trial: Trial) -> Iterator[Task]:
    in_order = tuple(range(len(trial.passages)))
    shuffled = tuple(rng.sample(in_order, len(in_order)))
    spread = tuple(i for i, question in enumerate(trial.questions) if is_spread(question))
    single = tuple(i for i, question in enumerate(trial.questions) if not is_spread(question))
    yield Task(TaskKind.SPREAD, shuffled, spread)
    yield Task(TaskKind.DOCUMENT_ORDER, in_order, spread)
    yield Task(TaskKind.CROSS_DOCUMENT, in_order, spread)
    yield Task(TaskKind.SINGLE, shuffled, single)
    for document in _documents(trial):
        about = tuple(i for i in spread if trial.questions[i].evidence[-1] in document)
        evidence = {passage for i in about for passage in trial.questions[i].evidence}
        some = {passage for passage in in_order if rng.random() < 0.5} | evidence
        unnamed = tuple(i for i in shuffled if i not in document or not trial.passages[i].names_subject)
        yield Task(TaskKind.PARTIAL, tuple(i for i in shuffled if i in some), about)
        yield Task(TaskKind.UNNAMED, unnamed, about)
        yield Task(TaskKind.IN_FRONT, unnamed, about)
        yield Task(TaskKind.UNANSWERABLE, tuple(i for i in shuffled if i not in document), about)


def _documents(trial: Trial) -> list[tuple[int, ...]]:
    """Numbers of each document's passages, which stand beside each other."""
    by_document = groupby(enumerate(trial.passages), key=lambda numbered: numbered[1].document.name)
    return [tuple(i for i, _ in of_one) for _, of_one in by_document]


def _sources(trial: Trial, layout: DocumentLayout, document: Sequence[int]) -> Iterator[TaskDocument]:
    passages = {i: trial.passages[i] for i in document}
    title = passages[document[0]].document.title
    if layout is DocumentLayout.TITLED:
        yield _source(title, passages)
    elif layout is DocumentLayout.UNTITLED:
        yield TaskDocument(
            "", tuple(passages), tuple(_without_title(passage) for passage in passages.values())
        )
    else:
        yield _source(title, {i: p for i, p in passages.items() if p.names_subject})
        yield _source("", {i: p for i, p in passages.items() if not p.names_subject})


def _source(title: str, passages: dict[int, Passage]) -> TaskDocument:
    return TaskDocument(title, tuple(passages), tuple(passage.text for passage in passages.values()))


def _without_title(passage: Passage) -> str:
    """The text behind the title's line, where it has one."""
    first, _, rest = passage.text.partition("\n")
    return (
        rest.lstrip("\n") if first.lstrip("# ") == passage.document.title and rest.strip() else passage.text
    )
