"""Collects what the events of an answer have told so far, in OpenAI's words and, in ``kvquilt``, in ours."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Literal

from pydantic import BaseModel

from services.gateway.http.explained import ExplainedChunk, explained
from shared.answer import AnswerEvent, AnswerText, AnswerUsage, FollowUp, Retrieved
from shared.errors import InvalidRequest
from shared.generation.told import FinishReason, SelectedEvent, Timings, TokenEvent, Usage
from shared.search import SearchHit

Finish = Literal["stop", "length"]
MOST_LOGPROBS = 100_000
"""Of an answer in one piece, which is kept until it is whole: each takes about a kilobyte."""


class PromptTokensDetails(BaseModel):
    """``cached_tokens``: those whose KV existed; ``cache_write_tokens``: those of chunks whose KV did
    not, and is kept now."""

    cached_tokens: int
    cache_write_tokens: int


class CompletionUsage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class ContextChunk(BaseModel):
    """One that was retrieved."""

    document_id: str
    title: str
    heading: str
    chunk_id: str


class CitedChunk(ContextChunk):
    """A document that a choice was read from. ``source``: its place in the context; ``conditioned_on``: what
    its KV was computed behind in its block and was not retrieved."""

    choice: int
    source: int
    block: int
    block_heading: str
    conditioned_on: str


class PastedContext(BaseModel):
    """Text recognised in messages. ``known``: chunks of documents, ``chained`` of them with what they
    were computed behind; ``pieces``: of text that no document has; ``characters``: of both."""

    known: int
    chained: int
    pieces: int
    characters: int


class Extension(BaseModel):
    """``pasted``: null where that was not looked for.
    ``mode``, ``adapter``: those that were used; ``note``: why they are not what was asked for.
    ``queries``: what was searched by; ``follow_up``: how it came of a question that follows others, null: it
    follows none. ``sources``: the context, in its order. ``citations``: best first. ``context``: null where
    no explanation was asked for."""

    request_id: str
    collection: str
    mode: str | None
    ratio: float | None
    adapter: str | None
    note: str
    refused: bool
    queries: list[str]
    follow_up: str | None
    citations: list[CitedChunk]
    sources: list[ContextChunk]
    pasted: PastedContext | None
    tokens: dict[str, int]
    timings_ms: dict[str, float]
    context: list[ExplainedChunk] | None = None


@dataclass(frozen=True, slots=True)
class AskedLogprobs:
    """``top``: so many of the likeliest tokens are told beside each that was chosen."""

    top: int


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """Fields that all parts of an answer have. ``created``: seconds since 1970; ``num_samples``: of each
    question; ``logprobs`` None: none were asked for. ``formed``: the text is to be JSON; ``pasted``: the
    context is what was pasted; ``explain``: and its chunks are told with their text."""

    request_id: str
    created: int
    model: str
    collection: str
    ratio: float | None
    num_samples: int = 1
    logprobs: AskedLogprobs | None = None
    formed: bool = False
    pasted: bool = False
    explain: bool = False

    def refuses(self, text: AnswerText) -> bool:
        """In a place of its own, since whoever waits for JSON would read it as such."""
        return self.formed and text.finish_reason is FinishReason.REFUSED

    def choice(self, event: TokenEvent | AnswerText) -> int:
        """Its number: samples of one question stand together."""
        return event.question * self.num_samples + event.sample


_FREE = AnswerUsage(Usage(0, 0, 0, 0), Timings())


@dataclass(slots=True)
class Heard:
    """``tokens``: by choice, of an answer in one piece, if log-probabilities were asked for."""

    head: AnswerHead
    sources: list[ContextChunk] = field(default_factory=list)
    retrieved: Retrieved | None = None
    queries: Sequence[str] = ()
    follow_up: FollowUp = FollowUp.NONE
    selections: list[SelectedEvent] = field(default_factory=list)
    pasted: PastedContext | None = None
    texts: list[AnswerText] = field(default_factory=list)
    tokens: defaultdict[int, list[TokenEvent]] = field(default_factory=lambda: defaultdict(list))
    cost: AnswerUsage = _FREE
    num_logprobs: int = 0

    def keep(self, event: TokenEvent) -> None:
        """
        Raises:
            InvalidRequest: there are more log-probabilities than an answer in one piece tells.
        """
        self.num_logprobs += 1 + len(event.top_logprobs)
        if self.num_logprobs > MOST_LOGPROBS:
            raise InvalidRequest(
                f"logprobs: the answer has more than the {MOST_LOGPROBS} that can be told in one piece; ask "
                "with stream: true, or for less of max_tokens, n and top_logprobs"
            )
        self.tokens[self.head.choice(event)].append(event)

    def note(self, event: AnswerEvent) -> None:
        match event:
            case Retrieved():
                self.queries, self.follow_up = event.queries, event.follow_up
                self.retrieved = event if self.head.explain else None
                self.sources = [
                    ContextChunk(
                        document_id=hit.document_id,
                        title=hit.title,
                        heading=hit.chunk.heading,
                        chunk_id=hit.chunk.chunk_id,
                    )
                    for hit in event.hits
                ]
                self.pasted = _pasted(event.hits) if self.head.pasted else None
            case SelectedEvent() if self.head.explain:
                self.selections.append(event)
            case AnswerText():
                self.texts.append(event)
            case AnswerUsage():
                self.cost = event

    @property
    def usage(self) -> CompletionUsage:
        usage = self.cost.usage
        return CompletionUsage(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.generated_tokens,
            total_tokens=usage.prompt_tokens + usage.generated_tokens,
            prompt_tokens_details=PromptTokensDetails(
                cached_tokens=usage.reused_tokens, cache_write_tokens=usage.written_tokens
            ),
        )

    @property
    def extension(self) -> Extension:
        usage, timings = self.cost.usage, self.cost.timings
        return Extension(
            request_id=self.head.request_id,
            collection=self.head.collection,
            mode=str(usage.reuse) if usage.reuse else None,
            ratio=self.head.ratio,
            adapter=usage.adapter or None,
            note=usage.note,
            refused=any(text.finish_reason is FinishReason.REFUSED for text in self.texts),
            queries=list(self.queries),
            follow_up=self.follow_up.value or None,
            citations=[
                CitedChunk(
                    **self.sources[cited.hit].model_dump(),
                    choice=self.head.choice(text),
                    source=cited.hit,
                    block=cited.block,
                    block_heading=cited.block_heading,
                    conditioned_on=cited.conditioned_on,
                )
                for text in self.in_order
                for cited in text.citations
            ],
            sources=self.sources,
            pasted=self.pasted,
            tokens={
                "recomputed": usage.recomputed_tokens,
                "loaded": usage.loaded_tokens,
                "selected": usage.selected_tokens,
                "isolated": usage.isolated_tokens,
                "drafted": usage.drafted_tokens,
                "accepted": usage.accepted_tokens,
                "conversation": usage.conversation_tokens,
            },
            timings_ms={
                one.name.removesuffix("_s"): round(getattr(timings, one.name) * 1000, 3)
                for one in fields(timings)
            },
            context=None
            if self.retrieved is None
            else explained(self.retrieved, self.selections, usage.chunk_origins),
        )

    @property
    def in_order(self) -> list[AnswerText]:
        return sorted(self.texts, key=self.head.choice)


def _pasted(hits: Sequence[SearchHit]) -> PastedContext:
    known = [hit.chunk for hit in hits if hit.chunk.token_ids]
    return PastedContext(
        known=len(known),
        chained=sum(bool(chunk.parent_id) for chunk in known),
        pieces=len(hits) - len(known),
        characters=sum(len(hit.chunk.text) for hit in hits),
    )


def finish_of(reason: FinishReason) -> Finish:
    return "length" if reason is FinishReason.LENGTH else "stop"
