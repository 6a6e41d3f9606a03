"""Writing in the Margins (arXiv 2408.14906): notes on every chunk, then the answer with the useful ones in
context.

    chunk 0 ──► margin ──► relevant? ──┐
    chunk 1 ──► margin ──► relevant? ──┼──► all chunks, kept margins, question ──► answer
    chunk 2 ──► margin ──► relevant? ──┘

Each margin sees the prefix and its own chunk (``after`` own), or all chunks in front of that as well, as in
the paper (``after`` previous). All are requests of their own to the engine, which decodes them
in the same steps and shares the chunks' resident KV with the answer that follows. A margin is relevant if the
model, asked so, finds ``yes`` more likely than ``no``: by the log-probabilities of the first token in which
the two differ. The kept margins stand, as chunks would, in front of the question, in the order of their
chunks; their text is prefilled with the question, so the answer is exact.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

from services.generator.planning import Plan
from services.generator.service import Generator
from shared.errors import InvalidRequest
from shared.generation.asked import Margins, MarginsAfter, SamplingParams
from shared.generation.modes import ReuseMode
from shared.generation.orders import GenerationOrder, Reuse
from shared.generation.pieces import Tokenized
from shared.generation.told import (
    BranchDoneEvent,
    DoneEvent,
    Event,
    GenerationEvent,
    MarginEvent,
    MarginTokenEvent,
    TokenEvent,
    Usage,
)
from shared.identity import TokenIds
from shared.prompt import PromptTokenizer
from shared.request import RequestContext
from shared.streams import merged

_MOST_SLOTS = 8


class MarginWriter:
    """Answers one order whose question is text, with margins."""

    def __init__(self, generator: Generator, ctx: RequestContext, planned: Plan, margins: Margins) -> None:
        """``planned``: the answer as it would be without margins.

        Raises:
            InvalidRequest: names the field.
        """
        order = planned.order
        if generator.tokenizer is None:
            raise InvalidRequest("decoding.margins: margins are text, and this model has no tokenizer")
        if len(order.questions) != 1 or not isinstance(order.questions[0], str):
            raise InvalidRequest("decoding.margins: give one question, as text")
        if order.idle:
            raise InvalidRequest("idle: margins are not written in idle time; leave it out")
        if not order.chunks:
            raise InvalidRequest("decoding.margins: there are no chunks to write margins on")
        for name, text, slot in (
            ("instruction", margins.instruction, "{question}"),
            ("relevance", margins.relevance, "{margin}"),
        ):
            if slot not in text:
                raise InvalidRequest(f"decoding.margins.{name}: must contain {slot}")
            if text.count("{question}") > _MOST_SLOTS:
                raise InvalidRequest(
                    f"decoding.margins.{name}: contains {{question}} {text.count('{question}')} times; "
                    f"{_MOST_SLOTS} are allowed"
                )
        if margins.max_tokens > generator.config.max_tokens_limit:
            raise InvalidRequest(
                f"decoding.margins.max_tokens: {margins.max_tokens} is more than the "
                f"{generator.config.max_tokens_limit} allowed"
            )
        self._generator = generator
        self._tokenizer: PromptTokenizer = generator.tokenizer
        self._ctx = ctx
        self._order = order
        # A chunk alone behind the prefix is stored as ``full`` would compute it: nothing is worth computing
        # anew. Behind others a note is a draft: tokens chosen for the answer are computed for that alone.
        drafted = Reuse(ReuseMode.REORDERED, adapter=order.reuse.adapter)
        self._reuse = drafted if planned.request.reuse.recomputes else order.reuse
        self._margins = margins
        self._question = order.questions[0]
        self._shared_ids, self._yes_id, self._no_id = _first_difference(
            self._tokenizer, margins.yes, margins.no
        )
        self._usage = Usage(0, 0, 0, 0)

    async def answer(self) -> AsyncGenerator[GenerationEvent | Event, None]:
        """Margins as they come, then the answer's events. Usage is that of everything, times are the
        answer's, its first token and its end from the beginning of the margins."""
        begun = time.monotonic()
        notes: list[MarginEvent] = []
        async with aclosing(merged(map(self._margin, range(len(self._order.chunks))))) as events:
            async for event in events:
                yield event
                if isinstance(event, MarginEvent) and event.kept:
                    notes.append(event)
        before = time.monotonic() - begun
        annotated = await self._generator.tokenized(self._annotated, notes)
        final = await self._generator.plan(self._ctx, replace(self._order, questions=(annotated,)))
        async with aclosing(self._generator.generate(self._ctx, final)) as answer:
            async for told in answer:
                if isinstance(told, DoneEvent):
                    times = told.timings
                    timings = replace(
                        times, first_token_s=times.first_token_s + before, total_s=times.total_s + before
                    )
                    yield replace(told, usage=_sum(told.usage, self._usage), timings=timings)
                else:
                    yield told

    def _annotated(self, notes: Sequence[MarginEvent]) -> Tokenized:
        ordered = sorted(notes, key=lambda note: note.chunk)
        noted = [token for note in ordered for token in self._tokenizer.encode_passage(note.text.strip())]
        return Tokenized((*noted, *self._tokenizer.encode_question(self._question)), self._question)

    async def _margin(self, chunk: int) -> AsyncGenerator[MarginTokenEvent | MarginEvent, None]:
        text = ""
        asked = self._margins.instruction.replace("{question}", self._question)
        sampling = SamplingParams(max_tokens=self._margins.max_tokens)
        async with aclosing(self._ask(chunk, asked, sampling)) as events:
            async for event in events:
                if isinstance(event, TokenEvent):
                    text += event.text
                    yield MarginTokenEvent(chunk, event.token_id, event.text)
                elif isinstance(event, BranchDoneEvent):
                    text += event.text
        if not text.strip():
            yield MarginEvent(chunk, text, kept=False)
            return
        yes, no = await self._judge(chunk, text.strip())
        yield MarginEvent(chunk, text, yes > no, yes, no)

    async def _judge(self, chunk: int, margin: str) -> tuple[float, float]:
        """Log-probabilities of yes and no."""
        # The margin last: its text may contain the other slot.
        asked = self._margins.relevance.replace("{question}", self._question).replace("{margin}", margin)
        asked_ids = await self._generator.tokenized(self._tokenizer.encode_question, asked)
        ids = (*asked_ids, *self._shared_ids)
        sampling = SamplingParams(max_tokens=1, watch_ids=(self._yes_id, self._no_id))
        async with aclosing(self._ask(chunk, ids, sampling)) as events:
            (token,) = [event async for event in events if isinstance(event, TokenEvent)]
        yes, no = token.watched
        return yes, no

    async def _ask(
        self, chunk: int, question: str | TokenIds, sampling: SamplingParams
    ) -> AsyncGenerator[Event, None]:
        order = GenerationOrder(
            self._order.chunks[self._first_of(chunk) : chunk + 1],
            (question,),
            self._order.prefix,
            self._reuse,
            sampling,
        )
        planned = await self._generator.plan(self._ctx, order)
        async with aclosing(self._generator.generate(self._ctx, planned)) as events:
            async for event in events:
                if isinstance(event, DoneEvent):
                    self._usage = _sum(self._usage, event.usage)
                yield event

    def _first_of(self, chunk: int) -> int:
        """The first chunk that the margin on this one sees."""
        return chunk if self._margins.after is MarginsAfter.OWN else 0


def _first_difference(tokenizer: PromptTokenizer, yes: str, no: str) -> tuple[TokenIds, int, int]:
    """Ids that both begin with, and the first in which they differ."""
    yes_ids, no_ids = tokenizer.encode(yes), tokenizer.encode(no)
    for place, (a, b) in enumerate(zip(yes_ids, no_ids, strict=False)):
        if a != b:
            return yes_ids[:place], a, b
    raise InvalidRequest(
        f"decoding.margins.yes, no: {yes!r} and {no!r} must be two texts of which neither begins with "
        "the other"
    )


def _sum(a: Usage, b: Usage) -> Usage:
    """Counts of both; of the selector's model, the mode and the note ``a``'s."""
    counts = ("prompt", "reused", "recomputed", "generated", "loaded", "selected", "drafted", "accepted")
    names = (f"{count}_tokens" for count in (*counts, "conversation"))
    sums = {name: getattr(a, name) + getattr(b, name) for name in names}
    return replace(a, **sums)
