"""Requests to the engine: prompts by token ids, sampling, beams, choices. Values only; no tensors."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from shared.errors import InvalidRequest
from shared.generation.modes import Ape, Recompute, ReuseMode
from shared.generation.ranges import check_range
from shared.generation.response_format import ResponseFormat
from shared.identity import TokenIds

MAX_TOP_LOGPROBS = 64
MAX_SAMPLES = 64
MAX_LENGTH_PENALTY = 10.0
DEFAULT_MAX_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Chunk:
    """A run of token ids with the identity of its stored KV (``shared.identity.chunk_identity``).

    ``parent_id``: identity of the chunk in front of it, behind which it is computed; empty: behind the prefix
    alone. ``isolated_id``: the identity that it has without a parent, for requests in which the chunks in
    front of it cannot be had.
    """

    chunk_id: str
    token_ids: TokenIds
    parent_id: str = ""
    isolated_id: str = ""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The rules by which a branch continues. Ranges are checked here, so that every caller gets the same
    answer. ``max_tokens`` None: the service's own, of the engine alone ``DEFAULT_MAX_TOKENS``. ``watch_ids``:
    tokens whose log-probabilities are told at every step, whether they are chosen or not. ``stop_repeated``:
    the text ends before a sentence that it has said already. These two do not travel. ``response_format``:
    that the text keeps to; None: it is any text.

    Raises:
        InvalidRequest: names the field and its range.
    """

    max_tokens: int | None = None
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    n: int = 1
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    top_logprobs: int = 0
    watch_ids: TokenIds = ()
    stop_repeated: bool = False
    response_format: ResponseFormat | None = None

    def __post_init__(self) -> None:
        check_range("sampling.max_tokens", self.max_tokens, self.limit >= 1, "at least 1")
        check_range(
            "sampling.temperature",
            self.temperature,
            math.isfinite(self.temperature) and self.temperature >= 0,
            "finite and at least 0",
        )
        check_range("sampling.top_k", self.top_k, self.top_k >= 0, "at least 0")
        check_range("sampling.top_p", self.top_p, 0 < self.top_p <= 1, "above 0 and at most 1")
        check_range("sampling.seed", self.seed, 0 <= self.seed < 2**64, "a 64-bit unsigned number")
        check_range("sampling.n", self.n, 1 <= self.n <= MAX_SAMPLES, f"1 to {MAX_SAMPLES}")
        check_range(
            "sampling.top_logprobs",
            self.top_logprobs,
            0 <= self.top_logprobs <= MAX_TOP_LOGPROBS,
            f"0 to {MAX_TOP_LOGPROBS}",
        )
        if any(not s for s in self.stop):
            raise InvalidRequest("sampling.stop: a stop string is empty")
        if self.response_format is not None and self.ignore_eos:
            raise InvalidRequest(
                "sampling.ignore_eos: a text of a response_format ends where it is complete; leave one of "
                "them out"
            )

    @property
    def limit(self) -> int:
        """Most tokens to generate."""
        return DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens


class EarlyStopping(enum.StrEnum):
    """The end of a beam search once it has ``width`` hypotheses; see ``shared.engine.decoding.beams``."""

    FIRST = "first"
    ESTIMATE = "estimate"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Beams:
    """Beam search instead of sampling: ``width`` beams per question, of which the best ``sampling.n`` are
    answers.

    Raises:
        InvalidRequest: names the field and its range.
    """

    width: int
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = EarlyStopping.ESTIMATE

    def __post_init__(self) -> None:
        check_range("beams.width", self.width, 1 <= self.width <= MAX_SAMPLES, f"1 to {MAX_SAMPLES}")
        possible = abs(self.length_penalty) <= MAX_LENGTH_PENALTY  # False for NaN
        check_range(
            "beams.length_penalty",
            self.length_penalty,
            possible,
            f"{-MAX_LENGTH_PENALTY} to {MAX_LENGTH_PENALTY}",
        )


class ChoiceRule(enum.StrEnum):
    MEAN_LOGPROB = "mean-logprob"
    MAJORITY = "majority"


@dataclass(frozen=True, slots=True)
class Choice:
    """Of the ``sampling.n`` thoughts on each question one is chosen: the one whose tokens have the best mean
    log-probability, or one whose final answer, the text behind the last ``marker``, most thoughts share; see
    ``shared.engine.decoding.choice``."""

    rule: ChoiceRule
    marker: str = ""


class MarginsAfter(enum.StrEnum):
    """The context of a margin besides the prefix: its own chunk, or that and all in front of it."""

    OWN = "own"
    PREVIOUS = "previous"


@dataclass(frozen=True, slots=True)
class Margins:
    """Writing in the Margins (arXiv 2408.14906). ``{question}`` and, in ``relevance``, ``{margin}`` are
    replaced; both texts go through the model's question template. A margin is kept if ``yes`` is likelier
    than ``no``. ``max_tokens``: of each margin."""

    instruction: str = "Note what the text says that helps to answer: {question}"
    relevance: str = "Does the note “{margin}” help to answer “{question}”? Say yes or no."
    yes: str = " yes"
    no: str = " no"
    max_tokens: int = 64
    after: MarginsAfter = MarginsAfter.OWN


@dataclass(frozen=True, slots=True)
class Decoding:
    """At most one of ``beams`` and ``choose``; neither: ``SamplingParams`` says it all. ``margins`` are
    written before either.

    Raises:
        InvalidRequest: both beams and a choice.
    """

    beams: Beams | None = None
    choose: Choice | None = None
    margins: Margins | None = None

    def __post_init__(self) -> None:
        if self.beams is not None and self.choose is not None:
            raise InvalidRequest(
                "choose: beams are ranked by their scores already; give beams or choose, not both"
            )


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """Every question is a branch over the same context (prefix, then chunks in order), with ``sampling.n``
    answers each: samples, with ``choose`` one of them chosen, or under ``beams`` the best beams.

    ``deadline_s`` is an instant of ``time.monotonic()``, or None. ``links``: chunks that others of this
    request were computed behind; they are not part of the context. ``adapter``: the name of the one that its
    private rows go with, under a mode that uses stored KV; empty: none. ``idle``: nobody waits for it; it
    takes short steps, so that it can be cancelled soon. ``traceparent``: the span of whoever asks, for the
    segment source; not empty: its end tells what it spent its time on. ``tenant``: for whom what is computed
    is stored, and whose part of the memory it takes; those that wait are served in turns over the tenants.
    ``asked_by``: the principal whose quota what is stored meets; empty: nobody's. ``priority``: among what
    waits of the tenant (``shared.admission.priority``). ``conversation``: its questions begin with earlier
    turns, so that their KV is kept for the next one, and what the last one left is used; for the tenant and
    ``asked_by`` alone, and not if it is ``idle``.
    """

    request_id: str
    prefix_ids: TokenIds
    chunks: tuple[Chunk, ...]
    questions: tuple[TokenIds, ...]
    reuse: ReuseMode = ReuseMode.REORDERED
    sampling: SamplingParams = field(default_factory=SamplingParams)
    deadline_s: float | None = None
    beams: Beams | None = None
    choose: Choice | None = None
    recompute: Recompute = field(default_factory=Recompute)
    ape: Ape = field(default_factory=Ape)
    links: tuple[Chunk, ...] = ()
    adapter: str = ""
    idle: bool = False
    traceparent: str = ""
    tenant: str = ""
    asked_by: str = ""
    priority: int = 0
    conversation: bool = False

    @property
    def num_branches(self) -> int:
        """The number that decode at once."""
        return len(self.questions) * (self.beams.width if self.beams else self.sampling.n)


@dataclass(frozen=True, slots=True)
class PrefillRequest:
    """Compute the chunks' KV behind the prefix and hand it to the segment source (``save``).

    ``encoding`` empty: new KV is stored in the source's own, what is stored stays as it is; else all of it
    ends up in this one. ``links``: chunks that others of this request are computed behind; they are not
    stored. ``traceparent``, ``tenant``, ``asked_by``, ``priority``: as of a ``GenerateRequest``.
    """

    request_id: str
    prefix_ids: TokenIds
    chunks: tuple[Chunk, ...]
    deadline_s: float | None = None
    encoding: str = ""
    links: tuple[Chunk, ...] = ()
    traceparent: str = ""
    tenant: str = ""
    asked_by: str = ""
    priority: int = 0


def chain_of(chunk: Chunk, known: Iterable[Chunk]) -> tuple[Chunk, ...] | None:
    """The chunks in front of ``chunk``, the first of its chain first; None: not all of them are
    ``known``."""
    by_id, chain, parent_id = {one.chunk_id: one for one in known}, [], chunk.parent_id
    while parent_id:
        link = by_id.pop(parent_id, None)
        if link is None:
            return None
        chain.append(link)
        parent_id = link.parent_id
    return tuple(reversed(chain))


def total_len(chunks: Iterable[Chunk]) -> int:
    """Tokens of all of them."""
    return sum(len(chunk.token_ids) for chunk in chunks)
