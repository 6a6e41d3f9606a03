"""Parts a document into blocks, each of which is one chain: its chunks are computed behind its header and
behind each other.

A text that fits is one block. Else it is parted at its outermost headings, and what is still too long at
those below; without headings at paragraphs whose own text says, by its hash, that they begin a block, about
two of them in as many tokens as fit. What stands there makes it a border, not what is in front of it: so an
edit moves no border elsewhere, and costs its own block and those that are split off when this one becomes too
long.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from services.ingestion.formats.document import ParsedDocument
from shared.identity import digest

_PARAGRAPH = re.compile(r"\n[ \t]*\n\s*")
_HASH_BITS = 64
_HEADING_LINES = 2  # it may be underlined


@dataclass(frozen=True, slots=True)
class Unit:
    """A paragraph or a chunk, which no border runs through. ``level``: of the heading that it begins with; 0:
    with none. ``hash``: of its text, from 0 to 1."""

    start: int
    level: int
    hash: float
    num_tokens: int

    @classmethod
    def of(cls, start: int, level: int, text: str, num_tokens: int) -> Unit:
        hashed = digest(text.strip().encode("utf-8", "surrogatepass"), size=_HASH_BITS // 8)
        return cls(start, level, int(hashed, 16) / 2**_HASH_BITS, num_tokens)


def blocks_of(
    document: ParsedDocument, max_tokens: int, count: Callable[[str], int]
) -> list[tuple[int, int]]:
    """Characters [start, end) of each block, in order; ``count``: tokens of a text. A paragraph of more than
    ``max_tokens`` is a block of its own."""
    units = list(_units(document, count))
    starts = [units[part.start].start for part in parted(units, max_tokens)]
    return list(pairwise([*starts, len(document.text)]))


def parted(units: Sequence[Unit], max_tokens: int) -> list[range]:
    """The units of each block."""
    sums = list(accumulate((unit.num_tokens for unit in units), initial=0))
    blocks: list[range] = []
    waiting = [range(len(units))] if units else []
    while waiting:
        part = waiting.pop()
        if len(part) == 1 or sums[part.stop] - sums[part.start] <= max_tokens:
            blocks.append(part)
        else:
            borders = [part.start, *_borders(units, part[1:], max_tokens), part.stop]
            waiting += [range(begin, end) for begin, end in pairwise(borders)][::-1]
    return blocks


def _borders(units: Sequence[Unit], inside: range, max_tokens: int) -> list[int]:
    """At least one. Without a heading or a paragraph that begins a block, the one that hashes lowest."""
    outermost = min((units[i].level for i in inside if units[i].level), default=0)
    if outermost:
        return [i for i in inside if units[i].level == outermost]
    marked = [i for i in inside if units[i].hash * max_tokens < 2 * units[i].num_tokens]
    return marked or [min(inside, key=lambda i: units[i].hash)]


def _units(document: ParsedDocument, count: Callable[[str], int]) -> Iterator[Unit]:
    """Paragraphs; a heading begins one, and stays with the text below it."""
    text, levels = document.text, {heading.start: heading.level for heading in document.headings}
    found = sorted({0, *levels, *(match.end() for match in _PARAGRAPH.finditer(text))} - {len(text)})
    starts = found[:1]
    for before, start in pairwise(found):
        if before not in levels or text[before:start].strip().count("\n") >= _HEADING_LINES:
            starts.append(start)
    for start, end in pairwise([*starts, len(text)]):
        yield Unit.of(start, levels.get(start, 0), text[start:end], count(text[start:end]))
