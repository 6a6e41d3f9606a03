"""Answering a question: the values that the gateway and its clients share. Times in seconds."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from shared.earlier_turns import EarlierTurn
from shared.generation.asked import Decoding, SamplingParams
from shared.generation.orders import Reuse
from shared.generation.told import (
    ChosenEvent,
    FinishReason,
    MarginEvent,
    MarginTokenEvent,
    SelectedEvent,
    Timings,
    TokenEvent,
    Usage,
)
from shared.search import Filter, SearchHit, SearchMode


class Refusal(enum.StrEnum):
    """Decides when a question is refused before anything is generated: never, where the evidence is very
    poor, or where it is not good."""

    OFF = "off"
    LENIENT = "lenient"
    STRICT = "strict"


class FollowUp(enum.StrEnum):
    """What was searched by where a question followed others: the question as the model wrote it to stand
    alone, or with what the user said before, or as it was, or so because writing it failed. NONE: it followed
    none, or nothing was searched."""

    NONE = ""
    REWRITTEN = "rewritten"
    JOINED = "joined"
    LAST = "last"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RetrievalOptions:
    """``k`` 0: the service's default."""

    k: int = 0
    mode: SearchMode = SearchMode.AUTO
    filters: tuple[Filter, ...] = ()


@dataclass(frozen=True, slots=True)
class HandedDocument:
    """A chunk of a context that is handed over, instead of searched. ``title`` may be empty."""

    title: str
    text: str

    @property
    def whole(self) -> str:
        """The text of the chunk."""
        return f"{self.title}\n\n{self.text}" if self.title else self.text


@dataclass(frozen=True, slots=True)
class Inquiry:
    """One or more questions over one context: of a collection, or ``documents``. ``without_prefix``: nothing
    stands in front of the chunks; ``explain``: it is told by which scores tokens are computed anew, and where
    they are in the text; ``refusal`` None: the gateway's own; ``preface``: text in front of every question in
    its part of the prompt, by which nothing is searched; ``turns``: what was said between that and the
    question, which it may follow (``FollowUp``); ``pasted``: what users pasted into turns and question is the
    context; ``no_shadow``: the question is not asked again of the reference."""

    collection: str
    questions: tuple[str, ...]
    reuse: Reuse = field(default_factory=Reuse)
    sampling: SamplingParams = field(default_factory=SamplingParams)
    retrieval: RetrievalOptions = field(default_factory=RetrievalOptions)
    decoding: Decoding = field(default_factory=Decoding)
    without_prefix: bool = False
    explain: bool = False
    refusal: Refusal | None = None
    preface: str = ""
    no_shadow: bool = False
    documents: tuple[HandedDocument, ...] = ()
    pasted: bool = False
    turns: tuple[EarlierTurn, ...] = ()


@dataclass(frozen=True, slots=True)
class Citation:
    """``hit`` is the chunk's place in ``Retrieved.hits``; ``block``: of the document, from 1, with the
    headings above it (0: it has none). ``conditioned_on_header``, ``conditioned_on_chunks`` (by their numbers
    in the document): what the chunk's KV was computed behind and was not retrieved, so that the answer may
    come from there as well."""

    document_id: str
    title: str
    chunk_id: str
    hit: int
    heading: str = ""
    block: int = 0
    block_heading: str = ""
    conditioned_on_header: bool = False
    conditioned_on_chunks: tuple[int, ...] = ()

    @property
    def conditioned_on(self) -> str:
        """For people; empty: nothing that was not retrieved."""
        num = len(self.conditioned_on_chunks)
        chunks = f"{num} chunk{'' if num == 1 else 's'}" if num else ""
        return " + ".join(filter(None, ("header" if self.conditioned_on_header else "", chunks)))


@dataclass(frozen=True, slots=True)
class Retrieved:
    """The context, in the order in which it is placed. ``queries``: what was searched by for each question;
    empty: nothing was searched."""

    hits: tuple[SearchHit, ...]
    mode: SearchMode
    queries: tuple[str, ...] = ()
    follow_up: FollowUp = FollowUp.NONE


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
    """``retrieve_s``, ``first_token_s`` and ``total_s`` as the gateway measured them from the request's
    arrival, the other stages as the generator did."""

    usage: Usage
    timings: Timings


@dataclass(frozen=True, slots=True)
class AnswerDone:
    """Last event of a whole answer; a stream without it is not one."""

    request_id: str


AnswerEvent = (
    Retrieved
    | SelectedEvent
    | TokenEvent
    | AnswerText
    | ChosenEvent
    | MarginTokenEvent
    | MarginEvent
    | AnswerUsage
    | AnswerDone
)
