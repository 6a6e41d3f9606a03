"""Reads an operator's questions: a file with a JSON object per line.

    {"question": "Who may sign an order?", "answers": ["the site manager"], "documents": ["handbook.md"]}

``question`` alone is needed. ``answers``: texts of which one stands in a right answer; ``evidence``: texts
that a right answer takes its words from; ``unanswerable``: the right answer is that the documents do not
say; ``documents``: ids of those that are searched (otherwise all of the collection); ``id`` and
``feedback`` are for the reader.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from cluster.gate.findings import UNJUDGED
from cluster.gate.judging import abstains, accepted, supported
from cluster.json_text import HALVED, halved_field, parse_json
from shared.errors import InvalidRequest

OWN, OWN_UNANSWERABLE = "own", "own_unanswerable"
_BESIDE = ("id", "feedback")
_TEXTS = ("answers", "evidence", "documents")
_REMEDY = 'write a JSON object per line, such as {"question": "...", "answers": ["..."]}'


@dataclass(frozen=True, slots=True)
class OwnQuestion:
    """See the fields of the file."""

    question: str
    answers: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    documents: tuple[str, ...] = ()
    unanswerable: bool = False

    @property
    def kind(self) -> str:
        """Of its answers: by what they can be judged."""
        if self.unanswerable:
            return OWN_UNANSWERABLE
        return OWN if self.answers or self.evidence else UNJUDGED

    def is_right(self, text: str) -> bool:
        """Of a question that can be judged."""
        if self.unanswerable:
            return abstains(text)
        if self.answers:
            return accepted(text, self.answers)
        return supported(text, self.question, self.evidence)


def read_questions(path: Path) -> list[OwnQuestion]:
    """
    Raises:
        InvalidRequest: the file cannot be read, holds no question, or a line is of another form; names
        file, line and field.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # a text may hold other ends of lines
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"--questions: {path} cannot be read as text: {error}") from None
    found = [
        _question(f"{path}: line {number}", line) for number, line in enumerate(lines, 1) if line.strip()
    ]
    if not found:
        raise InvalidRequest(f"--questions: {path} holds no question; {_REMEDY}")
    return found


def _question(where: str, line: str) -> OwnQuestion:
    try:
        values = parse_json(line)
    except ValueError as error:
        raise InvalidRequest(f"{where}: is no JSON ({error}); {_REMEDY}") from None
    if not isinstance(values, dict):
        raise InvalidRequest(f"{where}: expected an object, got {str(values)[:40]!r}; {_REMEDY}")
    _check_known(where, values)
    if field := halved_field(values):
        raise InvalidRequest(f"{where}: {field}: {HALVED}")
    question, unanswerable = values.get("question"), values.get("unanswerable", False)
    if not isinstance(question, str) or not question.strip():
        raise InvalidRequest(f"{where}: question: expected a text, got {question!r}; {_REMEDY}")
    if not isinstance(unanswerable, bool):
        raise InvalidRequest(f"{where}: unanswerable: expected true or false, got {unanswerable!r}")
    texts = {name: tuple(_texts(f"{where}: {name}", values.get(name, []))) for name in _TEXTS}
    if unanswerable and (texts["answers"] or texts["evidence"]):
        raise InvalidRequest(
            f"{where}: unanswerable: is true, and there are answers or evidence; leave one of them out"
        )
    return OwnQuestion(question, unanswerable=unanswerable, **texts)


def _check_known(where: str, values: dict[str, Any]) -> None:
    known = [*(one.name for one in fields(OwnQuestion)), *_BESIDE]
    for key in values:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(known)}"
            raise InvalidRequest(f"{where}: {key}: unknown field; {hint}")


def _texts(where: str, value: Any) -> Iterator[str]:
    """One text stands for a list of it."""
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list):
        raise InvalidRequest(f"{where}: expected a list of texts, got {value!r}")
    for text in listed:
        if not isinstance(text, str) or not text.strip():
            raise InvalidRequest(f"{where}: expected texts, got {text!r}")
        yield text
