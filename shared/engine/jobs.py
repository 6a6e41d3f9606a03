"""What the engine keeps of a request while it is alive: its branches, its place in the pool, its clock."""

from __future__ import annotations

import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch

from shared.engine.admission import check_recompute
from shared.engine.decoding.beams import BeamSearch
from shared.engine.decoding.choosing import Thought
from shared.engine.decoding.sampling import Draw
from shared.engine.decoding.text import TextStream
from shared.engine.decoding.tree import reachable
from shared.engine.kv.residency import Entry
from shared.engine.kv.segment import Branch, Placement
from shared.engine.modes.attention_probe import AttentionProbe
from shared.engine.modes.blending import Blend
from shared.engine.modes.selecting import num_selected
from shared.engine.scheduler import Demand
from shared.errors import InvalidRequest
from shared.generation.asked import Chunk, GenerateRequest, PrefillRequest, SamplingParams
from shared.generation.forest import Command
from shared.generation.modes import Recompute, ReuseMode
from shared.generation.told import Event, Timings, Usage

log = logging.getLogger(__name__)

Sink = Callable[[Event], None]


@dataclass(slots=True)
class BranchWork:
    """One branch on its way through the steps. ``owner`` is told when its pending tokens are computed."""

    branch: Branch
    owner: Grower | ChunkWork | Entry
    job: GenerateJob | PrefillJob | None = None

    @property
    def num_pending(self) -> int:
        return len(self.branch.pending)

    @property
    def num_done(self) -> int:
        return self.branch.segment.length

    @property
    def whole(self) -> bool:
        return isinstance(self.owner, Blending)


@dataclass(slots=True, eq=False)
class Question:
    """A question's branch; its samples grow from its last token. ``index`` None: the shared context of
    ``full``."""

    index: int | None
    branch: Branch


@dataclass(slots=True, eq=False)
class Scoring:
    """A question on its way over the context as it is stored, to see what it attends to. Then its branch is
    forgotten."""

    index: int
    branch: Branch
    probe: AttentionProbe


@dataclass(slots=True, eq=False)
class Blending:
    """All tokens of the context, of which fewer and fewer are computed from layer to layer. ``placed``: where
    each chunk is stored; what is computed of it is excluded there, the rest in the branch. ``blend``: what
    became of it."""

    branch: Branch
    placed: tuple[Placement, ...]
    ratio: float | None
    blend: Blend | None = None


@dataclass(slots=True, eq=False)
class Answer:
    """One sample: the private branch of its generated tokens."""

    question: int
    sample: int
    branch: Branch
    text: TextStream
    whole_text: str = ""
    num_generated: int = 0
    total_logprob: float = 0.0

    @property
    def score(self) -> float:
        """Mean log-probability of its tokens."""
        return self.total_logprob / self.num_generated

    def add(self, text: str, logprob: float) -> None:
        self.whole_text += text
        self.num_generated += 1
        self.total_logprob += logprob


@dataclass(slots=True, eq=False)
class Beam:
    """One running beam: a branch on that of the beam it came from. ``logprobs_V``: of its next token, once
    they are known."""

    group: BeamGroup
    branch: Branch
    logprobs_V: torch.Tensor | None = None


@dataclass(slots=True, eq=False)
class BeamGroup:
    """The search of one question. It does not know its beams: they know it, and die with their KV when nobody
    else does."""

    question: int
    search: BeamSearch


@dataclass(slots=True)
class Growth:
    """How a branch of a live forest grows at present."""

    params: SamplingParams
    text: TextStream
    num_tokens: int = 0


@dataclass(slots=True, eq=False)
class Node:
    """A branch of a live forest: all its tokens behind the context. ``logits_V``: behind the last one, once
    it is computed.
    ``num_exact``: so many of its tokens have exact KV, a merge placed that of the next one as it was; None:
    all have.
    """

    branch_id: int
    branch: Branch
    tokens: list[int]
    logits_V: torch.Tensor | None = None
    growth: Growth | None = None
    num_exact: int | None = None

    def draw(self) -> Draw | None:
        """Of its next token, if it grows."""
        return None if self.growth is None else Draw(self.growth.params, self.branch_id, len(self.tokens))

    def append(self, token_ids: Sequence[int]) -> None:
        self.tokens += token_ids
        self.branch.pending += token_ids
        self.logits_V = None


Grower = Question | Scoring | Blending | Answer | Beam | Node
"""Whose branch a generate request or a live forest grows."""


@dataclass(slots=True)
class Clock:
    """Instants of ``time.monotonic()``; 0.0 where not reached."""

    arrived: float = field(default_factory=time.monotonic)
    admitted: float = 0.0
    resident: float = 0.0
    decided: float = 0.0
    placed: float = 0.0
    first_token: float = 0.0
    last_first_token: float = 0.0

    def tick_resident(self) -> None:
        """All KV is there, and it is not decided yet what to compute anew."""
        self.resident = self.resident or time.monotonic()

    def tick_first_token(self) -> None:
        self.last_first_token = time.monotonic()
        self.first_token = self.first_token or self.last_first_token

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
class GenerateJob:
    """``entries``: chunks in the pool, one reference each; ``fetched``: those of them that this request had
    to look for in the store; ``lost``: those that had to be recomputed. ``questions`` are not computed yet,
    ``answers`` grow, ``thoughts`` are complete (question → sample → thought); ``num_open`` answers are to
    come. ``selected`` tokens of the context are computed anew, in ascending order; None: not known yet.
    Questions that select for themselves add to them. A request whose mode is deferred holds its chunks like
    any other, and starts when it is decided.

    ``patient``: a pass waited in vain for a layer of these chunks, so the next one waits until they are
    whole.
    """

    request: GenerateRequest
    sink: Sink
    clock: Clock = field(default_factory=Clock)
    prefix: Entry | None = None
    entries: dict[str, Entry] = field(default_factory=dict)
    fetched: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)
    questions: list[Question | Scoring | Blending] = field(default_factory=list)
    answers: list[Answer | Beam | Node] = field(default_factory=list)
    thoughts: defaultdict[int, dict[int, Thought]] = field(default_factory=lambda: defaultdict(dict))
    started: bool = False
    patient: bool = False
    num_open: int = 0
    generated: int = 0
    selected: tuple[int, ...] | None = None
    blend: Blend | None = None
    kv_bytes_per_token: int = 0

    @property
    def held(self) -> list[Entry]:
        return ([self.prefix] if self.prefix else []) + list(self.entries.values())

    @property
    def placed(self) -> bool:
        return all(entry.ready for entry in self.held)

    @property
    def undecided(self) -> bool:
        """What to compute anew is for its owner to say (``decide``). Until then it only loads."""
        return self.request.reuse.deferred

    def decide(self, reuse: ReuseMode, recompute: Recompute) -> None:
        """From here on it is a request of this mode.

        Raises:
            InvalidRequest: names the field; the request is as it was.
        """
        if reuse.deferred:
            raise InvalidRequest(
                f"reuse: {reuse.value} is no decision; decide for tokens or for a mode that chooses by itself"
            )
        decided = replace(self.request, reuse=reuse, recompute=recompute)
        check_recompute(decided)
        self.request = decided
        self.clock.decided = time.monotonic()

    @property
    def arriving(self) -> bool:
        """Its first layer is there, and nothing speaks against waiting for the others layer by layer."""
        return (
            not self.undecided
            and not self.patient
            and all(entry.ready or entry.arriving for entry in self.held)
        )

    @property
    def idle(self) -> bool:
        """It has nothing to do until its owner says more."""
        return self.undecided

    @property
    def remaining_s(self) -> float:
        """How long the last layer will probably take to come."""
        arrivals = (entry.segment.arrival for entry in self.held if entry.segment is not None)
        return max(
            (arrival.remaining_s for arrival in arrivals if arrival is not None and not arrival.whole),
            default=0.0,
        )

    @property
    def private_prompt_len(self) -> int:
        request = self.request
        context = sum(len(c.token_ids) for c in request.chunks)
        own = 0
        if request.reuse in (ReuseMode.FULL, ReuseMode.CACHEBLEND):
            own = context
        elif request.reuse.recomputes:
            sets = len(request.questions) if request.reuse is ReuseMode.QUERY_ATTENTION else 1
            by_list = request.reuse is ReuseMode.TOKENS
            own = (
                len(request.recompute.tokens)
                if by_list
                else sets * num_selected(request.recompute.ratio, context)
            )
        return sum(map(len, request.questions)) + own

    def beams(self, group: BeamGroup) -> list[Beam]:
        """In the order of ``group.search.running``."""
        return [answer for answer in self.answers if isinstance(answer, Beam) and answer.group is group]

    def branches(self) -> list[Branch]:
        """Everything that grows, and what it sees of what has grown."""
        owners: list[Grower] = [*self.questions, *self.answers]
        return reachable(owner.branch for owner in owners)

    def demand(self) -> Demand:
        count = self.request.num_branches
        if not self.started:
            return Demand(count, self.private_prompt_len * self.kv_bytes_per_token)
        return Demand(count, sum(branch.segment.num_bytes for branch in self.branches()))

    def usage(self) -> Usage:
        request = self.request
        context = sum(len(c.token_ids) for c in request.chunks)
        questions = sum(map(len, request.questions))
        if request.reuse is ReuseMode.FULL:
            recomputed = context + questions
        else:
            recomputed = questions + len(self._lost_places() | set(self.selected or ()))
        if self.blend is not None:
            recomputed = questions + min(context, len(self._lost_places()) + self.blend.num_tokens)
        prompt = len(request.prefix_ids) + context + questions
        loaded = self._num_tokens(self.fetched - self.lost)
        return Usage(
            prompt, prompt - recomputed, recomputed, self.generated, loaded, len(self.selected or ())
        )

    def _lost_places(self) -> set[int]:
        """Tokens of the context that had to be recomputed because they were stored nowhere; a chunk's where
        it stands first."""
        places: set[int] = set()
        seen: set[str] = set()
        start = 0
        for chunk in self.request.chunks:
            if chunk.chunk_id in self.lost - seen:
                places.update(range(start, start + len(chunk.token_ids)))
            seen.add(chunk.chunk_id)
            start += len(chunk.token_ids)
        return places

    def _num_tokens(self, keys: Iterable[str]) -> int:
        return sum(len(self.entries[key].token_ids) for key in keys)


@dataclass(slots=True, eq=False)
class ForestJob(GenerateJob):
    """A live forest. ``context``: its placements, ``base``: under ``full`` the branch that holds the chunks
    instead, ``origin``: position of its branches' first token; ``commands``: not obeyed yet, ``num_commands``
    were."""

    context: tuple[Placement, ...] = ()
    base: Branch | None = None
    origin: int = 0
    nodes: dict[int, Node] = field(default_factory=dict)
    commands: deque[Command] = field(default_factory=deque)
    num_commands: int = 0
    num_given: int = 0
    closing: bool = False

    def branches(self) -> list[Branch]:
        bases = [self.base] if self.base is not None else []
        return reachable([*bases, *(node.branch for node in self.nodes.values())])

    @property
    def idle(self) -> bool:
        return self.started and not self.commands and not self.questions and not self._num_busy

    @property
    def _num_busy(self) -> int:
        return sum(bool(node.branch.pending) or node.growth is not None for node in self.nodes.values())

    def demand(self) -> Demand:
        """At least one branch, whatever it is told next."""
        return Demand(max(self._num_busy, 1), GenerateJob.demand(self).private_bytes)

    def usage(self) -> Usage:
        """Tokens that it was given count as prompt."""
        usage = GenerateJob.usage(self)
        prompt, recomputed = usage.prompt_tokens + self.num_given, usage.recomputed_tokens + self.num_given
        return replace(usage, prompt_tokens=prompt, recomputed_tokens=recomputed)


@dataclass(slots=True, eq=False)
class ChunkWork:
    """A distinct chunk of a prefill request and where it stands in the request's list."""

    chunk: Chunk
    indices: list[int]
    broken: bool = False
    branch: Branch | None = None


@dataclass(slots=True, eq=False)
class PrefillJob:
    """``to_compute`` waits for one of few places in flight, so that a large request holds little KV at a
    time."""

    request: PrefillRequest
    sink: Sink
    works: dict[str, ChunkWork]
    clock: Clock = field(default_factory=Clock)
    prefix: Entry | None = None
    to_compute: deque[ChunkWork] = field(default_factory=deque)
    in_flight: dict[str, ChunkWork] = field(default_factory=dict)
    num_open: int = 0

    @property
    def held(self) -> list[Entry]:
        return [self.prefix] if self.prefix else []

    def branches(self) -> list[Branch]:
        return [work.branch for work in self.in_flight.values() if work.branch]


Job = GenerateJob | PrefillJob


def emit(job: Job, event: Event) -> None:
    try:
        job.sink(event)
    except Exception:
        log.exception("the receiver of request %s failed", job.request.request_id)
