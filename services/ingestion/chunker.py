"""Cuts a document's text into chunks by the generator's own tokenizer, along headings, paragraphs and
sentences."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from semantic_text_splitter import MarkdownSplitter, TextSplitter

from services.ingestion.blocks import Unit, blocks_of, parted
from services.ingestion.formats.document import Heading, ParsedDocument
from services.ingestion.formats.plain import headings_of
from shared.errors import ConfigError, UnreadableDocument
from shared.kv_types import KvContext, header_text

# Goes into a document's source hash: raise it when the same text would be cut elsewhere.
CHUNKER_VERSION = 2
HEADING_SEPARATOR = " > "
_MIN_TEXT_TOKENS = 8
_BELOW = re.compile(r"\n(?:[ \t]*\n)+(?=[ \t]*\S)")  # between a block of lines and the next one
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
        self._plain = TextSplitter.from_callback(self._num_tokens, chunk_tokens)
        self._markdown = MarkdownSplitter.from_callback(self._num_tokens, chunk_tokens)

    def split(self, document: ParsedDocument) -> list[TextChunk]:
        """Chunks in order, without overlap; between them is nothing but white space.

        Raises:
            UnreadableDocument: a single character needs more than ``chunk_tokens``.
        """
        headings = HeadingPaths(document.headings)
        blocks = [(0, len(document.text))]
        if self._context is KvContext.DOCUMENT:
            blocks = blocks_of(document, self._context_tokens + self._chunk_tokens, self._num_tokens)
        chunks: list[TextChunk] = []
        for begin, end in blocks:
            block = [
                self._chunk(text, begin + start, headings.at(begin + start))
                for start, text in self._pieces(document.part(begin, end))
                if text.strip()
            ]
            chunks += self._chained(document.title, block)
        return chunks

    def recut(self, title: str, chunks: Iterable[TextChunk]) -> list[TextChunk]:
        """The same texts for another tokenizer or another context: cut further where they have become too
        long."""
        cut = [
            self._chunk(text, chunk.start + start, chunk.heading)
            for chunk in chunks
            for start, text in self._pieces(ParsedDocument(chunk.text, headings=headings_of(chunk.text)))
            if text.strip()
        ]
        units = [
            Unit.of(chunk.start, _level(before, chunk), chunk.text, len(chunk.token_ids))
            for before, chunk in zip([None, *cut], cut, strict=False)
        ]
        blocks = parted(units, self._context_tokens + self._chunk_tokens)
        return [chunk for block in blocks for chunk in self._chained(title, [cut[i] for i in block])]

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

    def _pieces(self, document: ParsedDocument) -> Iterable[tuple[int, str]]:
        """Cuts; says where the pieces start. A heading stays with the text below it."""
        if document.markdown:
            pieces: Iterable[tuple[int, str]] = self._markdown.chunk_indices(document.text)
            return pieces
        joined = _joined(document)
        found = self._plain.chunk_indices(joined)
        return [(start, document.text[start : start + len(piece)]) for start, piece in found]

    def _chunk(self, text: str, start: int, heading: str) -> TextChunk:
        token_ids = self._encoder.encode_chunk(text)
        if len(token_ids) > self._chunk_tokens:
            raise UnreadableDocument(
                f"{text[:20]!r} alone has {len(token_ids)} tokens; raise chunk_tokens ({self._chunk_tokens})"
            )
        return TextChunk(text, token_ids, start, start + len(text), heading)

    def _num_tokens(self, text: str) -> int:
        return len(self._encoder.encode_chunk(text.replace(_JOINED, "\n")))


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
