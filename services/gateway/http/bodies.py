"""Defines what the bodies of all questions have in common: OpenAI's parameters, and ours.

Members that are not known are refused by name, unless they ask for nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from services.gateway.http.headers import context_of
from services.gateway.http.heard import AskedLogprobs
from shared.admission.priority import HIGHEST, LOWEST
from shared.answer import Inquiry, RetrievalOptions
from shared.errors import InvalidRequest
from shared.generation.asked import SamplingParams
from shared.generation.modes import Recompute
from shared.generation.orders import Reuse, mode_named
from shared.generation.response_format import ResponseFormat
from shared.principals.callers import OPERATOR, Caller
from shared.request import MAX_STREAM_INTERVAL_MS, READERS_STREAM_INTERVAL_MS, RequestContext
from shared.wire.enums import REFUSALS

MAX_NUMBER = 2**32 - 1  # what a message between services can carry
MAX_LOGPROBS = 20
_DAY_MS = 24 * 3_600_000
_WITHOUT_EFFECT = ("user", "metadata", "safety_identifier", "prompt_cache_key")


def _unicode(text: str) -> str:
    """JSON can spell halves of characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("holds half a surrogate pair, which is no character") from None
    return text


ItemT = TypeVar("ItemT")
BodyText = Annotated[str, AfterValidator(_unicode)]
BodyList = Annotated[list[ItemT], Field(fail_fast=True)]
"""The first entry that is wrong ends the reading: a megabyte of them would become a gigabyte of errors."""


class Lenient(BaseModel):
    """Keeps what it does not know, to be refused by name unless it asks for nothing: who reads the schema is
    told of nothing else."""

    model_config = ConfigDict(
        extra="allow",
        strict=True,
        json_schema_extra={"additionalProperties": {"enum": [None, "", [], {}]}},
    )


class StreamOptions(Lenient):
    """``continuous_usage_stats``: vLLM's, with which others' benchmarks ask; the last chunk alone tells."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class QuestionBody(Lenient, ABC):
    """OpenAI's parameters; behind them ours, which its clients send as ``extra_body``. ``neutral``: of
    parameters that are not supported, the values by which nothing is asked."""

    neutral: ClassVar[Mapping[str, Sequence[object]]] = {
        "frequency_penalty": (0,),
        "presence_penalty": (0,),
        "logit_bias": ({},),
    }

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(None, ge=1, le=MAX_NUMBER)
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    n: int | None = None
    stop: BodyText | BodyList[BodyText] | None = None

    collection: BodyText | None = None
    mode: str | None = None
    ratio: float | None = None
    adapter: BodyText | None = None
    top_k: int | None = Field(None, ge=1, le=MAX_NUMBER)
    refusal: str | None = None
    explain: bool | None = None
    shadow: bool | None = None
    tenant: str | None = None
    deadline_ms: int | None = Field(None, ge=1, le=_DAY_MS)
    priority: int | None = Field(None, ge=HIGHEST, le=LOWEST)
    stream_interval_ms: int | None = Field(None, ge=0, le=MAX_STREAM_INTERVAL_MS)
    ignore_eos: bool | None = None

    @property
    @abstractmethod
    def names(self) -> Mapping[str, str]:
        """Of a question's fields, as they are in this body."""

    @property
    @abstractmethod
    def asked_logprobs(self) -> AskedLogprobs | None:
        """None: none were."""

    @property
    def asked_format(self) -> ResponseFormat | None:
        """None: any text."""
        return None

    @abstractmethod
    def inquiry(self) -> Inquiry:
        """
        Raises:
            InvalidRequest: names what is missing, wrong or not supported.
        """

    def take_mode(self, modes: Sequence[str]) -> None:
        """``modes``: that the model's name leaves; one if it names it.

        Raises:
            InvalidRequest: ``mode`` is another one.
        """
        if len(modes) > 1:
            return
        if self.mode and self.mode != modes[0]:
            raise InvalidRequest(f"mode: is {self.mode!r}, but the model is {self.model!r}; give one of them")
        self.mode = modes[0]

    @property
    def with_usage(self) -> bool:
        """A stream ends with what it cost."""
        asked = self.stream_options
        return asked is not None and bool(asked.include_usage or asked.continuous_usage_stats)

    def check(self) -> None:
        """
        Raises:
            InvalidRequest: names a parameter that is not supported.
        """
        check_parameters(self, self.neutral)
        if self.stream_options is not None:
            check_extra(self.stream_options, "stream_options")
            if not self.stream:
                raise InvalidRequest("stream_options: needs stream: true")

    def context(self, headers: Mapping[str, str], caller: Caller = OPERATOR) -> RequestContext:
        """
        Raises:
            InvalidRequest: the tenant is no name, or the header names another one.
        """
        asked = self.stream_interval_ms
        read_along_ms = READERS_STREAM_INTERVAL_MS if asked is None else asked
        interval_ms = read_along_ms if self.stream else MAX_STREAM_INTERVAL_MS
        return context_of(
            headers, caller, self.tenant or "", self.deadline_ms or 0, self.priority or 0, interval_ms
        )

    def collection_named(self) -> str:
        """
        Raises:
            InvalidRequest: none is.
        """
        if not self.collection:
            raise InvalidRequest(
                'collection: name the collection to ask; with OpenAI\'s client extra_body={"collection": "…"}'
            )
        return self.collection

    def asks(self, collection: str, questions: tuple[str, ...], max_tokens: int | None) -> Inquiry:
        """With all that bodies have in common."""
        return Inquiry(
            collection,
            questions,
            reuse=Reuse(
                mode_named(self.mode, "mode") if self.mode else None,
                Recompute(self.ratio),
                adapter=self.adapter or "",
            ),
            sampling=self._sampling(max_tokens),
            retrieval=RetrievalOptions(self.top_k or 0),
            explain=bool(self.explain),
            refusal=REFUSALS.of(self.refusal or "", "refusal"),
            no_shadow=self.shadow is False,
        )

    def _sampling(self, max_tokens: int | None) -> SamplingParams:
        logprobs = self.asked_logprobs
        given = {
            "max_tokens": max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "seed": self.seed,
            "n": self.n,
            "ignore_eos": self.ignore_eos,
            "response_format": self.asked_format,
            "stop": (self.stop,) if isinstance(self.stop, str) else self.stop and tuple(self.stop),
            "top_logprobs": logprobs and max(1, logprobs.top),  # tokens are spelt with the likeliest ones
        }
        return SamplingParams(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]


def check_parameters(body: Lenient, neutral: Mapping[str, Sequence[object]]) -> None:
    """``neutral``: of parameters that are not supported, the values by which nothing is asked.

    Raises:
        InvalidRequest: names a parameter that is not supported.
    """
    for name, value in (body.model_extra or {}).items():
        if value is None or name in _WITHOUT_EFFECT or value in neutral.get(name, ()):
            continue
        raise InvalidRequest(f"{name}: is not supported; leave it out (docs/http.md lists what is)")


def check_extra(value: Lenient, where: str) -> None:
    """Clients send members of their own message types along that are null or empty.

    Raises:
        InvalidRequest: names one that is neither.
    """
    for name, member in (value.model_extra or {}).items():
        if member not in (None, [], {}, ""):
            raise InvalidRequest(f"{where}.{name}: is not supported; leave it out")
