"""Says what of a user's message goes into the context, and what stays."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from services.gateway.pasted.borders import pieces

_EMPTY_LINE = re.compile(r"\n[^\S\n]*\n\s*")


@dataclass(frozen=True, slots=True)
class KnownPart:
    """A part of a message that is the chunk ``chunk``, by its place in a list of them."""

    begin: int
    end: int
    chunk: int


@dataclass(frozen=True, slots=True)
class CutOut:
    """``taken``: in order; a text, or the place of a chunk. ``rest``: the message without them."""

    taken: tuple[int | str, ...]
    rest: str


def cut_out(text: str, known: Sequence[KnownPart], least_chars: int) -> CutOut:
    """``known``: in order, apart from each other. ``least_chars``: from which on text between them is taken
    as well. The first and the last paragraph stay if they are shorter: the question is one of them. Something
    stays always: where that would be nothing, the last piece."""
    taken = list(_taken(text, known, least_chars))
    while taken and not _rest(text, taken).strip():
        taken.pop()  # a question is needed, and nobody said which part is one
    if not taken:
        return CutOut((), text)
    chunks = (text[part.begin : part.end].strip() if part.chunk < 0 else part.chunk for part in taken)
    return CutOut(tuple(chunks), _rest(text, taken))


def _taken(text: str, known: Sequence[KnownPart], least_chars: int) -> Iterator[KnownPart]:
    begin, free = 0, _between_questions(text, least_chars)
    for part in (*known, KnownPart(len(text), len(text), -1)):
        low, high = max(begin, free.start), min(part.begin, free.stop)
        unknown = text[low:high]
        if len(unknown.strip()) >= least_chars:
            yield from (
                KnownPart(low + one, low + end, -1)
                for one, end in pieces(unknown)
                if unknown[one:end].strip()
            )
        if part.chunk >= 0:
            yield part
        begin = part.end


def _between_questions(text: str, least_chars: int) -> range:
    """Returns the text that may be taken although nobody knows it. A message without an empty line is parted
    at lines; of a single line all may be."""
    stripped = text.strip()
    if not stripped:
        return range(0)
    begin, end = text.index(stripped), text.index(stripped) + len(stripped)
    breaks = [match.span() for match in _EMPTY_LINE.finditer(text, begin, end)]
    if not breaks:
        breaks = [match.span() for match in re.finditer(r"\n\s*", text[:end]) if match.start() >= begin]
    if not breaks:
        return range(begin, end)
    low = breaks[0][1] if breaks[0][0] - begin < least_chars else begin
    high = breaks[-1][0] if end - breaks[-1][1] < least_chars else end
    return range(low, high)


def _rest(text: str, taken: Sequence[KnownPart]) -> str:
    """Returns the text between them; an empty line stands for each."""
    begins, ends = [0, *(part.end for part in taken)], [*(part.begin for part in taken), len(text)]
    between = (text[begin:end].strip() for begin, end in zip(begins, ends, strict=True))
    return "\n\n".join(filter(None, between))
