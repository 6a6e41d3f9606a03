"""What goes into the engine and what comes out of it. Values only; no tensors."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from shared.errors import InvalidRequest, KvquiltError

MAX_TOP_LOGPROBS = 64
MAX_SAMPLES = 64
MAX_LENGTH_PENALTY = 10.0
MAX_APE = 10.0


class ReuseMode(enum.Enum):
    """Where the chunks of a context stand, and which of their tokens are computed anew
    (``shared.engine.modes.selecting``)."""

    FULL = "full"
    REORDERED = "reordered"
    COMPOSITE = "composite"
    TOKENS = "tokens"
    EPIC = "epic"
    RANDOM = "random"
    QUERY_ATTENTION = "query_attention"
    CACHEBLEND = "cacheblend"
    APE = "ape"
    CACHECLIP = "cacheclip"

    @property
    def recomputes(self) -> bool:
        return self not in (ReuseMode.FULL, ReuseMode.REORDERED, ReuseMode.COMPOSITE, ReuseMode.APE)

    @property
    def deferred(self) -> bool:
        """Somebody else chooses, while the KV is loaded: the request waits for ``Engine.decide``."""
        return self is ReuseMode.CACHECLIP


class FinishReason(enum.Enum):
    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class Chunk:
    """A run of token ids with the identity of its stored KV (``shared.identity.chunk_identity``)."""

    chunk_id: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Recompute:
    """How much of the context is computed anew under a mode that does so: each token of it attends to all
    that stands in front of it, as under ``full``. ``ratio``: of the tokens that the mode chooses (None: the
    default one); ``tokens``: under mode ``tokens`` which ones, counted from 0 over all chunks in order;
    ``seed``: of mode ``random``.

    Raises:
        InvalidRequest: names the field and its range.
    """

    ratio: float | None = None
    tokens: tuple[int, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if self.ratio is not None:
            _check("recompute.ratio", self.ratio, 0 <= self.ratio <= 1, "0 to 1")  # False for NaN
        if len(set(self.tokens)) < len(self.tokens):
            repeated = next(token for i, token in enumerate(self.tokens) if token in self.tokens[:i])
            raise InvalidRequest(
                f"recompute.tokens: {repeated} is there more than once; name each token once"
            )
        _check("recompute.seed", self.seed, 0 <= self.seed < 2**64, "a 64-bit unsigned number")


@dataclass(frozen=True, slots=True)
class Ape:
    """How mode ``ape`` weighs the chunks (``shared.engine.modes.tempering``): sharper below a temperature of
    1, less of them below a scale of 1. Both 1 is ordinary attention.

    Raises:
        InvalidRequest: names the field and its range.
    """

    temperature: float = 0.9
    scale: float = 0.9

    def __post_init__(self) -> None:
        for name, value in (("temperature", self.temperature), ("scale", self.scale)):
            # False for NaN
            _check(f"ape.{name}", value, 0 < value <= MAX_APE, f"above 0 and at most {MAX_APE}")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a branch continues. Ranges are checked here, so that every caller gets the same answer.
    ``watch_ids``: tokens whose log-probabilities are told at every step, whether they are chosen or not.

    Raises:
        InvalidRequest: names the field and its range.
    """

    max_tokens: int = 64
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    n: int = 1
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    top_logprobs: int = 0
    watch_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _check("sampling.max_tokens", self.max_tokens, self.max_tokens >= 1, "at least 1")
        _check(
            "sampling.temperature",
            self.temperature,
            math.isfinite(self.temperature) and self.temperature >= 0,
            "finite and at least 0",
        )
        _check("sampling.top_k", self.top_k, self.top_k >= 0, "at least 0")
        _check("sampling.top_p", self.top_p, 0 < self.top_p <= 1, "above 0 and at most 1")
        _check("sampling.seed", self.seed, 0 <= self.seed < 2**64, "a 64-bit unsigned number")
        _check("sampling.n", self.n, 1 <= self.n <= MAX_SAMPLES, f"1 to {MAX_SAMPLES}")
        _check(
            "sampling.top_logprobs",
            self.top_logprobs,
            0 <= self.top_logprobs <= MAX_TOP_LOGPROBS,
            f"0 to {MAX_TOP_LOGPROBS}",
        )
        if any(not s for s in self.stop):
            raise InvalidRequest("sampling.stop: a stop string is empty")


class EarlyStopping(enum.Enum):
    """When a beam search ends once it has ``width`` hypotheses; see ``shared.engine.decoding.beams``."""

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
        _check("beams.width", self.width, 1 <= self.width <= MAX_SAMPLES, f"1 to {MAX_SAMPLES}")
        possible = abs(self.length_penalty) <= MAX_LENGTH_PENALTY  # False for NaN
        _check(
            "beams.length_penalty",
            self.length_penalty,
            possible,
            f"{-MAX_LENGTH_PENALTY} to {MAX_LENGTH_PENALTY}",
        )


class ChoiceRule(enum.Enum):
    MEAN_LOGPROB = "mean-logprob"
    MAJORITY = "majority"


@dataclass(frozen=True, slots=True)
class Choice:
    """Of the ``sampling.n`` thoughts on each question one is chosen: the one whose tokens have the best mean
    log-probability, or one whose final answer, the text behind the last ``marker``, most thoughts share; see
    ``shared.engine.decoding.choosing``."""

    rule: ChoiceRule
    marker: str = ""


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """Every question is a branch over the same context (prefix, then chunks in order), with ``sampling.n``
    answers each: samples, with ``choose`` one of them chosen, or under ``beams`` the best beams.

    ``deadline_s`` is an instant of ``time.monotonic()``, or None.
    """

    request_id: str
    prefix_ids: tuple[int, ...]
    chunks: tuple[Chunk, ...]
    questions: tuple[tuple[int, ...], ...]
    reuse: ReuseMode = ReuseMode.REORDERED
    sampling: SamplingParams = field(default_factory=SamplingParams)
    deadline_s: float | None = None
    beams: Beams | None = None
    choose: Choice | None = None
    recompute: Recompute = field(default_factory=Recompute)
    ape: Ape = field(default_factory=Ape)

    @property
    def num_branches(self) -> int:
        """How many decode at once."""
        return len(self.questions) * (self.beams.width if self.beams else self.sampling.n)


@dataclass(frozen=True, slots=True)
class PrefillRequest:
    """Compute the chunks' KV behind the prefix and hand it to the segment source (``save``).

    ``encoding`` empty: new KV is stored in the source's own, what is stored stays as it is; else all of it
    ends up in this one.
    """

    request_id: str
    prefix_ids: tuple[int, ...]
    chunks: tuple[Chunk, ...]
    deadline_s: float | None = None
    encoding: str = ""


@dataclass(frozen=True, slots=True)
class ForestRequest:
    """A forest over a context (prefix, then chunks in order) that lives until it is closed, cancelled, or
    late."""

    request_id: str
    prefix_ids: tuple[int, ...]
    chunks: tuple[Chunk, ...]
    reuse: ReuseMode = ReuseMode.REORDERED
    deadline_s: float | None = None
    recompute: Recompute = field(default_factory=Recompute)
    ape: Ape = field(default_factory=Ape)

    @property
    def context(self) -> tuple[str, tuple[int, ...], tuple[Chunk, ...]]:
        return self.request_id, self.prefix_ids, self.chunks


@dataclass(frozen=True, slots=True)
class Start:
    """A new branch on the context. Ids of branches are the caller's choice."""

    branch: int
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fork:
    """A new branch with the first ``length`` tokens of ``source`` (None: all); what ``source`` still grows,
    it does not."""

    branch: int
    source: int
    length: int | None = None


@dataclass(frozen=True, slots=True)
class Rewind:
    """Takes the last tokens of a branch away. If it was growing, it rests."""

    branch: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Prune:
    """Ends a branch; what no other branch sees of it is freed at once."""

    branch: int


@dataclass(frozen=True, slots=True)
class Append:
    """Continues a resting branch with these tokens."""

    branch: int
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Grow:
    """Continues a resting branch by sampling. Noise is a function of (seed, branch, number of tokens in the
    branch)."""

    branch: int
    sampling: SamplingParams


@dataclass(frozen=True, slots=True)
class Merge:
    """A new branch: the whole first source, then what the others have behind the first ``length`` tokens,
    which all share (None: as many as all begin with, and have more). Sources rest, and live on.

    ``placed``: the others' KV is moved there as it was computed, an approximation; False: their tokens are
    computed again, exactly.
    """

    branch: int
    sources: tuple[int, ...]
    length: int | None = None
    placed: bool = False


@dataclass(frozen=True, slots=True)
class Close:
    """Ends the forest as soon as every branch rests: ``DoneEvent``."""


Edit = Start | Fork | Rewind | Prune | Append | Grow | Merge
Command = Edit | Close


@dataclass(frozen=True, slots=True)
class Usage:
    """Counts of tokens; prompt = reused + recomputed. ``loaded_tokens``: those reused ones that were stored,
    but not resident; ``selected_tokens``: those recomputed ones that the mode chose, for any question. What
    is recomputed in some layers counts by their share."""

    prompt_tokens: int
    reused_tokens: int
    recomputed_tokens: int
    generated_tokens: int
    loaded_tokens: int = 0
    selected_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds. ``engine_ttft_s`` runs from placements known to the first token: all KV is resident then, or
    arriving in the order in which it is needed; ``load_s`` is what passed before, without ``select_wait_s``,
    in which all KV was resident and somebody else still chose the tokens to compute anew."""

    queue_s: float = 0.0
    load_s: float = 0.0
    prefill_s: float = 0.0
    first_token_s: float = 0.0
    decode_s: float = 0.0
    total_s: float = 0.0
    engine_ttft_s: float = 0.0
    select_wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SelectedEvent:
    """These tokens of the context, counted from 0 over all chunks in order, are computed anew; before the
    first token.

    ``question``: for this one; None: for all. ``scores``: what every token was judged by, if the mode judges.
    ``layers``: how many are computed in each layer, if that differs; ``tokens`` are then those of the first
    layer that does not compute all.
    """

    tokens: tuple[int, ...]
    question: int | None = None
    scores: tuple[float, ...] = ()
    layers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenEvent:
    question: int
    sample: int
    token_id: int
    text: str
    logprob: float
    top_logprobs: tuple[tuple[int, float], ...] = ()
    watched: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class BranchDoneEvent:
    """``score``: mean log-probability of the generated tokens, the end mark included; of a beam the score it
    was ranked by."""

    question: int
    sample: int
    finish_reason: FinishReason
    text: str
    generated_tokens: int
    score: float


@dataclass(frozen=True, slots=True)
class ChosenEvent:
    """All thoughts on a question are complete and ``sample`` is the chosen one. ``answer`` and ``votes``:
    what the majority says and how many say it; of a choice by log-probability empty and 0."""

    question: int
    sample: int
    answer: str = ""
    votes: int = 0


@dataclass(frozen=True, slots=True)
class ChunkStoredEvent:
    """One chunk of a ``PrefillRequest`` is durable."""

    index: int
    existed: bool


@dataclass(frozen=True, slots=True)
class AppliedEvent:
    """The command with this number, counted from 0, was applied; the branch that it names has ``num_tokens``
    now.

    ``approximate``: the branch, or what it was forked from, holds KV that a merge placed as it was.
    """

    command: int
    num_tokens: int
    approximate: bool = False


@dataclass(frozen=True, slots=True)
class RefusedEvent:
    """The command with this number was refused. The forest is as it was."""

    command: int
    error: KvquiltError


@dataclass(frozen=True, slots=True)
class GrownEvent:
    """A branch of a live forest has one token more; an end mark is told, but not kept in the branch."""

    branch: int
    token_id: int
    text: str
    logprob: float
    top_logprobs: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class RestedEvent:
    """A branch has grown as far as it was told to; it may be told to do something else. ``text``: what was
    held back."""

    branch: int
    finish_reason: FinishReason
    text: str
    num_tokens: int


ForestEvent = AppliedEvent | RefusedEvent | GrownEvent | RestedEvent


@dataclass(frozen=True, slots=True)
class DoneEvent:
    """The request is complete. No event follows."""

    usage: Usage
    timings: Timings


@dataclass(frozen=True, slots=True)
class FailedEvent:
    """The request ended without completing. No event follows."""

    error: KvquiltError


Event = (
    SelectedEvent
    | TokenEvent
    | BranchDoneEvent
    | ChosenEvent
    | ChunkStoredEvent
    | ForestEvent
    | DoneEvent
    | FailedEvent
)


def total_len(pieces: Sequence[Sequence[int]]) -> int:
    return sum(len(p) for p in pieces)


def _check(name: str, value: object, ok: bool, rule: str) -> None:
    if not ok:
        raise InvalidRequest(f"{name}: {value!r} is out of range; it must be {rule}")
