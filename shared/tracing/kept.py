"""Keeps spans as JSON lines on the machine itself, a file per process, and reads them again.

A file that has half of the room becomes ``….old.jsonl``, in place of the one before. What processes that are
gone left is removed, the oldest first, when it and the room of a new one are more than a service has.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.private_files import make_private_directory, open_private

log = logging.getLogger(__name__)
_OLD = ".old.jsonl"


@dataclass(frozen=True, slots=True)
class KeptSpan:
    """``parent_id`` empty: none. Instants: nanoseconds since 1970. ``error``: its code; empty: there was
    none."""

    trace_id: str
    span_id: str
    parent_id: str
    service: str
    name: str
    began_ns: int
    ended_ns: int
    error: str
    attributes: dict[str, Any]


_FIELDS = tuple(field.name for field in dataclasses.fields(KeptSpan))


class SpanFile:
    """Written by one process, from one thread."""

    def __init__(self, directory: Path, service: str, keep_bytes: int) -> None:
        make_private_directory(directory)
        self._path = directory / f"{service}-{os.getpid()}.jsonl"
        self._most_bytes = max(1, keep_bytes // 2)
        _make_room(directory, service, keep_bytes)

    def write(self, spans: Sequence[KeptSpan]) -> None:
        """Appends them. A full disk costs the spans, and nothing else."""
        lines = "".join(map(_line_of, spans))
        try:
            if self._path.exists() and self._path.stat().st_size + len(lines) > self._most_bytes:
                os.replace(self._path, self._path.with_suffix(_OLD))
            with open(self._path, "a", encoding="utf-8", opener=open_private) as file:
                file.write(lines)
        except OSError as error:
            log.warning("%d spans could not be kept: %s", len(spans), error.strerror)


def _line_of(span: KeptSpan) -> str:
    """As JSON. ``dataclasses.asdict``, which copies every value, would cost four times as much."""
    return json.dumps({name: getattr(span, name) for name in _FIELDS}, ensure_ascii=False) + "\n"


def kept_spans(directory: Path) -> Iterator[KeptSpan]:
    """All that are there, file by file; what is being written just now is left out."""
    for path in sorted(directory.glob("*.jsonl")):
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:  # became an old one meanwhile, or was removed
            continue
        for line in lines:
            try:
                yield KeptSpan(**json.loads(line))
            except (ValueError, TypeError):  # half a line, or of another version
                continue


def _make_room(directory: Path, service: str, keep_bytes: int) -> None:
    found = [(path, path.stat()) for path in directory.glob(f"{service}-*.jsonl")]
    total = sum(status.st_size for _, status in found)
    for path, status in sorted(found, key=lambda one: one[1].st_mtime):
        if total <= keep_bytes // 2:
            return
        path.unlink(missing_ok=True)
        total -= status.st_size
