"""Defines what may be asked of ``/v1/responses``, and the ``Inquiry`` that it becomes.

The tool ``file_search`` names the vector store, which is a collection, and is always called: an answer is
read from documents.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

from pydantic import Field, PrivateAttr

from services.gateway.http.bodies import (
    MAX_NUMBER,
    BodyList,
    BodyText,
    Lenient,
    QuestionBody,
    check_extra,
)
from services.gateway.http.heard import AskedLogprobs
from services.gateway.http.requests import Spoken, spoken_of
from services.gateway.kept.attributes import filters_of
from shared.answer import Inquiry, RetrievalOptions
from shared.earlier_turns import EarlierTurn
from shared.errors import InvalidRequest
from shared.generation.response_format import ResponseFormat

RESULTS = "file_search_call.results"
_MOST_RESULTS = 50
_TEXT_PARTS = ("input_text", "output_text", "text")
_CALL = "file_search_call"
_CHOICES = ("auto", "required", {"type": "file_search"})


class InputPart(Lenient):
    """``annotations``, ``logprobs``: of an earlier answer that is sent along; they say nothing here."""

    type: str
    text: BodyText | None = None
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


class InputItem(Lenient):
    """A message, or the search of an earlier answer that is sent along, which says nothing here."""

    type: str = "message"
    role: str = ""
    content: BodyText | BodyList[InputPart] | None = None
    id: str | None = None
    status: str | None = None
    queries: list[Any] | None = None
    results: list[Any] | None = None


class SearchRanking(Lenient):
    ranker: Literal["auto", "default-2024-11-15"] | None = None
    score_threshold: float | None = None


class FileSearchTool(Lenient):
    type: Literal["file_search"]
    vector_store_ids: BodyList[BodyText]
    max_num_results: int | None = Field(None, ge=1, le=_MOST_RESULTS)
    filters: Any = None
    ranking_options: SearchRanking | None = None

    def retrieval(self, where: str) -> RetrievalOptions:
        """
        Raises:
            InvalidRequest: names what is not supported.
        """
        check_extra(self, where)
        if self.ranking_options is not None:
            check_extra(self.ranking_options, f"{where}.ranking_options")
            if self.ranking_options.score_threshold:
                raise InvalidRequest(
                    f"{where}.ranking_options.score_threshold: is not supported; refusal says what "
                    "becomes of a question without evidence"
                )
        filters = () if self.filters is None else filters_of(self.filters, f"{where}.filters")
        return RetrievalOptions(self.max_num_results or 0, filters=filters)


class TextFormat(Lenient):
    """OpenAI's other spelling of a format: the schema stands beside its type. ``name``, ``description`` and
    ``strict`` change nothing."""

    type: Literal["text", "json_object", "json_schema"]
    name: BodyText | None = None
    description: BodyText | None = None
    strict: bool | None = None
    of: dict[str, Any] | None = Field(None, alias="schema")


class TextOptions(Lenient):
    format: TextFormat | None = None


class ResponseRequest(QuestionBody):
    neutral: ClassVar[Mapping[str, Sequence[object]]] = {
        **QuestionBody.neutral,
        "background": (False,),
        "parallel_tool_calls": (True, False),
        "truncation": ("disabled", "auto"),
        "service_tier": ("auto", "default"),
        "top_logprobs": (0,),
        "reasoning": ({},),
    }

    input: BodyText | BodyList[InputItem]
    instructions: BodyText | None = None
    max_output_tokens: int | None = Field(None, ge=1, le=MAX_NUMBER)
    tools: BodyList[FileSearchTool] | None = None
    tool_choice: Any = None
    include: BodyList[str] | None = None
    text: TextOptions | None = None
    metadata: dict[BodyText, BodyText] | None = None
    store: bool | None = None
    previous_response_id: BodyText | None = None

    _earlier: tuple[EarlierTurn, ...] = PrivateAttr(())

    @property
    def names(self) -> Mapping[str, str]:
        return dict.fromkeys(("question", "questions[0]", "preface", "turns"), "input") | {
            "sampling.max_tokens": "max_output_tokens"
        }

    @property
    def asked_logprobs(self) -> AskedLogprobs | None:
        return None

    @property
    def asked_format(self) -> ResponseFormat | None:
        asked = self.text.format if self.text is not None else None
        if asked is None:
            return None
        if (asked.of is not None) != (asked.type == "json_schema"):
            needs = "is required with" if asked.of is None else "needs"
            raise InvalidRequest(f"text.format.schema: {needs} type json_schema")
        if asked.type == "text":
            return None
        return ResponseFormat() if asked.of is None else ResponseFormat(json.dumps(asked.of))

    @property
    def with_results(self) -> bool:
        return RESULTS in (self.include or ())

    def check(self) -> None:
        super().check()
        if self.n not in (None, 1):
            raise InvalidRequest("n: is not supported; a response is one answer")
        if self.max_tokens is not None:
            raise InvalidRequest("max_tokens: is max_output_tokens here")
        if self.tool_choice is not None and self.tool_choice not in _CHOICES:
            raise InvalidRequest("tool_choice: file_search is always called; leave it out")
        for name in self.include or ():
            if name != RESULTS:
                raise InvalidRequest(f"include: {name[:80]!r} is not supported; {RESULTS!r} is")
        if self.text is not None:
            check_extra(self.text, "text")
            if self.text.format is not None:
                check_extra(self.text.format, "text.format")
        if len(self.tools or ()) > 1:
            raise InvalidRequest("tools: has more than one file_search; an answer is read from one store")

    @property
    def question(self) -> str:
        """
        Raises:
            InvalidRequest: there is none.
        """
        return self._spoken().question

    @property
    def turns(self) -> tuple[EarlierTurn, ...]:
        """What was said in front of the question. Raises like ``question``."""
        return self._earlier + self._spoken().turns

    @property
    def said(self) -> list[tuple[str, str]]:
        """Role and text of each message."""
        return self._said()

    def go_on_from(self, turns: tuple[EarlierTurn, ...]) -> None:
        """``turns``: of the response that this one follows."""
        self._earlier = turns

    def inquiry(self) -> Inquiry:
        spoken = self._spoken()
        told = ((self.instructions,) if self.instructions else ()) + spoken.told
        retrieval = RetrievalOptions(self.top_k or 0)
        for i, tool in enumerate(self.tools or ()):
            retrieval = tool.retrieval(f"tools[{i}]")
            self._take_store(tool.vector_store_ids, f"tools[{i}].vector_store_ids")
        asked = self.asks(self.collection_named(), (spoken.question,), self.max_output_tokens)
        return replace(asked, preface="\n".join(told), turns=self.turns, retrieval=retrieval)

    def _take_store(self, store_ids: Sequence[str], where: str) -> None:
        if len(store_ids) != 1:
            raise InvalidRequest(f"{where}: names {len(store_ids)}; an answer is read from one store")
        if self.collection and self.collection != store_ids[0]:
            raise InvalidRequest(f"{where}: is another one than collection; give one of them")
        self.collection = store_ids[0]

    def _spoken(self) -> Spoken:
        return spoken_of(self._said(), "input")

    def _said(self) -> list[tuple[str, str]]:
        if isinstance(self.input, str):
            return [("user", self.input)]
        return [
            (item.role, _text(item, f"input[{i}]")) for i, item in enumerate(self.input) if item.type != _CALL
        ]


def _text(item: InputItem, where: str) -> str:
    if item.type != "message":
        raise InvalidRequest(f"{where}.type: {item.type[:80]!r} is not supported, only messages are")
    check_extra(item, where)
    if item.content is None:
        raise InvalidRequest(f"{where}.content: is required")
    if isinstance(item.content, str):
        return item.content
    for i, part in enumerate(item.content):
        if part.type not in _TEXT_PARTS or part.text is None:
            raise InvalidRequest(f"{where}.content[{i}]: {part.type[:80]!r} is not supported, only text is")
        check_extra(part, f"{where}.content[{i}]")
    return "\n".join(part.text or "" for part in item.content)
