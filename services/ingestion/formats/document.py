"""Defines what every format becomes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Heading:
    """``start``: character at which the heading's line begins. ``level``: 1 is the outermost."""

    start: int
    level: int
    title: str


@dataclass(frozen=True, slots=True)
class ParsedDocument:
    """``markdown``: the text is Markdown, so its structure says where to cut. ``title`` may be empty.
    ``warnings``: parts that were not read, one sentence each. ``incomplete``: reading it again may give more,
    because a tool failed."""

    text: str
    title: str = ""
    headings: tuple[Heading, ...] = ()
    markdown: bool = False
    warnings: tuple[str, ...] = ()
    incomplete: bool = False
