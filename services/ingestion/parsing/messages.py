"""Defines what a parsing process is asked and tells, as frames on two pipes: eight bytes that say how long it
is, then the frame. JSON, for what comes from there is to be trusted with no more than words.

    asked   ParsingTask, the document's bytes   told   ParsingResult
            Recognised                                 Page, a PDF of one page: what does it say?
"""

from __future__ import annotations

import dataclasses
import json
import struct
from dataclasses import dataclass
from typing import get_args

from services.ingestion.formats.document import Heading, ParsedDocument

LENGTH = struct.Struct(">Q")
OUT_OF_MEMORY = "OUT_OF_MEMORY"
"""In the place of an error's code."""
STATUS_OUT_OF_MEMORY = 99
"""The process ends with it when it has not even memory to tell."""


@dataclass(frozen=True, slots=True)
class ParsingTask:
    """A document, whose bytes follow. ``recognises``: whoever asks can read pages that are pictures."""

    document_id: str
    media_type: str
    max_unpacked_bytes: int
    table_chars: int
    recognises: bool
    cpu_s: int
    text_bytes: int


@dataclass(frozen=True, slots=True)
class Recognised:
    """``failed``: why there is no text."""

    text: str = ""
    failed: str = ""


@dataclass(frozen=True, slots=True)
class ParsingResult:
    """``code``, ``detail``: the error, if there is one; ``worn``: the process took much memory, and is not to
    be asked again. ``headings``: start, level and title of each."""

    code: str = ""
    detail: str = ""
    worn: bool = False
    text: str = ""
    title: str = ""
    headings: tuple[tuple[int, int, str], ...] = ()
    markdown: bool = False
    warnings: tuple[str, ...] = ()
    incomplete: bool = False

    @classmethod
    def of(cls, parsed: ParsedDocument) -> ParsingResult:
        headings = tuple((h.start, h.level, h.title) for h in parsed.headings)
        return cls(
            text=parsed.text,
            title=parsed.title,
            headings=headings,
            markdown=parsed.markdown,
            warnings=parsed.warnings,
            incomplete=parsed.incomplete,
        )

    @property
    def parsed(self) -> ParsedDocument:
        headings = tuple(Heading(*heading) for heading in self.headings)
        return ParsedDocument(
            self.text, self.title, headings, self.markdown, tuple(self.warnings), self.incomplete
        )


@dataclass(frozen=True, slots=True)
class Page:
    """A page that is a picture, whose PDF follows."""


Message = ParsingTask | Recognised | ParsingResult | Page
KINDS: dict[str, type[Message]] = {kind.__name__: kind for kind in get_args(Message)}


def frame(content: bytes) -> bytes:
    return LENGTH.pack(len(content)) + content


def packed(message: Message) -> bytes:
    """A frame."""
    fields = {f.name: getattr(message, f.name) for f in dataclasses.fields(message)}
    return frame(json.dumps([type(message).__name__, fields]).encode())


def unpacked(content: bytes) -> Message:
    name, fields = json.loads(content)
    return KINDS[name](**fields)
