"""Cuts a document's text into chunks by the generator's own tokenizer, along headings, paragraphs and
sentences."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Protocol

from semantic_text_splitter import MarkdownSplitter, TextSplitter

from services.ingestion.blocks import Unit, blocks_of, parted
from services.ingestion.formats.document import Heading, ParsedDocument
from services.ingestion.formats.plain import headings_of
from shared.errors import ConfigError, InvalidRequest, UnreadableDocument
from shared.kv_types import KvContext, header_text
from shared.readers import SECTION_SEPARATOR, SectionReaders

# Goes into a document's source hash: raise it when the same text would be cut elsewhere.
CHUNKER_VERSION = 2
HEADING_SEPARATOR = SECTION_SEPARATOR
_HEADINGS_NAMED = 8
_MIN_TEXT_TOKENS = 8
_BELOW = re.compile(r"\n(?:[ \t]*\n)+(?=[ \t]*\S)")  # between a block of lines and the next one
_FEW_CHARS_OF_A_TOKEN = 4
_LONG_LINE = 65_536
_LONGER_LINE = re.compile(rf"[^\n]{{{_LONG_LINE + 1},}}")
_JOINED = "\ufdd0"  # no character: stands for a line end at which the splitter must not cut


class ChunkEncoder(Protocol):
    def encode_chunk(self, text: str) -> tuple[int, ...]:
        """Ids of ``text`` in the model's chunk template."""
        ...


@dataclass(frozen=True, slots=True)
class TextChunk:
    """``text`` is characters [start, end) of the document's text. ``header``: of the first chunk of a block
    the ids of the block's header, which may be none; None: it goes on behind the chunk in front of it."""

    text: str
    token_ids: tuple[int, ...]
    start: int
    end: int
    heading: str
    header: tuple[int, ...] | None = ()


class Chunker:
    """``context_tokens``: most ids in front of a chunk in its block.

    Raises:
        ConfigError: the template's own text leaves no room in ``chunk_tokens``.
    """

    def __init__(
        self,
        encoder: ChunkEncoder,
        chunk_tokens: int,
        context: KvContext = KvContext.NONE,
        context_tokens: int = 0,
    ) -> None:
        around = len(encoder.encode_chunk(""))
        if chunk_tokens < around + _MIN_TEXT_TOKENS:
            raise ConfigError(
                f"chunk_tokens: the chunk template alone has {around} tokens; use at least "
                f"{around + _MIN_TEXT_TOKENS}"
            )
        self._encoder = encoder
        self._chunk_tokens, self._context, self._context_tokens = chunk_tokens, context, context_tokens
        self._plain = TextSplitter.from_callback(self._num_tokens_or_too_many, chunk_tokens)
        self._markdown = MarkdownSplitter.from_callback(self._num_tokens_or_too_many, chunk_tokens)

    def split(self, document: ParsedDocument, sections: Sequence[SectionReaders] = ()) -> list[TextChunk]:
        """Chunks in order, without overlap; between them is nothing but white space. What has other readers
        by ``sections`` is in other chunks and other blocks.

        Raises:
            UnreadableDocument: a single character needs more than ``chunk_tokens``.
            InvalidRequest: there is no such section.
        """
        headings = HeadingPaths(document.headings)
        blocks = list(parts_by_readers(document, headings, sections))
        if self._context is KvContext.DOCUMENT:
            most = self._context_tokens + self._chunk_tokens
            blocks = [
                (begin + start, begin + stop)
                for begin, end in blocks
                for start, stop in blocks_of(document.part(begin, end), most, self._num_tokens)
            ]
        chunks: list[TextChunk] = []
        for begin, end in blocks:
            block = [
                self._chunk(text, begin + start, headings.at(begin + start))
                for start, text in self._pieces(document.part(begin, end))
                if text.strip()
            ]
            chunks += self._chained(document.title, block)
        return chunks

    def recut(
        self, title: str, chunks: Iterable[TextChunk], sections: Sequence[SectionReaders] = ()
    ) -> list[TextChunk]:
        """The same texts for another tokenizer or another context: cut further where they have become too
        long."""
        cut = [
            self._chunk(text, chunk.start + start, chunk.heading)
            for chunk in chunks
            for start, text in self._pieces(ParsedDocument(chunk.text, headings=headings_of(chunk.text)))
            if text.strip()
        ]
        chained: list[TextChunk] = []
        for _, alike in groupby(cut, lambda chunk: covering(chunk.heading, sections)):
            part = list(alike)
            units = [
                Unit.of(chunk.start, _level(before, chunk), chunk.text, len(chunk.token_ids))
                for before, chunk in zip([None, *part], part, strict=False)
            ]
            for block in parted(units, self._context_tokens + self._chunk_tokens):
                chained += self._chained(title, [part[i] for i in block])
        return chained

    def _chained(self, title: str, block: Sequence[TextChunk]) -> list[TextChunk]:
        """The chunks of a block with what they are computed behind. Where a block turns out to be too long
        for the context after all, another one begins."""
        if self._context is KvContext.NONE:
            return list(block)
        chained: list[TextChunk] = []
        in_front = 0
        for chunk in block:
            begins = not chained or self._context is KvContext.HEADER or in_front > self._context_tokens
            header = self._header(title, chunk.heading) if begins else None
            if header is not None:
                in_front = len(header)
            chained.append(replace(chunk, header=header))
            in_front += len(chunk.token_ids)
        return chained

    def _header(self, title: str, heading: str) -> tuple[int, ...]:
        """Ids of title and headings, as long as a header may be."""
        text = header_text(title, heading)
        room = min(self._context_tokens, self._chunk_tokens)
        return self._encoder.encode_chunk(text)[:room] if text else ()

    def _pieces(self, document: ParsedDocument) -> Iterator[tuple[int, str]]:
        """Cuts; says where the pieces start. A heading stays with the text below it."""
        borders = [0, *_inside_long_lines(document.text), len(document.text)]
        for begin, end in pairwise(borders):
            part = document if len(borders) == 2 else document.part(begin, end)
            if part.markdown:
                found = self._markdown.chunk_indices(part.text)
            else:
                found = self._plain.chunk_indices(_joined(part))
            for start, piece in found:
                yield begin + start, part.text[start : start + len(piece)]

    def _chunk(self, text: str, start: int, heading: str) -> TextChunk:
        token_ids = self._encoder.encode_chunk(text)
        if len(token_ids) > self._chunk_tokens:
            raise UnreadableDocument(
                f"{text[:20]!r} alone has {len(token_ids)} tokens; raise chunk_tokens ({self._chunk_tokens})"
            )
        return TextChunk(text, token_ids, start, start + len(text), heading)

    def _num_tokens_or_too_many(self, text: str) -> int:
        """The splitters measure all that is left of a long line for every chunk of it, only to hear that it
        is too long: its beginning tells that as well."""
        length = self._chunk_tokens * _FEW_CHARS_OF_A_TOKEN
        while length < len(text):
            if (at_least := self._num_tokens(text[:length])) > self._chunk_tokens:
                return at_least
            length *= _FEW_CHARS_OF_A_TOKEN
        return self._num_tokens(text)

    def _num_tokens(self, text: str) -> int:
        return len(self._encoder.encode_chunk(text.replace(_JOINED, "\n")))


def _inside_long_lines(text: str) -> Iterator[int]:
    """Finds where lines of more than ``_LONG_LINE`` characters are cut beforehand, at blanks if there are
    some: what the splitters take for a line grows with its square."""
    for line in _LONGER_LINE.finditer(text):
        at = line.start()
        while line.end() - at > _LONG_LINE:
            at = (text.rfind(" ", at, at + _LONG_LINE) + 1) or at + _LONG_LINE
            yield at


def _joined(document: ParsedDocument) -> str:
    """The text, as long as it was, in which no line ends between a heading and the text below it."""
    text = document.text
    parts, position = [], 0
    for heading in document.headings:
        below = _BELOW.search(text, heading.start)
        if below is not None:
            parts += [
                text[position : heading.start],
                text[heading.start : below.end()].replace("\n", _JOINED),
            ]
            position = below.end()
    return "".join([*parts, text[position:]])


def _level(before: TextChunk | None, chunk: TextChunk) -> int:
    """Of the heading that a chunk begins below and the one before it does not; 0: there is none."""
    ours = chunk.heading.split(HEADING_SEPARATOR) if chunk.heading else []
    theirs = before.heading.split(HEADING_SEPARATOR) if before is not None and before.heading else []
    shared = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), len(theirs))
    return shared + 1 if len(ours) > shared else 0


def parts_by_readers(
    document: ParsedDocument, headings: HeadingPaths, sections: Sequence[SectionReaders]
) -> Iterator[tuple[int, int]]:
    """Characters [start, end) of what stands together in the same ones of ``sections``.

    Raises:
        InvalidRequest: the document does not have one of them.
    """
    starts = [0, *(heading.start for heading in document.headings if sections)]
    for section in sections:
        if not any(section.covers(headings.at(start)) for start in starts):
            known = ", ".join(repr(heading.title[:80]) for heading in document.headings[:_HEADINGS_NAMED])
            raise InvalidRequest(
                f"sections: the document has no heading {section.heading[:80]!r}; it has {known or 'none'}"
            )
    alike = [next(run) for _, run in groupby(starts, lambda at: covering(headings.at(at), sections))]
    yield from pairwise([*alike, len(document.text)])


def covering(heading: str, sections: Sequence[SectionReaders]) -> tuple[bool, ...]:
    """Of each section, whether what stands below ``heading`` is in it."""
    return tuple(section.covers(heading) for section in sections)


class HeadingPaths:
    """The headings above any place in a text."""

    def __init__(self, headings: Sequence[Heading]) -> None:
        self._starts: list[int] = []
        self._paths: list[str] = []
        above: list[Heading] = []
        for heading in headings:
            above = [h for h in above if h.level < heading.level] + [heading]
            self._starts.append(heading.start)
            self._paths.append(HEADING_SEPARATOR.join(h.title for h in above))

    def at(self, position: int) -> str:
        """Outermost first; a heading is above its own line."""
        found = bisect_right(self._starts, position)
        return self._paths[found - 1] if found else ""
