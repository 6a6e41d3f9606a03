"""The chunks of a context as a caller sees them who asked for an explanation: their text, and what of it was
computed anew."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from pydantic import BaseModel

from shared.answer import Retrieved
from shared.generation.told import SelectedEvent


class ExplainedSpan(BaseModel):
    """Characters [start, end) of the chunk's text that were computed anew, and the mean score of their
    tokens."""

    start: int
    end: int
    score: float


class ExplainedChunk(BaseModel):
    """``source``: its place in ``sources``. ``num_tokens``: null of a handed one, which the generator alone
    counts. ``origin``: where its KV came from (``Usage.chunk_origins``); null: nobody says, as of a context
    that was refused. ``conditioned``: its KV was computed behind something of its document.
    ``selected_tokens``: those that the mode chose to be computed anew, in ``spans``; null if ``num_tokens``
    of a chunk up to it is."""

    source: int
    text: str
    num_tokens: int | None
    origin: str | None
    conditioned: bool
    selected_tokens: int | None
    spans: list[ExplainedSpan]


def explained(
    retrieved: Retrieved, selections: Sequence[SelectedEvent], origins: Sequence[str]
) -> list[ExplainedChunk]:
    """The context in order. ``selections``: one, or one per question; what any of them chose is told once.
    ``origins``: of each chunk; none: nobody says."""
    chunks = [hit.chunk for hit in retrieved.hits]
    ends = list(accumulate(len(chunk.token_ids) for chunk in chunks))
    chosen = {token for selected in selections for token in selected.tokens}
    told = []
    counted = True
    for i, (chunk, end) in enumerate(zip(chunks, ends, strict=True)):
        num = len(chunk.token_ids)
        counted = counted and num > 0
        spans = {
            (span.start, span.end, span.score)
            for selected in selections
            for of_chunk in selected.chunks[i : i + 1]
            for span in of_chunk
        }
        told.append(
            ExplainedChunk(
                source=i,
                text=chunk.text,
                num_tokens=num or None,
                origin=origins[i] if len(origins) == len(chunks) else None,
                conditioned=bool(chunk.parent_id),
                selected_tokens=sum(end - num <= token < end for token in chosen) if counted else None,
                spans=[ExplainedSpan(start=a, end=b, score=score) for a, b, score in sorted(spans)],
            )
        )
    return told
