"""A live forest: branches over one context that its owner starts, forks, rewinds, prunes, continues and
merges while they run.

A branch (``ForestNode``) is its tokens behind the context; which segments hold their KV is nobody's business. Every
operation is a fork::

    fork    a branch that sees the first tokens of another; those whose KV is not computed yet are pending on both
    rewind  a fork of itself in its own place; ``compact`` then frees what nobody sees any more
    merge   a fork of the first branch, with the tokens of the others behind it: computed again, which is exact, or with their KV
            as it was computed, moved by rotation (``placed``), which is not: a placed token has not seen the
            branches in front of it

The logits behind the last token are kept; of a fork in the middle the last token is computed again to have
them.
"""  # noqa: E501

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from shared.engine.admission import check_stop
from shared.engine.decoding.draws import RowOutcome
from shared.engine.decoding.forest import placed_context
from shared.engine.decoding.nodes import ForestNode, ForestNodes
from shared.engine.decoding.sampling import outcomes
from shared.engine.decoding.tree import compact
from shared.engine.jobs.context import ContextJob, Grower, Question, Survey
from shared.engine.jobs.job import Computed
from shared.engine.kv.branch import Branch
from shared.engine.modes.policy import prepare
from shared.engine.scheduler import Demand
from shared.errors import InvalidRequest, KvquiltError
from shared.generation.forest import Append, Close, Command, Edit, Fork, Grow, Merge, Prune, Rewind, Start
from shared.generation.pieces import ids_of
from shared.generation.told import AppliedEvent, GrownEvent, RefusedEvent, RestedEvent


@dataclass(slots=True, eq=False)
class ForestJob(ContextJob):
    """``base``: under ``full`` the branch that holds the chunks; ``commands``: not obeyed yet,
    ``num_commands`` were."""

    nodes: ForestNodes = field(init=False)
    commands: deque[Command] = field(default_factory=deque)
    num_commands: int = 0
    num_given: int = 0
    closing: bool = False

    def __post_init__(self) -> None:
        self.nodes = ForestNodes(self.host)
        self.num_open = 1

    def start(self) -> None:
        policy = prepare(self)
        base, spec, nodes = placed_context(self, self.selected or ()), self.host.spec, self.nodes
        nodes.context, nodes.origin, nodes.tempering = base.placements, base.end, self.tempering
        if self.selected is None and self.request.reuse.recomputes:
            nodes.base = policy.survey(self)
            assert nodes.base is not None, "a mode that goes by the question"
            nodes.context = nodes.base.context
        elif base.own_ids:
            nodes.base = Branch.at(spec, base.own_ids, base.own_positions, base.placements)
            self.questions.append(Question(None, nodes.base))

    def command(self, command: Command) -> None:
        self.commands.append(command)

    def obey(self) -> None:
        while self.commands and self.num_open:
            self._obey(self.commands.popleft())

    def on_computed(self, owner: Grower, computed: Computed) -> None:
        match owner:
            case Survey():
                self.questions.remove(owner)
                owner.end(self)
                self.clock.tick_recomputed()
            case Question():
                self.questions.remove(owner)
                self.clock.tick_recomputed()
            case ForestNode():
                owner.logits_V = computed.logits_V
                self._grow(owner, computed.outcome)
                if owner.logits_V is not None:
                    owner.logits_V = owner.logits_V.clone()  # it rests: without those of the whole step
                self._close_at_rest()

    @property
    def growing(self) -> Sequence[ForestNode]:
        return list(self.nodes.by_id.values())

    def leaves(self) -> Iterable[Branch]:
        bases = [self.nodes.base] if self.nodes.base is not None else []
        return [*bases, *(node.branch for node in self.growing)]

    @property
    def arriving(self) -> bool:
        """It waits until its chunks are whole: nobody knows when it will be told to do something."""
        return False

    @property
    def idle(self) -> bool:
        return self.started and not self.commands and not self.questions and not self._num_busy

    @property
    def _num_busy(self) -> int:
        return sum(bool(node.branch.pending) or node.growth is not None for node in self.growing)

    def demand(self) -> Demand:
        """At least one branch, whatever it is told next."""
        return Demand(max(self._num_busy, 1), ContextJob.demand(self).private_bytes)

    def num_own(self) -> int:
        """Also tokens that it was given."""
        return ContextJob.num_own(self) + self.num_given

    # --- commands ------------------------------------------------------------------------------------------

    def _obey(self, command: Command) -> None:
        """Applies it, or refuses it and leaves everything as it was."""
        if isinstance(command, Close):
            self.closing = True
            self._close_at_rest()
            return
        number, self.num_commands = self.num_commands, self.num_commands + 1
        try:
            node = self._apply(command)
        except KvquiltError as error:
            self.emit(RefusedEvent(number, error))
            return
        if isinstance(command, (Start, Append)):
            self.num_given += len(ids_of(command.piece))
        compact(node.branch for node in self.growing)
        if node is None:
            self.emit(AppliedEvent(number, 0))
        else:
            self.emit(AppliedEvent(number, len(node.tokens), node.num_exact is not None))
            self._grow(node)
        self._close_at_rest()

    def _apply(self, command: Edit) -> ForestNode | None:
        """The branch that it names, unless that is gone now."""
        nodes = self.nodes
        match command:
            case Start(branch, piece):
                return nodes.add("start.branch", nodes.start(branch, ids_of(piece)))
            case Fork(branch, source, length):
                node = nodes.find("fork.source", source)
                return nodes.add("fork.branch", nodes.fork(node, branch, "fork.length", length))
            case Rewind(branch, num_tokens):
                node = nodes.find("rewind.branch", branch)
                if not 0 <= num_tokens < len(node.tokens):
                    raise InvalidRequest(
                        f"rewind.num_tokens: {num_tokens} is out of range; branch {branch} has "
                        f"{len(node.tokens)} tokens and keeps at least 1 (prune it instead)"
                    )
                length = len(node.tokens) - num_tokens
                nodes.by_id[branch] = node = nodes.fork(node, branch, "rewind.num_tokens", length)
                return node
            case Prune(branch):
                nodes.find("prune.branch", branch)
                del nodes.by_id[branch]
                return None
            case Append(branch, piece):
                return nodes.extend(branch, ids_of(piece))
            case Grow(branch, sampling):
                node = nodes.resting("grow.branch", branch)
                if sampling.n != 1:
                    raise InvalidRequest(
                        f"grow.sampling.n: {sampling.n} is not 1; fork the branch to have several"
                    )
                check_stop("grow.sampling", sampling, self.host.decode is not None)
                nodes.check_room("grow.sampling.max_tokens", len(node.tokens) + sampling.limit - 1)
                grammar = nodes.grammar(node, sampling)
                node.growth = self.growth(sampling, node.tokens, grammar)
                return node
            case Merge():
                return nodes.add("merge.branch", nodes.merge(command))

    def _close_at_rest(self) -> None:
        if self.closing and all(node.growth is None for node in self.growing):
            self.num_open = 0
            if not self.clock.first_token:
                self.clock.tick_first_token()

    # --- growth --------------------------------------------------------------------------------------------

    def _grow(self, node: ForestNode, outcome: RowOutcome | None = None) -> None:
        """The next token, if one is wanted and can be known. ``outcome``: it was drawn already."""
        growth = node.growth
        if growth is None or node.logits_V is None:
            return
        if outcome is None:
            (outcome,) = outcomes(node.logits_V[None], [node.wanted])
        (chosen,) = outcome.sampled
        if not self.clock.first_token:
            self.clock.tick_first_token()
        self.generated += 1
        text, reason = growth.add(chosen.token_id)
        self.emit(GrownEvent(node.branch_id, chosen.token_id, text, chosen.logprob, chosen.top_logprobs))
        if chosen.token_id not in growth.eos_ids:  # an end mark is no token of the branch, which may go on
            node.grow([chosen.token_id])
        elif node.formed is not None:
            node.formed = replace(node.formed, ended=True)
        if reason is not None:
            node.growth = None
            rest, reason = growth.finish(reason)
            self.emit(RestedEvent(node.branch_id, reason, rest, len(node.tokens)))
