"""Adds to the engine's own events what else callers are told: what was chosen and why, and what a request
really ran as."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from services.generator.chunk_texts import ChunkText, spans_of
from services.generator.reuse_modes import Reusing
from services.generator.selection import Decision
from shared.generation.asked import Chunk
from shared.generation.told import DoneEvent, SelectedEvent, TokenEvent
from shared.prompt import PromptTokenizer


def end_of(
    done: DoneEvent,
    chunks: Sequence[Chunk],
    reusing: Reusing,
    decision: Decision | None = None,
    route: str = "",
) -> DoneEvent:
    """``decision``: of a request that was to be ``cacheclip``. ``route``: why it came here."""
    usage = replace(done.usage, reuse=reusing.mode, note=reusing.note, verdict=reusing.verdict, route=route)
    timings = done.timings
    if decision is not None:
        timings = replace(timings, select_s=decision.took_s)
        usage = replace(usage, note="; ".join(filter(None, (reusing.note, decision.note))))
        if not decision.selected:
            usage = replace(usage, reuse=decision.mode, verdict=None)
        else:
            picked = sum(one.num_picked for one in decision.selected)
            grouped = sum(one.num_grouped for one in decision.selected)
            usage = replace(usage, picked_tokens=picked, grouped_tokens=grouped)
    return replace(done, usage=usage, timings=timings, chunk_ids=tuple(chunk.chunk_id for chunk in chunks))


def spelt(event: TokenEvent, tokenizer: PromptTokenizer | None) -> TokenEvent:
    """Says what its tokens are, if the likeliest ones were asked for."""
    if tokenizer is None or not event.top_logprobs:
        return event
    top = tuple(tokenizer.decode_one(token_id) for token_id, _ in event.top_logprobs)
    return replace(event, token=tokenizer.decode_one(event.token_id), top_tokens=top)


def selected_of(
    event: SelectedEvent,
    chunks: Sequence[Chunk],
    decision: Decision | None,
    texts: Sequence[ChunkText | None] | None,
) -> SelectedEvent:
    """``texts`` of the chunks; None: no explanation was asked for."""
    if decision is not None and decision.selected:
        answer = decision.selected[event.question or 0]
        event = replace(
            event,
            scores=answer.scores,
            reading=answer.reading,
            num_picked=answer.num_picked,
            num_grouped=answer.num_grouped,
            timings=answer.timings,
        )
    if texts is None:
        return replace(event, scores=())
    lens = [len(chunk.token_ids) for chunk in chunks]
    return replace(event, chunks=spans_of(texts, lens, event.tokens, event.scores))
