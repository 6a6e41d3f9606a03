"""Answering a question: the values that the gateway and its clients share."""

from __future__ import annotations

from dataclasses import dataclass

from shared.engine.types import FinishReason, ReuseMode, Usage
from shared.search import Filter, SearchHit, SearchMode


@dataclass(frozen=True, slots=True)
class RetrievalOptions:
    """``k`` 0: the service's default."""

    k: int = 0
    mode: SearchMode = SearchMode.AUTO
    filters: tuple[Filter, ...] = ()


@dataclass(frozen=True, slots=True)
class StageTimings:
    """Seconds; a stage that did not happen is 0. ``first_token_s`` and ``total_s`` run from the request's arrival at the gateway,
    ``engine_ttft_s`` from placements known to the first token; the other stages as the generator measured them."""

    retrieve_s: float = 0.0
    queue_s: float = 0.0
    load_s: float = 0.0
    prefill_s: float = 0.0
    first_token_s: float = 0.0
    decode_s: float = 0.0
    total_s: float = 0.0
    engine_ttft_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Citation:
    """``hit`` is the chunk's place in ``Retrieved.hits``."""

    document_id: str
    title: str
    chunk_id: str
    hit: int
    heading: str = ""


@dataclass(frozen=True, slots=True)
class Retrieved:
    """The context, in the order in which it is placed."""

    hits: tuple[SearchHit, ...]
    mode: SearchMode


@dataclass(frozen=True, slots=True)
class AnswerToken:
    question: int
    sample: int
    token_id: int
    text: str
    logprob: float
    top_logprobs: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class AnswerText:
    """One finished branch: its whole text, and the documents it was read from, best first."""

    question: int
    sample: int
    text: str
    finish_reason: FinishReason
    citations: tuple[Citation, ...] = ()


@dataclass(frozen=True, slots=True)
class AnswerUsage:
    usage: Usage
    timings: StageTimings


@dataclass(frozen=True, slots=True)
class AnswerDone:
    """Last event of a whole answer; a stream without it is not one."""

    request_id: str


AnswerEvent = Retrieved | AnswerToken | AnswerText | AnswerUsage | AnswerDone

__all__ = [
    "AnswerDone",
    "AnswerEvent",
    "AnswerText",
    "AnswerToken",
    "AnswerUsage",
    "Citation",
    "FinishReason",
    "RetrievalOptions",
    "Retrieved",
    "ReuseMode",
    "StageTimings",
    "Usage",
]
