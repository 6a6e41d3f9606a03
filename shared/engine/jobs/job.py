"""A request that is alive, as the loop sees it: what it is for does not matter."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from shared.engine.attention import Backend
from shared.engine.decoding.drafting import DraftCounts, Drafter
from shared.engine.decoding.draws import RowOutcome, Wanted
from shared.engine.kv.arrival import Patience
from shared.engine.kv.branch import Branch
from shared.engine.kv.chunk_reads import Loaded
from shared.engine.kv.residency import Entry
from shared.engine.model.adapting import AdapterWeights
from shared.engine.model.model import LoadedModel
from shared.generation.asked import GenerateRequest, PrefillRequest
from shared.generation.counted import ContextCounts
from shared.generation.told import Event, TierLoad, Timings, Usage

log = logging.getLogger(__name__)

Sink = Callable[[Event], None]
OwnPass = Callable[[LoadedModel, Backend, Patience], None]


@dataclass(frozen=True, slots=True)
class Computed:
    """A branch has nothing pending any more. ``logits_V``: of its last token, where they are wanted;
    ``outcome``: what came of what was wanted of them."""

    logits_V: torch.Tensor | None = None
    outcome: RowOutcome = field(default_factory=RowOutcome)


@dataclass(slots=True)
class BranchWork:
    """One branch on its way through the steps. ``done`` is told when its pending tokens are computed.
    ``job`` None: it is a segment that any request may place. ``wanted``: of its last token's logits.
    ``own_pass``: computes the whole branch in a pass of its own.
    ``adapter``: what its rows go with. ``drafter``: guesses what continues it. ``late``: its KV is on its way
    as well, so it gets rows that nobody else wants."""

    branch: Branch
    done: Callable[[Computed], None]
    job: Job | None = None
    needs_logits: bool = False
    wanted: Wanted = field(default_factory=Wanted)
    own_pass: OwnPass | None = None
    adapter: AdapterWeights | None = None
    drafter: Drafter | None = None
    late: bool = False

    @property
    def num_pending(self) -> int:
        return len(self.branch.pending)

    @property
    def num_done(self) -> int:
        return self.branch.segment.length

    @property
    def whole(self) -> bool:
        return self.own_pass is not None

    @property
    def idle(self) -> bool:
        return (
            self.job is not None and isinstance(self.job.request, GenerateRequest) and self.job.request.idle
        )


@dataclass(slots=True)
class TierTimes:
    """Tokens loaded of one tier, and when."""

    began: float
    ended: float
    num_chunks: int = 0
    num_bytes: int = 0


@dataclass(slots=True)
class AnswerTimes:
    """Instants at which a question had its first token, and when its last answer ended."""

    first_token: float
    ended: float = 0.0
    num_tokens: int = 0


@dataclass(slots=True)
class JobTimes:
    """Instants of ``time.monotonic()``; 0.0 where not reached. ``recomputed``: what several questions have in
    common of tokens computed anew was computed."""

    arrived: float = field(default_factory=time.monotonic)
    admitted: float = 0.0
    resident: float = 0.0
    decided: float = 0.0
    placed: float = 0.0
    recomputed: float = 0.0
    first_token: float = 0.0
    last_first_token: float = 0.0
    tiers: dict[str, TierTimes] = field(default_factory=dict)
    questions: dict[int, AnswerTimes] = field(default_factory=dict)

    def tick_loaded(self, loaded: Loaded) -> None:
        """A chunk was loaded."""
        if loaded.segment is not None:
            tier = self.tiers.setdefault(loaded.tier, TierTimes(loaded.began_s, loaded.ended_s))
            tier.began, tier.ended = min(tier.began, loaded.began_s), max(tier.ended, loaded.ended_s)
            tier.num_chunks += 1
            tier.num_bytes += loaded.segment.num_bytes

    def tick_recomputed(self) -> None:
        self.recomputed = time.monotonic()

    def tick_answered(self, question: int, num_tokens: int) -> None:
        """One of a question's answers, of so many tokens, has ended."""
        times = self.questions.setdefault(question, AnswerTimes(self.last_first_token))
        times.ended = time.monotonic()
        times.num_tokens += num_tokens

    def tick_resident(self) -> None:
        """All KV is there, and it is not decided yet what to compute anew."""
        self.resident = self.resident or time.monotonic()

    def tick_first_token(self, question: int | None = None) -> None:
        self.last_first_token = time.monotonic()
        self.first_token = self.first_token or self.last_first_token
        if question is not None:
            self.questions[question] = AnswerTimes(self.last_first_token)

    def loads(self) -> tuple[TierLoad, ...]:
        return tuple(
            TierLoad(tier, times.ended - times.began, times.num_chunks, times.num_bytes)
            for tier, times in self.tiers.items()
        )

    def timings(self, now: float) -> Timings:
        select_wait_s = self.decided - self.resident if self.resident else 0.0
        return Timings(
            queue_s=self.admitted - self.arrived,
            load_s=self.placed - self.admitted - select_wait_s,
            prefill_s=self.last_first_token - self.placed,
            first_token_s=self.first_token - self.arrived,
            decode_s=now - self.first_token,
            total_s=now - self.arrived,
            engine_ttft_s=self.first_token - self.placed,
            select_wait_s=select_wait_s,
        )


@dataclass(slots=True, eq=False)
class Job(ABC):
    """``prefix`` in the pool, with a reference; ``links``: chunks in the pool behind which others are
    computed now; ``num_open`` parts of it are to come: at 0 it is complete. ``drafts``: made for it.
    ``overtaken``: how many that came later were admitted before it."""

    request: GenerateRequest | PrefillRequest
    sink: Sink
    clock: JobTimes = field(default_factory=JobTimes)
    prefix: Entry | None = None
    links: dict[str, Entry] = field(default_factory=dict)
    num_open: int = 0
    drafts: DraftCounts = field(default_factory=DraftCounts)
    overtaken: int = 0

    @property
    def priority(self) -> int:
        return self.request.priority

    @property
    def held(self) -> list[Entry]:
        return [*([self.prefix] if self.prefix else []), *self.links.values()]

    @abstractmethod
    def branches(self) -> list[Branch]:
        """Everything that grows, and what it sees of what has grown."""

    @abstractmethod
    def works(self) -> list[BranchWork]:
        """Branches with tokens to compute whose ancestors are complete."""

    @abstractmethod
    def usage(self) -> Usage: ...

    def counts(self) -> ContextCounts | None:
        """Returns what ``usage`` is counted by, if it uses stored KV for an answer."""
        return None

    def emit(self, event: Event) -> None:
        try:
            self.sink(event)
        except Exception:
            log.exception("the receiver of request %s failed", self.request.request_id)
