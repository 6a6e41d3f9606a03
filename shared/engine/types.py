"""What goes into the engine and what comes out of it. Values only; no tensors."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from shared.errors import InvalidRequest, KvquiltError

MAX_TOP_LOGPROBS = 64
MAX_SAMPLES = 64


class ReuseMode(enum.Enum):
    """Where the chunks of a context stand."""

    FULL = "full"
    REORDERED = "reordered"
    COMPOSITE = "composite"


class FinishReason(enum.Enum):
    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class Chunk:
    """A run of token ids with the identity of its stored KV (``shared.identity.chunk_identity``)."""

    chunk_id: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a branch continues. Ranges are checked here, so that every caller gets the same answer.

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

    def __post_init__(self) -> None:
        _check("max_tokens", self.max_tokens, self.max_tokens >= 1, "at least 1")
        _check("temperature", self.temperature, math.isfinite(self.temperature) and self.temperature >= 0, "finite and at least 0")
        _check("top_k", self.top_k, self.top_k >= 0, "at least 0")
        _check("top_p", self.top_p, 0 < self.top_p <= 1, "above 0 and at most 1")
        _check("seed", self.seed, 0 <= self.seed < 2**64, "a 64-bit unsigned number")
        _check("n", self.n, 1 <= self.n <= MAX_SAMPLES, f"1 to {MAX_SAMPLES}")
        _check("top_logprobs", self.top_logprobs, 0 <= self.top_logprobs <= MAX_TOP_LOGPROBS, f"0 to {MAX_TOP_LOGPROBS}")
        if any(not s for s in self.stop):
            raise InvalidRequest("sampling.stop: a stop string is empty")


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """Every question is a branch over the same context (prefix, then chunks in order), with ``sampling.n`` samples each.

    ``deadline_s`` is an instant of ``time.monotonic()``, or None.
    """

    request_id: str
    prefix_ids: tuple[int, ...]
    chunks: tuple[Chunk, ...]
    questions: tuple[tuple[int, ...], ...]
    reuse: ReuseMode = ReuseMode.REORDERED
    sampling: SamplingParams = field(default_factory=SamplingParams)
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True)
class PrefillRequest:
    """Compute the chunks' KV behind the prefix and hand it to the segment source (``save``).

    ``encoding`` empty: new KV is stored in the source's own, what is stored stays as it is; else all of it ends up in this one.
    """

    request_id: str
    prefix_ids: tuple[int, ...]
    chunks: tuple[Chunk, ...]
    deadline_s: float | None = None
    encoding: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    """Counts of tokens; prompt = reused + recomputed. ``loaded_tokens``: those reused ones that were stored, but not resident."""

    prompt_tokens: int
    reused_tokens: int
    recomputed_tokens: int
    generated_tokens: int
    loaded_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds. ``engine_ttft_s`` runs from placements known to the first token: all KV is resident then, or arriving in the order
    in which it is needed; ``load_s`` is what passed before."""

    queue_s: float = 0.0
    load_s: float = 0.0
    prefill_s: float = 0.0
    first_token_s: float = 0.0
    decode_s: float = 0.0
    total_s: float = 0.0
    engine_ttft_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TokenEvent:
    question: int
    sample: int
    token_id: int
    text: str
    logprob: float
    top_logprobs: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class BranchDoneEvent:
    question: int
    sample: int
    finish_reason: FinishReason
    text: str
    generated_tokens: int


@dataclass(frozen=True, slots=True)
class ChunkStoredEvent:
    """One chunk of a ``PrefillRequest`` is durable."""

    index: int
    existed: bool


@dataclass(frozen=True, slots=True)
class DoneEvent:
    """The request is complete. No event follows."""

    usage: Usage
    timings: Timings


@dataclass(frozen=True, slots=True)
class FailedEvent:
    """The request ended without completing. No event follows."""

    error: KvquiltError


Event = TokenEvent | BranchDoneEvent | ChunkStoredEvent | DoneEvent | FailedEvent


def total_len(pieces: Sequence[Sequence[int]]) -> int:
    return sum(len(p) for p in pieces)


def _check(name: str, value: object, ok: bool, rule: str) -> None:
    if not ok:
        raise InvalidRequest(f"sampling.{name}: {value!r} is out of range; it must be {rule}")
