"""What the engine tells: tokens, ends of branches, usage, timings."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from shared.errors import KvquiltError


class FinishReason(enum.Enum):
    STOP = "stop"
    LENGTH = "length"


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
