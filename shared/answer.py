"""Answering a question: the values that the gateway and its clients share. Times in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass

from shared.clients.decoding import Chosen, Margin, MarginToken
from shared.clients.generation import FinishReason, GeneratedToken, Timings, Usage
from shared.clients.recompute import Selected
from shared.search import Filter, SearchHit, SearchMode


@dataclass(frozen=True, slots=True)
class RetrievalOptions:
    """``k`` 0: the service's default."""

    k: int = 0
    mode: SearchMode = SearchMode.AUTO
    filters: tuple[Filter, ...] = ()


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
class AnswerText:
    """One finished branch: its whole text, and the documents it was read from, best first. ``score``: mean
    log-probability of its tokens, or what a beam was ranked by."""

    question: int
    sample: int
    text: str
    finish_reason: FinishReason
    citations: tuple[Citation, ...] = ()
    score: float = 0.0


@dataclass(frozen=True, slots=True)
class AnswerUsage:
    """``retrieve_ms``, ``first_token_ms`` and ``total_ms`` as the gateway measured them from the request's
    arrival, the other stages as the generator did."""

    usage: Usage
    timings: Timings


@dataclass(frozen=True, slots=True)
class AnswerDone:
    """Last event of a whole answer; a stream without it is not one."""

    request_id: str


AnswerEvent = (
    Retrieved
    | Selected
    | GeneratedToken
    | AnswerText
    | Chosen
    | MarginToken
    | Margin
    | AnswerUsage
    | AnswerDone
)
