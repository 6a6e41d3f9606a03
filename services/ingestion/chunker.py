"""Cuts a document's text into chunks by the generator's own tokenizer, along headings, paragraphs and
sentences."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from semantic_text_splitter import MarkdownSplitter, TextSplitter

from services.ingestion.formats.document import Heading, ParsedDocument
from services.ingestion.formats.plain import headings_of
from shared.errors import ConfigError, UnreadableDocument

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
    """``text`` is characters [start, end) of the document's text."""

    text: str
    token_ids: tuple[int, ...]
    start: int
    end: int
    heading: str


class Chunker:
    """
    Raises:
        ConfigError: the template's own text leaves no room in ``chunk_tokens``.
    """

    def __init__(self, encoder: ChunkEncoder, chunk_tokens: int) -> None:
        around = len(encoder.encode_chunk(""))
        if chunk_tokens < around + _MIN_TEXT_TOKENS:
            raise ConfigError(
                f"chunk_tokens: the chunk template alone has {around} tokens; use at least "
                f"{around + _MIN_TEXT_TOKENS}"
            )
        self._encoder = encoder
        self._chunk_tokens = chunk_tokens
        self._plain = TextSplitter.from_callback(self._num_tokens, chunk_tokens)
        self._markdown = MarkdownSplitter.from_callback(self._num_tokens, chunk_tokens)

    def split(self, document: ParsedDocument) -> list[TextChunk]:
        """Chunks in order, without overlap; between them is nothing but white space.

        Raises:
            UnreadableDocument: a single character needs more than ``chunk_tokens``.
        """
        headings = HeadingPaths(document.headings)
        return [
            self._chunk(text, start, headings.at(start))
            for start, text in self._pieces(document)
            if text.strip()
        ]

    def recut(self, chunks: Iterable[TextChunk]) -> list[TextChunk]:
        """The same texts for another tokenizer: cut further where they have become too long."""
        return [
            self._chunk(text, chunk.start + start, chunk.heading)
            for chunk in chunks
            for start, text in self._pieces(ParsedDocument(chunk.text, headings=headings_of(chunk.text)))
            if text.strip()
        ]

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
