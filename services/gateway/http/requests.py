"""Defines what may be asked of ``/v1/chat/completions``, and the ``Inquiry`` that it becomes.

The last message is the question. What stands in front of it (system text, earlier turns) cannot be where a
chat template has it, since documents' KV was computed behind the configured prefix: it goes, as text, into
the question's part of the prompt, and nothing is searched by it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

from pydantic import Field

from services.gateway.http.bodies import (
    MAX_LOGPROBS,
    MAX_NUMBER,
    BodyList,
    BodyText,
    Lenient,
    QuestionBody,
    check_extra,
)
from services.gateway.http.heard import AskedLogprobs
from services.gateway.pasted.known_chunks import BORDER
from shared.answer import HandedDocument, Inquiry
from shared.earlier_turns import EarlierTurn, Speaker
from shared.errors import InvalidRequest
from shared.generation.response_format import ResponseFormat

_INSTRUCTING = ("system", "developer")
_SPEAKERS = {"user": Speaker.USER, "assistant": Speaker.ASSISTANT}
ROLES = (*_INSTRUCTING, *_SPEAKERS)


class ChatPart(Lenient):
    type: str
    text: BodyText | None = None


class ChatMessage(Lenient):
    role: str
    content: BodyText | BodyList[ChatPart] | None = None


class ChatDocument(Lenient):
    """A chunk of the context."""

    title: BodyText = ""
    text: BodyText


class NamedSchema(Lenient):
    """``name``, ``description`` and ``strict`` change nothing: every schema is kept to, or refused."""

    name: BodyText | None = None
    description: BodyText | None = None
    strict: bool | None = None
    of: dict[str, Any] = Field(alias="schema")


class AskedFormat(Lenient):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None

    @property
    def form(self) -> ResponseFormat | None:
        """
        Raises:
            InvalidRequest: a schema where none belongs, or none where one does, or one that cannot be.
        """
        check_extra(self, "response_format")
        if self.type != "json_schema":
            if self.json_schema is not None:
                raise InvalidRequest("response_format.json_schema: needs type json_schema")
            return None if self.type == "text" else ResponseFormat()
        if self.json_schema is None:
            raise InvalidRequest("response_format.json_schema: is required")
        check_extra(self.json_schema, "response_format.json_schema")
        return ResponseFormat(json.dumps(self.json_schema.of))


class ChatRequest(QuestionBody):
    """``documents``: the context, instead of what is found in ``collection``; ``pasted``: what the user's
    messages bring along is, None: where neither is named and they may."""

    neutral: ClassVar[Mapping[str, Sequence[object]]] = {
        **QuestionBody.neutral,
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "parallel_tool_calls": (True, False),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "modalities": (["text"],),
        "store": (False,),
        "service_tier": ("auto", "default"),
    }

    messages: BodyList[ChatMessage]
    max_completion_tokens: int | None = Field(None, ge=1, le=MAX_NUMBER)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    documents: BodyList[ChatDocument] | None = None
    pasted: bool | None = None
    response_format: AskedFormat | None = None

    @property
    def asked_format(self) -> ResponseFormat | None:
        return None if self.response_format is None else self.response_format.form

    @property
    def names(self) -> Mapping[str, str]:
        return dict.fromkeys(("question", "questions[0]", "preface", "turns"), "messages")

    @property
    def asked_logprobs(self) -> AskedLogprobs | None:
        return AskedLogprobs(self.top_logprobs or 0) if self.logprobs else None

    def check(self) -> None:
        super().check()
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequest("top_logprobs: needs logprobs: true")

    def inquiry(self) -> Inquiry:
        said = [(message.role, _text(message, f"messages[{i}]")) for i, message in enumerate(self.messages)]
        spoken = spoken_of(said, "messages")
        asked = partial(self.asks, questions=(spoken.question,), max_tokens=self._max_tokens())
        if self._pastes(spoken):
            return replace(
                asked(self.collection or ""),
                preface="\n".join(spoken.told),
                turns=spoken.turns,
                documents=_handed(self.documents or ()),
                pasted=True,
            )
        collection = (self.collection or "") if self.documents else self.collection_named()
        return replace(
            asked(collection),
            preface="\n".join(spoken.told),
            turns=spoken.turns,
            documents=_handed(self.documents or ()),
        )

    def _pastes(self, spoken: Spoken) -> bool:
        if self.pasted is not None:
            return self.pasted
        return not (self.collection or self.documents) and spoken.longest >= BORDER

    def _max_tokens(self) -> int | None:
        most, old = self.max_completion_tokens, self.max_tokens
        if most is not None and old is not None and most != old:
            raise InvalidRequest(f"max_tokens: is {old}, but max_completion_tokens {most}; give one of them")
        return old if most is None else most


def _handed(documents: Sequence[ChatDocument]) -> tuple[HandedDocument, ...]:
    for i, document in enumerate(documents):
        check_extra(document, f"documents[{i}]")
    return tuple(HandedDocument(document.title, document.text) for document in documents)


@dataclass(frozen=True, slots=True)
class Spoken:
    """``told``: system text."""

    told: tuple[str, ...]
    turns: tuple[EarlierTurn, ...]
    question: str

    @property
    def longest(self) -> int:
        """Characters that a user said at once."""
        said = [turn.text for turn in self.turns if turn.speaker is Speaker.USER]
        return max(map(len, [*said, self.question]))


def spoken_of(said: Sequence[tuple[str, str]], field: str) -> Spoken:
    """``said``: roles and texts, in order; ``field``: what holds them.

    Raises:
        InvalidRequest: there is no question, or a role that is none.
    """
    for i, (role, _) in enumerate(said):
        if role not in ROLES:
            raise InvalidRequest(f"{field}[{i}].role: {role!r} is not supported; {', '.join(ROLES)} are")
    if not said:
        raise InvalidRequest(f"{field}: is empty; its last message is the question")
    *before, last = said
    if last[0] != "user":
        raise InvalidRequest(
            f"{field}[{len(before)}].role: is {last[0]!r}; the last message is the question, from the user"
        )
    told = tuple(text for role, text in before if role in _INSTRUCTING and text)
    turns = tuple(EarlierTurn(_SPEAKERS[role], text) for role, text in before if role in _SPEAKERS)
    return Spoken(told, turns, last[1])


def _text(message: ChatMessage, where: str) -> str:
    check_extra(message, where)
    if message.content is None:
        raise InvalidRequest(f"{where}.content: is required")
    if isinstance(message.content, str):
        return message.content
    for i, part in enumerate(message.content):
        if part.type != "text" or part.text is None:
            raise InvalidRequest(f"{where}.content[{i}]: {part.type!r} is not supported, only text is")
        check_extra(part, f"{where}.content[{i}]")
    return "\n".join(part.text or "" for part in message.content)
