"""The events of a generation: tokens, ends of branches, usage, timings. Times in seconds.

Longer than other modules: a stream's events are read beside each other.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from shared.errors import KvquiltError
from shared.generation.counted import ContextCounts
from shared.generation.modes import ReuseMode
from shared.generation.selection import Reading, SelectionTimings


class FinishReason(enum.StrEnum):
    """REFUSED: nothing was generated, since the documents hold too little evidence. UNKNOWN: a newer service
    gave a reason that this version has no name for."""

    STOP = "stop"
    LENGTH = "length"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ObeyedVerdict:
    """``agreement``: of its mode's answers with the reference's when it was made; None: nobody knows."""

    id: str
    agreement: float | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Counts of tokens; prompt = reused + recomputed. ``loaded_tokens``: of chunks that were stored, but not
    resident, those included that were computed anew afterwards; ``selected_tokens``: those recomputed ones
    that the mode chose, for any question. What is recomputed in some layers counts by their share.
    ``isolated_tokens``: of chunks that were used without what stands in front of them in their documents,
    because it could not be had. ``drafted_tokens``: guessed from the context and verified beside others,
    ``accepted_tokens``: those of them that were generated. ``written_tokens``: those recomputed ones of
    chunks whose KV was nowhere, as the store said before the answer was whole, and is kept now.
    ``chunk_origins``: of each chunk of the context, in order, where its KV came from: ``resident``,
    ``computed``, or the tier that it was loaded from (``loaded``: one that nobody named).

    ``conversation_tokens``: those reused ones that an earlier turn has computed behind the same context, or
    within it.

    ``picked_tokens``, ``grouped_tokens``: of the selector's model. ``reuse``: the mode that was really used;
    ``note``: why it is not the one that was asked for. The service knows both, the engine does not.
    ``adapter``: what private rows went with; empty: with the model alone. ``verdict``: the one that mode
    ``auto`` obeyed. ``route``: why this replica answered; empty: nobody asked, or nobody chose."""

    prompt_tokens: int
    reused_tokens: int
    recomputed_tokens: int
    generated_tokens: int
    loaded_tokens: int = 0
    selected_tokens: int = 0
    picked_tokens: int = 0
    grouped_tokens: int = 0
    reuse: ReuseMode | None = None
    note: str = ""
    isolated_tokens: int = 0
    adapter: str = ""
    verdict: ObeyedVerdict | None = None
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    written_tokens: int = 0
    chunk_origins: tuple[str, ...] = ()
    route: str = ""
    conversation_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds. ``engine_ttft_s`` runs from placements known to the first token: all KV is resident then, or
    arriving in the order in which it is needed; ``load_s`` is what passed before, without ``select_wait_s``,
    in which all KV was resident and somebody else still chose the tokens to compute anew. ``retrieve_s``:
    the gateway's; ``select_s``: the generator's, until a selector had chosen."""

    queue_s: float = 0.0
    load_s: float = 0.0
    prefill_s: float = 0.0
    first_token_s: float = 0.0
    decode_s: float = 0.0
    total_s: float = 0.0
    engine_ttft_s: float = 0.0
    select_wait_s: float = 0.0
    retrieve_s: float = 0.0
    select_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TextSpan:
    """Characters [start, end) of a chunk's text, and the mean score of their tokens."""

    start: int
    end: int
    score: float = 0.0


@dataclass(frozen=True, slots=True)
class SelectedEvent:
    """These tokens of the context, counted from 0 over all chunks in order, are computed anew; before the
    first token.

    ``question``: for this one; None: for all. ``scores``: what every token was judged by, if the mode judges.
    ``layers``: how many are computed in each layer, if that differs; ``tokens`` are then those of the first
    layer that does not compute all.

    The service adds ``chunks``, the spans of each chunk's text, if an explanation was asked for, and
    ``reading``, ``num_picked``, ``num_grouped``, ``timings`` of a selector.
    """

    tokens: tuple[int, ...]
    question: int | None = None
    scores: tuple[float, ...] = ()
    layers: tuple[int, ...] = ()
    chunks: tuple[tuple[TextSpan, ...], ...] = ()
    reading: Reading | None = None
    num_picked: int = 0
    num_grouped: int = 0
    timings: SelectionTimings | None = None


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """``text``: what can be read now; may be empty. ``watched``: of ``SamplingParams.watch_ids``, for callers
    in the engine's process alone. The service adds ``token``, what the token is in the middle of a text, and
    ``top_tokens``, the same of each of ``top_logprobs``, if these were asked for."""

    question: int
    sample: int
    token_id: int
    text: str
    logprob: float
    top_logprobs: tuple[tuple[int, float], ...] = ()
    watched: tuple[float, ...] = ()
    token: str = ""
    top_tokens: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BranchDoneEvent:
    """``text``: what was held back as the possible beginning of a stop string and was none. ``score``: mean
    log-probability of the generated tokens, the end mark included; of a beam the score it was ranked by."""

    question: int
    sample: int
    finish_reason: FinishReason
    text: str
    generated_tokens: int
    score: float = 0.0


@dataclass(frozen=True, slots=True)
class ChosenEvent:
    """All thoughts on a question are complete and ``sample`` is the chosen one. ``answer`` and ``votes``:
    what the majority says and how many say it; of a choice by log-probability empty and 0."""

    question: int
    sample: int
    answer: str = ""
    votes: int = 0


@dataclass(frozen=True, slots=True)
class MarginTokenEvent:
    """A token of the margin on the context's chunk ``chunk``."""

    chunk: int
    token_id: int
    text: str


@dataclass(frozen=True, slots=True)
class MarginEvent:
    """A margin is complete and judged; ``kept``: it stands in the answer's context. An empty one is never
    kept; its log-probabilities are 0."""

    chunk: int
    text: str
    kept: bool
    yes_logprob: float = 0.0
    no_logprob: float = 0.0


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
class StageTime:
    """A stage that a request went through in the engine, between two instants of ``time.monotonic()``.

    counts: of what it worked on, such as ``chunks``, ``tokens``, ``bytes``.
    inner: stages within it.
    """

    name: str
    began_s: float
    ended_s: float
    counts: tuple[tuple[str, int], ...] = ()
    inner: tuple[StageTime, ...] = ()


@dataclass(frozen=True, slots=True)
class TierLoad:
    """Chunks that a request loaded from one tier of the store; ``load_s``: seconds from the first one's
    beginning to the last one's end."""

    tier: str
    load_s: float
    num_chunks: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class DoneEvent:
    """The request is complete. No event follows. ``chunk_ids``: of its chunks, in order; the service adds
    them. For callers in the engine's process alone ``stages``, of a request that is traced, ``loads``, of
    each tier that it loaded chunks from, and ``counts``, which the tokens of its chunks in ``usage`` follow
    from."""

    usage: Usage
    timings: Timings
    chunk_ids: tuple[str, ...] = ()
    stages: tuple[StageTime, ...] = ()
    loads: tuple[TierLoad, ...] = ()
    counts: ContextCounts | None = None


@dataclass(frozen=True, slots=True)
class FailedEvent:
    """The request ended without completing. No event follows. ``stages``: see ``DoneEvent``."""

    error: KvquiltError
    stages: tuple[StageTime, ...] = ()


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


GenerationEvent = (
    SelectedEvent | TokenEvent | BranchDoneEvent | ChosenEvent | MarginTokenEvent | MarginEvent | DoneEvent
)
"""The events that a caller of the service is told of ``Generate``; of ``Explore``: ``ExploringEvent``."""

ExploringEvent = SelectedEvent | ForestEvent | DoneEvent
