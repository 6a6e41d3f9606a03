"""What may be asked of ``/v1/chat/completions``, and the ``Inquiry`` that it becomes.

The last message is the question. What stands in front of it (system text, earlier turns) cannot be where a
chat template has it, since documents' KV was computed behind the configured prefix: it goes, as text, into
the question's part of the prompt, and nothing is searched by it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from shared.answer import Inquiry, RetrievalOptions
from shared.errors import InvalidRequest
from shared.generation.asked import SamplingParams
from shared.generation.modes import GoesBy, Recompute
from shared.generation.orders import ASKED_MODES, AskedMode, Auto, Reuse
from shared.principals.callers import OPERATOR, Caller
from shared.request import RequestContext
from shared.tracing.traceparent import HEADER as TRACEPARENT_HEADER
from shared.wire.enums import REFUSALS

MODES: tuple[AskedMode, ...] = tuple(
    mode for mode in ASKED_MODES if isinstance(mode, Auto) or mode.row.goes_by is not GoesBy.TOKENS
)
TENANT_HEADER, REQUEST_ID_HEADER = "x-kvquilt-tenant", "x-request-id"
_DAY_MS = 24 * 3_600_000
_MAX_NUMBER = 2**32 - 1  # what a message between services can carry
_INSTRUCTING = ("system", "developer")
_SPEAKERS = {"user": "User", "assistant": "Assistant"}
# Of parameters that are not supported: the values by which nothing is asked.
_NEUTRAL: Mapping[str, Sequence[object]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "store": (False,),
    "service_tier": ("auto", "default"),
}
_WITHOUT_EFFECT = ("user", "metadata", "safety_identifier", "prompt_cache_key")


def _unicode(text: str) -> str:
    """JSON can spell halves of characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("holds half a surrogate pair, which is no character") from None
    return text


_Text = Annotated[str, AfterValidator(_unicode)]


@dataclass(frozen=True, slots=True)
class _Meta:
    """``RequestMeta`` of what HTTP asks."""

    request_id: str
    tenant: str
    deadline_ms: int
    principal: str = ""
    traceparent: str = ""


class _Lenient(BaseModel):
    """Keeps what it does not know, to be refused by name unless it asks for nothing."""

    model_config = ConfigDict(extra="allow", strict=True)


class ChatPart(_Lenient):
    type: str
    text: _Text | None = None


class ChatMessage(_Lenient):
    role: str
    content: _Text | list[ChatPart] | None = None


class StreamOptions(_Lenient):
    include_usage: bool | None = None


class ChatRequest(_Lenient):
    """OpenAI's parameters; behind them ours, which its clients send as ``extra_body``."""

    model: str
    messages: list[ChatMessage]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(None, ge=1, le=_MAX_NUMBER)
    max_completion_tokens: int | None = Field(None, ge=1, le=_MAX_NUMBER)
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    n: int | None = None
    stop: _Text | list[_Text] | None = None

    collection: _Text | None = None
    mode: str | None = None
    ratio: float | None = None
    adapter: _Text | None = None
    top_k: int | None = Field(None, ge=1, le=_MAX_NUMBER)
    refusal: str | None = None
    shadow: bool | None = None
    tenant: str | None = None
    deadline_ms: int | None = Field(None, ge=1, le=_DAY_MS)
    ignore_eos: bool | None = None

    @property
    def with_usage(self) -> bool:
        """A stream ends with what it cost."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def check(self) -> None:
        """
        Raises:
            InvalidRequest: names a parameter that is not supported.
        """
        for name, value in (self.model_extra or {}).items():
            if value is None or name in _WITHOUT_EFFECT or value in _NEUTRAL.get(name, ()):
                continue
            raise InvalidRequest(f"{name}: is not supported; leave it out (docs/http.md lists what is)")
        if self.stream_options is not None:
            _check_extra(self.stream_options, "stream_options")
            if not self.stream:
                raise InvalidRequest("stream_options: needs stream: true")

    def context(self, headers: Mapping[str, str], caller: Caller = OPERATOR) -> RequestContext:
        """
        Raises:
            InvalidRequest: the tenant is no name, or the header names another one.
        """
        header = headers.get(TENANT_HEADER, "")
        if header and self.tenant and header != self.tenant:
            raise InvalidRequest(f"tenant: is {self.tenant!r}, but {header!r} in the header {TENANT_HEADER}")
        return caller.context(
            _Meta(
                headers.get(REQUEST_ID_HEADER, ""),
                self.tenant or header,
                self.deadline_ms or 0,
                traceparent=headers.get(TRACEPARENT_HEADER, ""),
            )
        )

    def inquiry(self) -> Inquiry:
        """
        Raises:
            InvalidRequest: names what is missing, wrong or not supported.
        """
        if not self.collection:
            raise InvalidRequest(
                'collection: name the collection to ask; with OpenAI\'s client extra_body={"collection": "…"}'
            )
        preface, question = _spoken(self.messages)
        return Inquiry(
            self.collection,
            (question,),
            reuse=Reuse(_mode(self.mode), Recompute(self.ratio), adapter=self.adapter or ""),
            sampling=self._sampling(),
            retrieval=RetrievalOptions(self.top_k or 0),
            refusal=REFUSALS.of(self.refusal or "", "refusal"),
            preface=preface,
            no_shadow=self.shadow is False,
        )

    def _sampling(self) -> SamplingParams:
        most, old = self.max_completion_tokens, self.max_tokens
        if most is not None and old is not None and most != old:
            raise InvalidRequest(f"max_tokens: is {old}, but max_completion_tokens {most}; give one of them")
        given = {
            "max_tokens": old if most is None else most,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "seed": self.seed,
            "n": self.n,
            "ignore_eos": self.ignore_eos,
            "stop": (self.stop,) if isinstance(self.stop, str) else self.stop and tuple(self.stop),
        }
        return SamplingParams(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]


def _mode(name: str | None) -> AskedMode | None:
    if not name:
        return None
    for mode in MODES:
        if mode == name:
            return mode
    raise InvalidRequest(f"mode: {name!r} is not one of {', '.join(MODES)}")


def _spoken(messages: Sequence[ChatMessage]) -> tuple[str, str]:
    """What stands in front of the question, and the question."""
    if not messages:
        raise InvalidRequest("messages: is empty; its last message is the question")
    *before, last = [(message.role, _text(message, f"messages[{i}]")) for i, message in enumerate(messages)]
    if last[0] != "user":
        raise InvalidRequest(
            f"messages[{len(before)}].role: is {last[0]!r}; the last message is the question, from the user"
        )
    told = [text for role, text in before if role in _INSTRUCTING and text]
    turns = [f"{_SPEAKERS[role]}: {text}" for role, text in before if role in _SPEAKERS]
    if turns:
        told += ["Earlier in this conversation:", *turns]
    return "\n".join(told), last[1]


def _text(message: ChatMessage, where: str) -> str:
    if message.role not in (*_INSTRUCTING, *_SPEAKERS):
        known = ", ".join((*_INSTRUCTING, *_SPEAKERS))
        raise InvalidRequest(f"{where}.role: {message.role!r} is not supported; {known} are")
    _check_extra(message, where)
    if message.content is None:
        raise InvalidRequest(f"{where}.content: is required")
    if isinstance(message.content, str):
        return message.content
    for i, part in enumerate(message.content):
        if part.type != "text" or part.text is None:
            raise InvalidRequest(f"{where}.content[{i}]: {part.type!r} is not supported, only text is")
        _check_extra(part, f"{where}.content[{i}]")
    return "\n".join(part.text or "" for part in message.content)


def _check_extra(value: _Lenient, where: str) -> None:
    """Clients send members of their own message types along that are null or empty."""
    for name, member in (value.model_extra or {}).items():
        if member not in (None, [], {}, ""):
            raise InvalidRequest(f"{where}.{name}: is not supported; leave it out")
