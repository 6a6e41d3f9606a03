"""Reads what the chunks and questions of a request say, whether they came as text or as ids, and where in it
their tokens are."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from shared.errors import ModelUnsupported
from shared.generation.pieces import Piece, ids_of, text_of
from shared.generation.told import TextSpan
from shared.identity import TokenIds
from shared.prompt import PromptTokenizer
from shared.selection.spans import SpanTokenizer, TokenSpans


@dataclass(frozen=True, slots=True, eq=False)
class ChunkText:
    """``text`` is what the chunk's ids are made of, the template included; [begin, end) of it is what was
    sent for the chunk."""

    text: str
    tokens: TokenSpans
    begin: int
    end: int


class ChunkReader:
    """Methods may be called from any thread."""

    def __init__(self, tokenizer: PromptTokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._spans: SpanTokenizer | None = None
        if tokenizer is not None:
            try:
                self._spans = SpanTokenizer(tokenizer, "the primary model")
            except ModelUnsupported:  # it gives no offsets: chunks have no text here
                self._spans = None

    def chunk(self, piece: Piece, token_ids: TokenIds) -> ChunkText | None:
        """None: its text is not known, or does not give these ids."""
        if self._tokenizer is None or self._spans is None:
            return None
        if text := text_of(piece):
            before, after = self._tokenizer.template.chunk.split("{text}")
            begin, end = len(before), len(before) + len(text)
            whole = before + text + after
        else:
            whole = self._tokenizer.decode(token_ids)
            begin, end = 0, len(whole)
        tokens = self._spans.tokenize_chunk(whole)
        return (
            ChunkText(whole, tokens, begin, end)
            if tokens is not None and tokens.token_ids == token_ids
            else None
        )

    def chunks(self, pieces: Sequence[Piece], token_ids: Sequence[TokenIds]) -> list[ChunkText | None]:
        """In order; of a chunk that occurs several times the same."""
        read = {key: self.chunk(*key) for key in dict.fromkeys(zip(pieces, token_ids, strict=True))}
        return [read[key] for key in zip(pieces, token_ids, strict=True)]

    def question(self, piece: Piece) -> str | None:
        """As it was asked, without a template if it came as text. None: its ids are no text."""
        if text_of(piece) or isinstance(piece, str) or self._tokenizer is None:
            return text_of(piece) or None
        text = self._tokenizer.decode(ids_of(piece))
        tokens = self._read(text)
        return text if text.strip() and tokens is not None and tokens.token_ids == ids_of(piece) else None

    def _read(self, text: str) -> TokenSpans | None:
        return None if self._spans is None else self._spans.tokenize(text)


def spans_of(
    chunks: Sequence[ChunkText | None],
    chunk_lens: Sequence[int],
    selected: Sequence[int],
    scores: Sequence[float],
) -> tuple[tuple[TextSpan, ...], ...]:
    """Finds the selected tokens, in ascending order, in each chunk's own text: runs of neighbours. ``scores``
    may be empty."""
    starts = [0, *accumulate(chunk_lens)]
    told = []
    for chunk, start, end in zip(chunks, starts, starts[1:], strict=False):
        mine = [
            token - start for token in selected[bisect_left(selected, start) : bisect_left(selected, end)]
        ]
        told.append(_runs(chunk, mine, scores[start:end]) if chunk is not None else ())
    return tuple(told)


def _runs(chunk: ChunkText, tokens: Sequence[int], scores: Sequence[float]) -> tuple[TextSpan, ...]:
    runs: list[tuple[int, int, list[float]]] = []
    for token in tokens:
        start = max(int(chunk.tokens.starts[token]), chunk.begin) - chunk.begin
        end = min(int(chunk.tokens.ends[token]), chunk.end) - chunk.begin
        score = [scores[token]] if scores else []
        if start >= end:  # of the template
            continue
        if runs and start <= runs[-1][1]:
            first, reach, known = runs[-1]
            runs[-1] = first, max(reach, end), known + score
        else:
            runs.append((start, end, score))
    return tuple(
        TextSpan(start, end, sum(known) / len(known) if known else 0.0) for start, end, known in runs
    )
