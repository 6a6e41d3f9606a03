"""Reads labelled examples: questions about documents with their answers, questions and answers without
documents, or conversations. A line of JSON each, or a list of JSON, packed by gzip or not::

    {"documents": [{"title": "Lease", "text": "# Lease ..."}], "questions": ["Who?"], "answers": ["Ann"]}
    {"question": "What is 7 times 8?", "answer": "56"}
    {"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hello!"}]}

``question`` and ``answer`` stand for lists of one. A document may be its text alone. Other fields are left
alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cluster.evaluation.datasets.records import Format, Record, read_records
from cluster.training.examples import Example, ExampleDocument, invented_with_answers

ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True)
class Labelled:
    """``example``: its questions, and documents if it has any; ``answers``: by question."""

    example: Example
    answers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Message:
    role: str
    content: str


@dataclass(frozen=True, slots=True)
class LabelledChat:
    """``name``: where it is from, for messages."""

    name: str
    messages: tuple[Message, ...]


def read_labelled(path: Path, option: str) -> Iterator[Labelled | LabelledChat]:
    """``option``: what names the file.

    Raises:
        InvalidRequest: it cannot be read, or a line has another form; names file, line and field.
    """
    for record in read_records(path, _format(option)):
        if record.has("messages"):
            yield _conversation(record)
        else:
            yield _labelled(record)


def invented_labelled(seed: int, count: int) -> list[Labelled]:
    return [Labelled(*pair) for pair in invented_with_answers(seed, count)]


def _format(option: str) -> Format:
    return Format(
        "what a model is fine-tuned on",
        '{"documents": [{"title": "…", "text": "…"}], "questions": ["…"], "answers": ["…"]} in every line, '
        'without documents {"question": "…", "answer": "…"} or {"messages": [{"role": "user", "content": '
        '"…"}, {"role": "assistant", "content": "…"}]}',
        option,
        "leave the line out",
    )


def _labelled(record: Record) -> Labelled:
    questions, answers = _texts(record, "question"), _texts(record, "answer")
    if len(questions) != len(answers):
        record.refuse(
            "answers" if record.has("answers") else "answer",
            f"there must be one for each question, got {len(answers)} for {len(questions)}",
        )
    documents = tuple(_documents(record)) if record.has("documents") else ()
    return Labelled(Example(_name(record), documents, questions), answers)


def _texts(record: Record, field: str) -> tuple[str, ...]:
    """Of ``questions``, or of ``question`` alone."""
    several = f"{field}s"
    if not record.has(several):
        if not record.has(field):
            record.refuse(several, "is missing")
        return (record.text(field),)
    texts = tuple(record.texts(several))
    for number, text in enumerate(texts):
        if not text.strip():
            record.refuse(f"{several}[{number}]", "must be text, got an empty one")
    return tuple(text.strip() for text in texts)


def _documents(record: Record) -> Iterator[ExampleDocument]:
    value = record.values["documents"]
    if isinstance(value, list) and value and all(isinstance(one, str) and one.strip() for one in value):
        yield from (ExampleDocument("", text) for text in value)
        return
    for document in record.records("documents"):
        title = document.values.get("title") or ""
        if not isinstance(title, str):
            document.refuse("title", "must be text")
        yield ExampleDocument(title, document.text("text"))


def _conversation(record: Record) -> LabelledChat:
    messages = []
    for one in record.records("messages"):
        role = one.text("role")
        if role not in ROLES:
            one.refuse("role", f"must be one of {', '.join(ROLES)}, got {role!r}")
        messages.append(Message(role, one.text("content")))
    if "assistant" not in [message.role for message in messages[1:]]:
        record.refuse(
            "messages", "must hold a message of the assistant, behind another: it is what is learned"
        )
    return LabelledChat(_name(record), tuple(messages))


def _name(record: Record) -> str:
    return f"{record.path}, {record.place}"
