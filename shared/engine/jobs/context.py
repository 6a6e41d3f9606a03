"""A request over a context: prefix and chunks, placed by its mode, and what grows on them."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from shared.engine.admission import check_recompute
from shared.engine.decoding.drafting import Drafter, Text, text_of
from shared.engine.decoding.draws import Wanted
from shared.engine.decoding.grammar import GrammarState
from shared.engine.decoding.text import Growth
from shared.engine.decoding.tree import reachable
from shared.engine.jobs.host import Host
from shared.engine.jobs.job import BranchWork, Computed, Job, OwnPass
from shared.engine.jobs.turn import ConversationTurn
from shared.engine.kv.branch import Branch, Tempering
from shared.engine.kv.loader import ChunkLoad
from shared.engine.kv.residency import Entry
from shared.engine.model.adapting import AdapterWeights
from shared.engine.modes.token_selection import num_private
from shared.engine.scheduler import Demand
from shared.errors import InvalidRequest
from shared.generation.asked import GenerateRequest, SamplingParams, total_len
from shared.generation.counted import COMPUTED, ContextCounts
from shared.generation.forest import Command
from shared.generation.modes import Recompute, ReuseMode
from shared.generation.told import Usage
from shared.identity import TokenIds


class Grower(ABC):
    """Whose branch a request over a context grows."""

    __slots__ = ()
    branch: Branch

    @property
    def own_pass(self) -> OwnPass | None:
        """See ``BranchWork``."""
        return None

    @property
    def needs_logits(self) -> bool:
        """It continues with a token; contexts do not."""
        return True

    @property
    def wanted(self) -> Wanted:
        """Of the logits behind its last token, to go on with."""
        return Wanted()

    @property
    def drafter(self) -> Drafter | None:
        """See ``BranchWork``."""
        return None


@dataclass(slots=True, eq=False)
class Question(Grower):
    """A question's branch; its samples grow from its last token. ``index`` None: what several questions, or
    a forest's branches, have in common of tokens computed for the request alone."""

    index: int | None
    branch: Branch

    @property
    def needs_logits(self) -> bool:
        return self.index is not None


@dataclass(slots=True, eq=False)
class Survey(Grower):
    """A branch over the context from which a mode learns which tokens to compute anew
    (``shared.engine.modes``)."""

    branch: Branch

    @property
    def needs_logits(self) -> bool:
        return False

    @abstractmethod
    def end(self, job: ContextJob) -> None:
        """Its branch is computed: tells what was chosen, and plants what waited for that."""


@dataclass(slots=True, eq=False)
class ContextJob(Job):
    """``entries``: chunks in the pool, one reference each; ``fetched``: those of them that this request had
    to look for in the store, by ``load``; ``lost``: those that had to be recomputed, ``late``: those that
    were computed before they were loaded; ``isolated``: those that are used as they are without the chunks
    in front of them, which cannot be had. ``questions`` are not computed yet,
    ``growing`` is what answers or explores. ``selected`` tokens of the context are computed anew, in
    ascending order; None: not known yet. Questions that select for themselves add to them; ``num_blended``:
    of a mode that computes other tokens in every layer so many in the mean layer. ``tempering``: how what
    hangs on the context weighs its chunks. ``text``: of the chunks, for drafts. ``turn``: of a request that
    keeps its conversation's KV. A request whose mode is deferred holds its chunks like any other, and starts
    when it is decided.

    ``patient``: a pass waited in vain for a layer of these chunks, so the next one waits until they are
    whole.
    """

    request: GenerateRequest
    host: Host = field(kw_only=True)
    entries: dict[str, Entry] = field(default_factory=dict)
    fetched: set[str] = field(default_factory=set)
    load: ChunkLoad | None = None
    lost: set[str] = field(default_factory=set)
    late: set[str] = field(default_factory=set)
    isolated: set[str] = field(default_factory=set)
    questions: list[Question | Survey] = field(default_factory=list)
    started: bool = False
    patient: bool = False
    generated: int = 0
    selected: tuple[int, ...] | None = None
    num_blended: int | None = None
    tempering: Tempering | None = None
    text: Text | None = None
    turn: ConversationTurn | None = None

    # --- what kinds of it do otherwise ---------------------------------------------------------------------

    @abstractmethod
    def start(self) -> None:
        """All its chunks are placed, or their first layers are: plants branches."""

    @abstractmethod
    def on_computed(self, owner: Grower, computed: Computed) -> None: ...

    @property
    @abstractmethod
    def growing(self) -> Sequence[Grower]: ...

    def wanted(self, owner: Grower) -> Wanted:
        """See ``BranchWork``."""
        return owner.wanted

    def command(self, command: Command) -> None:
        """Only a live forest takes notice."""

    def obey(self) -> None:
        """Does what it was told to since the last step."""

    @property
    def idle(self) -> bool:
        """It has nothing to do until its owner says more."""
        return self.undecided

    # --- its KV --------------------------------------------------------------------------------------------

    @property
    def held(self) -> list[Entry]:
        prefix = [self.prefix] if self.prefix else []
        return [*prefix, *self.links.values(), *self.entries.values()]

    def names_of(self, entry: Entry) -> list[str]:
        """Returns the names that the request gives the chunks of this entry."""
        return [chunk_id for chunk_id, held in self.entries.items() if held is entry]

    @property
    def placed(self) -> bool:
        return all(entry.ready for entry in self.held)

    @property
    def arriving(self) -> bool:
        """Its first layer is there, and nothing speaks against waiting for the others layer by layer."""
        return (
            not self.undecided
            and not self.patient
            and all(entry.ready or entry.arriving for entry in self.held)
        )

    @property
    def remaining_s(self) -> float:
        """Seconds that the last layer will probably take to come."""
        arrivals = (entry.segment.arrival for entry in self.held if entry.segment is not None)
        return max(
            (arrival.remaining_s for arrival in arrivals if arrival is not None and not arrival.whole),
            default=0.0,
        )

    # --- what is computed anew -----------------------------------------------------------------------------

    @property
    def undecided(self) -> bool:
        """Its owner has still to say what to compute anew (``decide``). Until then it only loads."""
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
    def adapter(self) -> AdapterWeights | None:
        """Adapter that its private rows go with. Those of a mode that uses nothing stored are an ordinary
        prefill and its continuation: the reference, which no adapter changes."""
        return self.host.adapters.get(self.request.adapter) if self.request.reuse.row.stored else None

    # --- growth --------------------------------------------------------------------------------------------

    def growth(
        self, params: SamplingParams, own: Sequence[int], grammar: GrammarState | None = None
    ) -> Growth:
        """Of a branch that has the tokens ``own`` behind the context, and a grammar of its own."""
        host, packets = self.host, self.host.spec.packets
        if host.config.draft_rows < 2:
            return host.growth(params, grammar)
        if self.text is None:
            chunks = (chunk.token_ids for chunk in self.request.chunks)
            self.text = text_of(chunks if packets is None else map(packets.plain, chunks))
        return host.growth(params, grammar, Drafter(self.text, own, params.limit, host.config.draft_rows))

    # --- branches ------------------------------------------------------------------------------------------

    def branches(self) -> list[Branch]:
        return reachable(self.leaves())

    def leaves(self) -> Iterable[Branch]:
        kept = [run.branch for run in self.turn.runs] if self.turn is not None else []
        return (*kept, *(owner.branch for owner in (*self.questions, *self.growing)))

    def resume(self, branch: Branch, num_context: int = 0, behind: TokenIds = ()) -> None:
        """See ``ConversationTurn``."""
        if self.turn is not None:
            self.turn.resume(branch, num_context, behind)

    def works(self) -> list[BranchWork]:
        return [self._work(owner) for owner in (*self.questions, *self.growing) if owner.branch.runnable]

    def demand(self) -> Demand:
        count = self.request.num_branches
        if not self.started:
            private = sum(map(len, self.request.questions)) + num_private(self.request)
            return Demand(count, private * self.host.spec.kv_bytes_per_token)
        return Demand(count, sum(branch.segment.num_bytes for branch in self.branches()))

    @property
    def num_to_prefill(self) -> int:
        """Tokens that it has still to compute before it answers, or goes on to; chunks not counted."""
        if not self.started:
            return self.num_own() + num_private(self.request)
        pending = (len(owner.branch.pending) for owner in (*self.questions, *self.growing))
        return sum(num_pending for num_pending in pending if num_pending > 1)

    def num_own(self) -> int:
        """Tokens of the prompt behind the context."""
        return sum(map(len, self.request.questions))

    def usage(self) -> Usage:
        request, counts = self.request, self.counts()
        context, own = total_len(request.chunks), self.num_own()
        said = self.turn.num_tokens if self.turn is not None else 0
        usage = Usage(
            len(request.prefix_ids) + context + own,
            len(request.prefix_ids) + said,
            context + own - said,
            self.generated,
            selected_tokens=len(self.selected or ()) if self.num_blended is None else self.num_blended,
            isolated_tokens=sum(len(self.entries[key].token_ids) for key in self.isolated),
            adapter=request.adapter if self.adapter is not None else "",
            drafted_tokens=self.drafts.drafted_tokens,
            accepted_tokens=self.drafts.accepted_tokens,
            chunk_origins=(COMPUTED,) * len(request.chunks),
            conversation_tokens=said,
        )
        return usage if counts is None else replace(usage, **counts.of(usage.prompt_tokens))

    def counts(self) -> ContextCounts | None:
        """None: its mode uses nothing that is stored."""
        request, turn = self.request, self.turn
        if not request.reuse.row.stored:
            return None
        selected = self.selected or ()
        return ContextCounts(
            tuple((chunk.chunk_id, len(chunk.token_ids)) for chunk in request.chunks),
            self.num_own() - (turn.num_said if turn is not None else 0),
            frozenset(self.lost),
            frozenset(self.late),
            frozenset(self.fetched),
            selected if turn is None else selected[turn.num_context :],
            self.num_blended,
            self.load.tiers if self.load is not None else {},
        )

    def _work(self, owner: Grower) -> BranchWork:
        return BranchWork(
            owner.branch,
            lambda computed: self.on_computed(owner, computed),
            self,
            owner.needs_logits,
            self.wanted(owner),
            owner.own_pass,
            self.adapter,
            owner.drafter,
        )
