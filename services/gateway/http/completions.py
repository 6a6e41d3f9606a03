"""What ``/v1/chat/completions`` answers, whole or in chunks, made of the events of an answer.

Members that are set are sent, others are not: a chunk's ``finish_reason`` is null until its choice ends. What
OpenAI has no member for is in ``kvquilt``: in a stream, that of the last chunk that ends a choice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field, fields
from typing import Literal

from pydantic import BaseModel

from shared.answer import AnswerEvent, AnswerText, AnswerUsage, Retrieved
from shared.generation.told import FinishReason, Timings, TokenEvent, Usage

Finish = Literal["stop", "length"]


class CachedTokens(BaseModel):
    cached_tokens: int


class ChatUsage(BaseModel):
    """``cached_tokens``: those whose KV existed."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


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


class Extension(BaseModel):
    """``mode``, ``adapter``: those that were used; ``note``: why they are not what was asked for.
    ``sources``: the context, in its order. ``citations``: best first."""

    request_id: str
    collection: str
    mode: str | None
    ratio: float | None
    adapter: str | None
    note: str
    refused: bool
    citations: list[CitedChunk]
    sources: list[ContextChunk]
    tokens: dict[str, int]
    timings_ms: dict[str, float]


class AnsweredMessage(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class CompletionChoice(BaseModel):
    index: int
    message: AnsweredMessage
    logprobs: None = None
    finish_reason: Finish


class ChatCompletion(BaseModel):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: ChatUsage
    kvquilt: Extension


class ChunkDelta(BaseModel):
    role: Literal["assistant"] | None = None
    content: str | None = None


class ChunkChoice(BaseModel):
    index: int
    delta: ChunkDelta
    logprobs: None = None
    finish_reason: Finish | None


class CompletionChunk(BaseModel):
    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: ChatUsage | None = None
    kvquilt: Extension | None = None


@dataclass(frozen=True, slots=True)
class CompletionHead:
    """What all parts of an answer say. ``created``: seconds since 1970."""

    request_id: str
    created: int
    model: str
    collection: str
    ratio: float | None

    @property
    def completion_id(self) -> str:
        return f"chatcmpl-{self.request_id}"


_FREE = AnswerUsage(Usage(0, 0, 0, 0), Timings())


@dataclass(slots=True)
class _Heard:
    """What the events have told so far."""

    head: CompletionHead
    sources: list[ContextChunk] = field(default_factory=list)
    texts: list[AnswerText] = field(default_factory=list)
    cost: AnswerUsage = _FREE

    def note(self, event: AnswerEvent) -> None:
        match event:
            case Retrieved():
                self.sources = [
                    ContextChunk(
                        document_id=hit.document_id,
                        title=hit.title,
                        heading=hit.chunk.heading,
                        chunk_id=hit.chunk.chunk_id,
                    )
                    for hit in event.hits
                ]
            case AnswerText():
                self.texts.append(event)
            case AnswerUsage():
                self.cost = event

    @property
    def usage(self) -> ChatUsage:
        usage = self.cost.usage
        return ChatUsage(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.generated_tokens,
            total_tokens=usage.prompt_tokens + usage.generated_tokens,
            prompt_tokens_details=CachedTokens(cached_tokens=usage.reused_tokens),
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
            citations=[
                CitedChunk(
                    **self.sources[cited.hit].model_dump(),
                    choice=text.sample,
                    source=cited.hit,
                    block=cited.block,
                    block_heading=cited.block_heading,
                    conditioned_on=cited.conditioned_on,
                )
                for text in self.in_order
                for cited in text.citations
            ],
            sources=self.sources,
            tokens={
                "recomputed": usage.recomputed_tokens,
                "loaded": usage.loaded_tokens,
                "selected": usage.selected_tokens,
                "isolated": usage.isolated_tokens,
                "drafted": usage.drafted_tokens,
                "accepted": usage.accepted_tokens,
            },
            timings_ms={
                one.name.removesuffix("_s"): round(getattr(timings, one.name) * 1000, 3)
                for one in fields(timings)
            },
        )

    @property
    def in_order(self) -> list[AnswerText]:
        return sorted(self.texts, key=lambda text: text.sample)


async def completion(head: CompletionHead, events: AsyncGenerator[AnswerEvent, None]) -> ChatCompletion:
    """The whole answer.

    Raises:
        KvquiltError: as the events do.
    """
    heard = _Heard(head)
    async with aclosing(events):
        async for event in events:
            heard.note(event)
    return ChatCompletion(
        id=head.completion_id,
        created=head.created,
        model=head.model,
        choices=[
            CompletionChoice(
                index=text.sample,
                message=AnsweredMessage(content=text.text),
                finish_reason=_finish(text.finish_reason),
            )
            for text in heard.in_order
        ],
        usage=heard.usage,
        kvquilt=heard.extension,
    )


async def chunks(
    head: CompletionHead, events: AsyncGenerator[AnswerEvent, None], with_usage: bool
) -> AsyncGenerator[CompletionChunk, None]:
    """The answer as it grows: of each choice its role, then its text. The end of a choice is held back until
    it is known whether it is the last one. ``with_usage``: a chunk without choices at the end tells the cost.

    Raises:
        KvquiltError: as the events do.
    """
    heard = _Heard(head)
    said: defaultdict[int, int] = defaultdict(int)  # characters, by choice
    end: CompletionChunk | None = None

    def chunk(*choices: ChunkChoice) -> CompletionChunk:
        of_usage = {"usage": None} if with_usage else {}
        return CompletionChunk(
            id=head.completion_id,
            object="chat.completion.chunk",
            created=head.created,
            model=head.model,
            choices=list(choices),
            **of_usage,
        )

    def growth(index: int, text: str) -> list[CompletionChunk]:
        opening = [] if index in said else [ChunkDelta(role="assistant", content="")]
        said[index] += len(text)
        deltas = [*opening, *([ChunkDelta(content=text)] if text else [])]
        return [chunk(ChunkChoice(index=index, delta=delta, finish_reason=None)) for delta in deltas]

    async with aclosing(events):
        async for event in events:
            heard.note(event)
            match event:
                case TokenEvent():
                    for one in growth(event.sample, event.text):
                        yield one
                case AnswerText():
                    if end is not None:
                        yield end
                    for one in growth(event.sample, event.text[said.get(event.sample, 0) :]):
                        yield one
                    finish = _finish(event.finish_reason)
                    end = chunk(ChunkChoice(index=event.sample, delta=ChunkDelta(), finish_reason=finish))
                case AnswerUsage():
                    if end is not None:
                        yield end.model_copy(update={"kvquilt": heard.extension})
                    if with_usage:
                        yield chunk().model_copy(update={"usage": heard.usage})


def _finish(reason: FinishReason) -> Finish:
    return "length" if reason is FinishReason.LENGTH else "stop"
