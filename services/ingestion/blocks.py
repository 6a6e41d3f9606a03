"""Parts a document into blocks, each of which is one chain: its chunks are computed behind its header and
behind each other.

A text that is too long for one block is parted at its strongest border, the two parts likewise, until all fit.
Borders are headings, the outermost first, and else paragraphs, the one whose text hashes lowest first. A border
is as strong as what stands there says, so an edit moves no border elsewhere: it costs its own block, and those
that are split off when this one becomes too long.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from services.ingestion.formats.document import ParsedDocument
from shared.identity import digest

_PARAGRAPH = re.compile(r"\n[ \t]*\n\s*")
_BELOW_HEADINGS = 1_000  # the level of paragraphs


@dataclass(frozen=True, slots=True)
class Unit:
    """What no border runs through. ``strength`` of the border in front of it: the least is the strongest."""

    start: int
    strength: tuple[int, str]
    num_tokens: int


def blocks_of(
    document: ParsedDocument, max_tokens: int, count: Callable[[str], int]
) -> list[tuple[int, int]]:
    """Characters [start, end) of each block, in order; ``count``: tokens of a text. A paragraph of more than
    ``max_tokens`` is a block of its own."""
    units = list(_units(document, count))
    starts = [units[part.start].start for part in parted(units, max_tokens)]
    return list(zip(starts, [*starts[1:], len(document.text)], strict=True))


def parted(units: Sequence[Unit], max_tokens: int) -> list[range]:
    """The units of each block."""
    sums = [0]
    for unit in units:
        sums.append(sums[-1] + unit.num_tokens)
    blocks: list[range] = []
    waiting = [range(len(units))] if units else []
    while waiting:
        part = waiting.pop()
        if len(part) == 1 or sums[part.stop] - sums[part.start] <= max_tokens:
            blocks.append(part)
            continue
        border = min(part[1:], key=lambda i: units[i].strength)
        waiting += [range(border, part.stop), range(part.start, border)]
    return blocks


def _units(document: ParsedDocument, count: Callable[[str], int]) -> Iterator[Unit]:
    """Paragraphs; a heading begins one."""
    levels = {heading.start: heading.level for heading in document.headings}
    text = document.text
    starts = sorted({0, *levels, *(match.end() for match in _PARAGRAPH.finditer(text))} - {len(text)})
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        yield Unit(
            start,
            border_strength(levels.get(start, _BELOW_HEADINGS), text[start:end]),
            count(text[start:end]),
        )


def border_strength(level: int, text: str) -> tuple[int, str]:
    """Of the border in front of ``text``; ``level`` 0: no heading."""
    return level or _BELOW_HEADINGS, digest(text.strip().encode("utf-8", "surrogatepass"), size=8)
