"""Reads files of records: a line of JSON each, a list of JSON, or comma-separated values, packed by gzip or
not. Whatever is not as it should be is told with its file, line and field."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from cluster.json_text import HALVED, halved_field, parse_json
from shared.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Format:
    """``name``: whose; ``holds``: what a record of it holds; ``option``: what names the file; ``instead``: a
    remedy besides another file."""

    name: str
    holds: str
    option: str = "--data"
    instead: str = "another --suite"


@dataclass(frozen=True, slots=True)
class Record:
    """``place``: line of the file, or number of the item in its list; ``name``: no other record of the file
    has it. Methods raise ``InvalidRequest``."""

    path: Path
    place: str
    format: Format
    values: Mapping[str, Any]
    name: str = ""

    def refuse(self, field: str, what: str) -> NoReturn:
        refuse(self.path, self.place, field, what, self.format)

    def has(self, field: str) -> bool:
        return self.values.get(field) is not None

    def text(self, field: str) -> str:
        value = self._value(field)
        if not isinstance(value, str) or not value.strip():
            self.refuse(field, f"must be text, got {_shown(value)}")
        return value.strip()

    def texts(self, field: str) -> list[str]:
        """A list of texts; a single text is one."""
        value = self._value(field)
        value = [value] if isinstance(value, str) else value
        if not isinstance(value, list) or not value or not all(isinstance(one, str) for one in value):
            self.refuse(field, f"must be a list of texts, got {_shown(value)}")
        return value

    def groups(self, field: str) -> tuple[tuple[str, ...], ...]:
        """A text, or a list of texts and of lists of such as mean the same."""
        value = self._value(field)
        value = [value] if isinstance(value, str) else value
        if not isinstance(value, list) or not value:
            self.refuse(field, f"must be text or a list, got {_shown(value)}")
        groups = tuple(tuple(one) if isinstance(one, list) else (one,) for one in value)
        if not all(group and all(isinstance(form, str) for form in group) for group in groups):
            self.refuse(field, f"must hold texts, or lists of texts, got {_shown(value)}")
        return groups

    def references(self, field: str) -> tuple[tuple[str, ...], ...]:
        """``groups`` without empty texts, which would stand in any answer."""
        filled = (tuple(form for form in group if form.strip()) for group in self.groups(field))
        if not (found := tuple(group for group in filled if group)):
            self.refuse(field, f"must hold text, got {_shown(self.values[field])}")
        return found

    def nested(self, field: str) -> Record:
        value = self._value(field)
        if not isinstance(value, Mapping):
            self.refuse(field, f"must be an object, got {_shown(value)}")
        return Record(self.path, self.place, self.format, value)

    def records(self, field: str) -> list[Record]:
        """A list of objects; their fields are told by their number."""
        value = self._value(field)
        if not isinstance(value, list) or not all(isinstance(one, Mapping) for one in value):
            self.refuse(field, f"must be a list of objects, got {_shown(value)}")
        return [
            Record(self.path, f"{self.place}, {field}[{i}]", self.format, one) for i, one in enumerate(value)
        ]

    def _value(self, field: str) -> Any:
        if not self.has(field):
            self.refuse(field, "is missing")
        return self.values[field]


def read_records(path: Path, format: Format, named_by: str = "") -> Iterator[Record]:
    """Of a file of lines, or of a list; the objects of a list at the key ``Data`` (TriviaQA) as well.
    ``named_by``: the field that names a record; where there is none, or another has the same, its place does.

    Raises:
        InvalidRequest: the file cannot be read, or holds something else.
    """
    taken: set[str] = set()
    for record in _records(path, format):
        name = str(record.values[named_by]) if record.has(named_by) else record.place
        yield replace(record, name=f"{name}, {record.place}" if name in taken else name)
        taken.add(name)


def _records(path: Path, format: Format) -> Iterator[Record]:
    text = read_text(path, format.option)
    if not text.strip():
        refuse(path, "line 1", "", "the file is empty", format)
    if text.lstrip().startswith("[") or _is_one_object(text):
        whole = _parsed(path, "line 1", text, format)
        found = whole.get("Data") if isinstance(whole, dict) else whole
        if not isinstance(found, list):
            refuse(path, "line 1", "Data", "must be a list", format)
        for i, value in enumerate(found):
            yield _record(path, f"item {i + 1}", value, format)
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield _record(path, f"line {number}", _parsed(path, f"line {number}", line, format), format)


def read_rows(path: Path, format: Format) -> Iterator[tuple[str, list[str]]]:
    """Rows of comma-separated values, with the line that each ends at.

    Raises:
        InvalidRequest: the file cannot be read, or holds something else.
    """
    reader = csv.reader(io.StringIO(read_text(path)), strict=True)
    try:
        for row in reader:
            yield f"line {reader.line_num}", row
    except csv.Error as error:
        refuse(path, f"line {reader.line_num}", "", f"is not comma-separated ({error})", format)


def read_text(path: Path, option: str = "--data") -> str:
    """``option``: what names the file.

    Raises:
        InvalidRequest: there is no such file, or it is no text.
    """
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8-sig")
    except FileNotFoundError:
        raise InvalidRequest(f"{option}: there is no file {path}") from None
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise InvalidRequest(
            f"{option}: {path} cannot be read ({error}); name a file of UTF-8 text"
        ) from None


def refuse(path: Path, place: str, field: str, what: str, format: Format) -> NoReturn:
    """
    Raises:
        InvalidRequest: always.
    """
    named = f"{field}: " if field else ""
    raise InvalidRequest(
        f"{format.option}: {path}, {place}: {named}{what}; {format.name} holds {format.holds}. Give such a "
        f"file, or {format.instead}"
    )


def _record(path: Path, place: str, value: Any, format: Format) -> Record:
    if not isinstance(value, Mapping):
        refuse(path, place, "", f"is no object, but {_shown(value)}", format)
    if field := halved_field(value):
        refuse(path, place, field, HALVED, format)
    return Record(path, place, format, value)


def _parsed(path: Path, place: str, text: str, format: Format) -> Any:
    try:
        return parse_json(text)
    except ValueError as error:
        refuse(path, place, "", f"is no JSON ({error})", format)


def _is_one_object(text: str) -> bool:
    """Over several lines, so that its first line is none."""
    first = text.lstrip().partition("\n")[0]
    try:
        return isinstance(whole := parse_json(first), dict) and isinstance(whole.get("Data"), list)
    except ValueError:
        return '"Data"' in text[:2000]


def _shown(value: Any) -> str:
    shown = json.dumps(value, ensure_ascii=False)
    return shown if len(shown) <= 60 else f"{shown[:57]}…"
