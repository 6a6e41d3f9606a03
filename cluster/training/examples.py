"""Reads documents with questions about them from a file, or invents them.

A file has one JSON object per line: what may stand together in a context, and what is asked about it::

    {"documents": [{"title": "Lease", "text": "# Lease ..."}], "questions": ["Who signed the lease?"]}

A document that was cut already has ``chunks`` in place of its text::

    {"title": "Lease", "chunks": [{"text": "The rent is ...", "heading": "Lease > Rent"}]}

Answers are not needed: the model's own are learned. Other fields are left alone.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from cluster.json_text import HALVED, halved_field, parse_json
from services.training.contexts import ContextShape, Passage
from services.training.corpus import Worlds
from services.training.cross_chunk import draw_cross_chunk
from services.training.names import Split
from shared.errors import InvalidRequest

_FORM = '{"documents": [{"title": "…", "text": "…"}], "questions": ["…"]}'
_APART = 1 / 3
_DRAWS = {Split.TRAIN: "training", Split.HELD_OUT: "held out"}
_QUESTIONS = 8


@dataclass(frozen=True, slots=True)
class ExampleChunk:
    """``heading``: path of the headings that it stands below."""

    text: str
    heading: str = ""


@dataclass(frozen=True, slots=True)
class ExampleDocument:
    """``chunks``: in place of ``text``, where they were cut already."""

    title: str
    text: str
    chunks: tuple[ExampleChunk, ...] = ()


@dataclass(frozen=True, slots=True)
class Example:
    """``name``: where it is from, for messages."""

    name: str
    documents: tuple[ExampleDocument, ...]
    questions: tuple[str, ...]


def read_examples(path: Path, option: str = "--data") -> list[Example]:
    """``option``: what names the file.

    Raises:
        InvalidRequest: a line has another form (names file, line and field), or there is none.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # a text may hold other ends of lines
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{option}: {path} cannot be read as text: {error}") from error
    examples = [_example(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not examples:
        raise InvalidRequest(f"{option}: {path} has no lines; each must be {_FORM}")
    return examples


def write_examples(path: Path, examples: Iterable[Example], **beside: str) -> None:
    """In the form in which they are read; ``beside``: fields of every line for others."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_name(f"{path.name}.new")
    written.write_text("".join(_line(example, beside) for example in examples), encoding="utf-8")
    written.replace(path)


def _line(example: Example, beside: Mapping[str, str]) -> str:
    documents = [
        {"title": one.title, "chunks": [asdict(chunk) for chunk in one.chunks]}
        if one.chunks
        else {"title": one.title, "text": one.text}
        for one in example.documents
    ]
    line = {"documents": documents, "questions": list(example.questions), **beside}
    return json.dumps(line, ensure_ascii=False) + "\n"


def invented_examples(
    seed: int, count: int, split: Split = Split.TRAIN, apart: float = _APART
) -> Iterator[Example]:
    """About things whose names are those of ``split``; evaluations never use those of training. Evidence lies
    in one chunk or in two. ``apart``: share of the examples in which who names a thing is a document of its
    own."""
    for example, _ in invented_with_answers(seed, count, split, apart):
        yield example


def invented_with_answers(
    seed: int, count: int, split: Split = Split.TRAIN, apart: float = _APART
) -> Iterator[tuple[Example, tuple[str, ...]]]:
    """The same, with the answers to their questions."""
    worlds = Worlds.load()
    for number in range(count):
        rng = random.Random(f"{seed} {_DRAWS[split]} {number}")
        shape = ContextShape(rng.randint(4, 6), rng.randint(160, 300))
        context = draw_cross_chunk(rng, worlds, shape, split, _QUESTIONS)
        documents = tuple(_documents(context.passages, rng.random() < apart))
        questions = tuple(question.text for question in context.questions)
        answers = tuple(question.answer for question in context.questions)
        yield Example(f"invented context {number}", documents, questions), answers


def _documents(passages: tuple[Passage, ...], apart: bool) -> Iterator[ExampleDocument]:
    """``apart``: without a title, where it does not name its thing."""

    def source(passage: Passage) -> tuple[str, bool]:
        return passage.document.title, apart and not passage.names_subject

    for (title, unnamed), of_one in groupby(passages, key=source):
        yield ExampleDocument("" if unnamed else title, "\n\n".join(passage.text for passage in of_one))


def _example(path: Path, number: int, line: str) -> Example:
    where = f"{path}, line {number}"
    try:
        values = parse_json(line)
    except ValueError as error:
        raise InvalidRequest(f"{where}: is no JSON ({error}); a line must be {_FORM}") from None
    if not isinstance(values, dict):
        raise InvalidRequest(f"{where}: is no JSON object; a line must be {_FORM}")
    if field := halved_field(values):
        raise InvalidRequest(f"{where}: {field}: {HALVED}")
    documents = tuple(
        _document(where, f"documents[{i}]", value)
        for i, value in enumerate(_list(where, values, "documents"))
    )
    questions = _list(where, values, "questions")
    for i, question in enumerate(questions):
        if not isinstance(question, str) or not question.strip():
            raise _wrong(where, f"questions[{i}]", "expected text", question)
    return Example(where, documents, tuple(questions))


def _document(where: str, field: str, value: Any) -> ExampleDocument:
    if not isinstance(value, dict):
        raise _wrong(where, field, "expected an object with text and, if it has one, a title", value)
    title = value.get("title", "")
    if not isinstance(title, str):
        raise _wrong(where, f"{field}.title", "expected text", title)
    if "chunks" in value:
        chunks = _list(f"{where}: {field}", value, "chunks")
        return ExampleDocument(
            title, "", tuple(_chunk(where, f"{field}.chunks[{i}]", one) for i, one in enumerate(chunks))
        )
    return ExampleDocument(title, _text(where, field, value))


def _chunk(where: str, field: str, value: Any) -> ExampleChunk:
    if not isinstance(value, dict):
        raise _wrong(where, field, "expected an object with text and, if it has one, a heading", value)
    heading = value.get("heading", "")
    if not isinstance(heading, str):
        raise _wrong(where, f"{field}.heading", "expected text", heading)
    return ExampleChunk(_text(where, field, value), heading)


def _text(where: str, field: str, value: Mapping[str, Any]) -> str:
    text = value.get("text")
    if not isinstance(text, str) or not text.strip():
        raise _wrong(where, f"{field}.text", "expected text", text)
    return text


def _list(where: str, values: Mapping[str, Any], field: str) -> list[Any]:
    if field not in values:
        raise InvalidRequest(f"{where}: {field}: is missing; a line must be {_FORM}")
    value = values[field]
    if not isinstance(value, list) or not value:
        raise _wrong(where, field, "expected a list that is not empty", value)
    return value


def _wrong(where: str, field: str, expected: str, got: Any) -> InvalidRequest:
    shown = json.dumps(got, ensure_ascii=False)
    shown = shown if len(shown) <= 60 else shown[:60] + "…"
    return InvalidRequest(f"{where}: {field}: {expected}, got {shown}; a line must be {_FORM}")
