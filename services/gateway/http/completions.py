"""Forms the answers of ``/v1/chat/completions``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel

from services.gateway.http.forms import AnswerForm
from services.gateway.http.heard import AskedLogprobs, CompletionUsage, Extension, Finish, Heard, finish_of
from shared.generation.told import TokenEvent

_PART_OF_A_CHARACTER = "\ufffd"
_UNLIKELY = -9999.0  # OpenAI's word for it; JSON has no infinity


class LikelyToken(BaseModel):
    """``bytes``: in UTF-8; null of a token that is a part of a character."""

    token: str
    bytes: list[int] | None
    logprob: float


class ChosenToken(LikelyToken):
    top_logprobs: list[LikelyToken]


class ChatLogprobs(BaseModel):
    """Of the tokens that were generated, the end mark included: its ``token`` is empty."""

    content: list[ChosenToken]
    refusal: None = None


class AnsweredMessage(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: str | None = None


class ChatChoice(BaseModel):
    index: int
    message: AnsweredMessage
    logprobs: ChatLogprobs | None
    finish_reason: Finish


class ChatCompletion(BaseModel):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: CompletionUsage
    kvquilt: Extension


class ChunkDelta(BaseModel):
    role: Literal["assistant"] | None = None
    content: str | None = None
    refusal: str | None = None


class ChunkChoice(BaseModel):
    index: int
    delta: ChunkDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: Finish | None


class ChatChunk(BaseModel):
    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: CompletionUsage | None = None
    kvquilt: Extension | None = None


class ChatForm(AnswerForm):
    """In chunks: of each choice its role, then its text."""

    @property
    def _id(self) -> str:
        return f"chatcmpl-{self.head.request_id}"

    def whole(self, heard: Heard) -> ChatCompletion:
        asked = self.head.logprobs
        return ChatCompletion(
            id=self._id,
            created=self.head.created,
            model=self.head.model,
            choices=[
                ChatChoice(
                    index=self.head.choice(text),
                    message=AnsweredMessage(content=None, refusal=text.text)
                    if self.head.refuses(text)
                    else AnsweredMessage(content=text.text),
                    logprobs=_logprobs(heard.tokens[self.head.choice(text)], asked) if asked else None,
                    finish_reason=finish_of(text.finish_reason),
                )
                for text in heard.in_order
            ],
            usage=heard.usage,
            kvquilt=heard.extension,
        )

    def begun(self, choice: int) -> Sequence[ChatChunk]:
        return [self._chunk(choice, ChunkDelta(role="assistant", content=""))]

    def grown(self, choice: int, text: str, token: TokenEvent | None, begin: int) -> ChatChunk:
        asked = self.head.logprobs
        logprobs = _logprobs([token], asked) if token is not None and asked is not None else None
        return self._chunk(choice, ChunkDelta(content=text), logprobs)

    def refused(self, choice: int, text: str) -> ChatChunk:
        return self._chunk(choice, ChunkDelta(refusal=text))

    def ended(self, choice: int, finish: Finish) -> ChatChunk:
        return self._chunk(choice, ChunkDelta(), finish=finish)

    def cost(self) -> ChatChunk:
        return self._of([])

    def _chunk(
        self,
        choice: int,
        delta: ChunkDelta,
        logprobs: ChatLogprobs | None = None,
        finish: Finish | None = None,
    ) -> ChatChunk:
        told = {} if logprobs is None else {"logprobs": logprobs}
        return self._of([ChunkChoice(index=choice, delta=delta, finish_reason=finish, **told)])

    def _of(self, choices: list[ChunkChoice]) -> ChatChunk:
        return ChatChunk(
            id=self._id,
            object="chat.completion.chunk",
            created=self.head.created,
            model=self.head.model,
            choices=choices,
            **self.of_usage,
        )


def finite(logprob: float) -> float:
    return max(logprob, _UNLIKELY)


def _logprobs(tokens: Sequence[TokenEvent], asked: AskedLogprobs) -> ChatLogprobs:
    return ChatLogprobs(content=[_chosen(token, asked.top) for token in tokens])


def _chosen(event: TokenEvent, top: int) -> ChosenToken:
    likeliest = list(zip(event.top_tokens, event.top_logprobs, strict=False))[:top]
    return ChosenToken(
        token=event.token,
        bytes=_bytes(event.token),
        logprob=finite(event.logprob),
        top_logprobs=[
            LikelyToken(token=token, bytes=_bytes(token), logprob=finite(logprob))
            for token, (_, logprob) in likeliest
        ],
    )


def _bytes(token: str) -> list[int] | None:
    return None if _PART_OF_A_CHARACTER in token else list(token.encode())
