"""Answers in the form of an endpoint, whole or in chunks, made of the events of an answer.

Members that are set are sent, others are not: a chunk's ``finish_reason`` is null until its choice ends. What
OpenAI has no member for is in ``kvquilt``: in a stream, that of the last chunk that ends a choice.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Protocol

from pydantic import BaseModel

from services.gateway.http.heard import AnswerHead, Finish, Heard, finish_of
from shared.answer import AnswerEvent, AnswerText, AnswerUsage
from shared.generation.told import TokenEvent


class EndpointForm(Protocol):
    """An endpoint's. Both raise ``KvquiltError`` as the events do."""

    async def complete(self, events: AsyncGenerator[AnswerEvent, None]) -> BaseModel:
        """The answer in one piece."""
        ...

    def growing(self, events: AsyncGenerator[AnswerEvent, None]) -> AsyncGenerator[BaseModel, None]:
        """The answer as it grows; nothing before its first event."""
        ...


class AnswerForm(ABC):
    """``with_usage``: of a stream, whose last chunk has no choices and tells the cost."""

    def __init__(self, head: AnswerHead, with_usage: bool = False) -> None:
        self.head, self.with_usage = head, with_usage

    async def complete(self, events: AsyncGenerator[AnswerEvent, None]) -> BaseModel:
        return await whole_answer(self, events)

    def growing(self, events: AsyncGenerator[AnswerEvent, None]) -> AsyncGenerator[BaseModel, None]:
        return chunks(self, events)

    @property
    def of_usage(self) -> dict[str, None]:
        """Chunks in front of the one that tells it say null."""
        return {"usage": None} if self.with_usage else {}

    @abstractmethod
    def whole(self, heard: Heard) -> BaseModel:
        """All at once."""

    @abstractmethod
    def begun(self, choice: int) -> Sequence[BaseModel]:
        """Chunks in front of the first text of a choice."""

    @abstractmethod
    def grown(self, choice: int, text: str, token: TokenEvent | None, begin: int) -> BaseModel:
        """``token``: whose log-probability is told; ``begin``: characters of the tokens in front of it."""

    def refused(self, choice: int, text: str) -> BaseModel:
        """See ``AnswerHead.refuses``."""
        return self.grown(choice, text, None, 0)

    @abstractmethod
    def ended(self, choice: int, finish: Finish) -> BaseModel: ...

    @abstractmethod
    def cost(self) -> BaseModel:
        """Without choices, and still without usage."""


async def whole_answer(form: AnswerForm, events: AsyncGenerator[AnswerEvent, None]) -> BaseModel:
    """
    Raises:
        KvquiltError: as the events do.
    """
    heard = Heard(form.head)
    async with aclosing(events):
        async for event in events:
            if isinstance(event, TokenEvent) and form.head.logprobs is not None:
                heard.keep(event)
            heard.note(event)
    return form.whole(heard)


async def chunks(
    form: AnswerForm, events: AsyncGenerator[AnswerEvent, None]
) -> AsyncGenerator[BaseModel, None]:
    """The answer as it grows. The end of a choice is held back until it is known whether it is the last one.

    Raises:
        KvquiltError: as the events do.
    """
    head = form.head
    heard = Heard(head)
    said: defaultdict[int, int] = defaultdict(int)  # characters, by choice
    spelt: defaultdict[int, int] = defaultdict(int)  # characters of its tokens
    end: BaseModel | None = None

    def growth(choice: int, text: str, token: TokenEvent | None = None) -> list[BaseModel]:
        opening = [] if choice in said else form.begun(choice)
        said[choice] += len(text)
        told = [*opening, *([form.grown(choice, text, token, spelt[choice])] if text or token else [])]
        spelt[choice] += len(token.token) if token else 0
        return told

    async with aclosing(events):
        async for event in events:
            heard.note(event)
            match event:
                case TokenEvent():
                    for one in growth(head.choice(event), event.text, event if head.logprobs else None):
                        yield one
                case AnswerText():
                    if end is not None:
                        yield end
                    choice = head.choice(event)
                    refuses = head.refuses(event)
                    for one in growth(choice, "" if refuses else event.text[said.get(choice, 0) :]):
                        yield one
                    if refuses:
                        yield form.refused(choice, event.text)
                    end = form.ended(choice, finish_of(event.finish_reason))
                case AnswerUsage():
                    if end is not None:
                        yield end.model_copy(update={"kvquilt": heard.extension})
                    if form.with_usage:
                        yield form.cost().model_copy(update={"usage": heard.usage})
