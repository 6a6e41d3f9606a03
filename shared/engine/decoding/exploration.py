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

from shared.engine.decoding.forest import placed_context
from shared.engine.decoding.nodes import ForestNodes
from shared.engine.decoding.sampling import Sampled, sample
from shared.engine.decoding.text import Decode, TextStream
from shared.engine.decoding.tree import compact
from shared.engine.jobs.context import Grower, Question, Survey
from shared.engine.jobs.forest import ForestJob, ForestNode, Growth
from shared.engine.jobs.job import Computed
from shared.engine.kv.segment import Branch
from shared.engine.model.rope import Rotation
from shared.engine.model.spec import ModelSpec
from shared.engine.modes.policy import prepare
from shared.engine_config import EngineConfig
from shared.errors import InvalidRequest, KvquiltError
from shared.generation.forest import Append, Close, Command, Edit, Fork, Grow, Merge, Prune, Rewind, Start
from shared.generation.pieces import ids_of
from shared.generation.told import AppliedEvent, FinishReason, GrownEvent, RefusedEvent, RestedEvent


class Exploring:
    """Every method runs between passes, on the engine's thread. A job with ``num_open`` 0 is complete."""

    def __init__(self, spec: ModelSpec, config: EngineConfig, decode: Decode | None) -> None:
        self._spec = spec
        self._config = config
        self._decode = decode
        self._rotation = Rotation(spec.rope, spec.device)
        self._nodes = ForestNodes(spec)

    def start(self, job: ForestJob) -> None:
        policy = prepare(job, self._spec.num_layers)
        base = placed_context(job, job.selected or ())
        job.context, job.origin = base.placements, base.end
        if job.selected is None and job.request.reuse.recomputes:
            job.base = policy.survey(job, self._spec, self._rotation)
            assert job.base is not None, "a mode that goes by the question"
            job.context = job.base.context
        elif base.own_ids:
            job.base = Branch.at(self._spec, base.own_ids, base.own_positions, base.placements)
            job.questions.append(Question(None, job.base))

    def obey(self, job: ForestJob) -> None:
        while job.commands and job.num_open:
            self._obey(job, job.commands.popleft())

    def _obey(self, job: ForestJob, command: Command) -> None:
        """Applies it, or refuses it and leaves everything as it was."""
        if isinstance(command, Close):
            job.closing = True
            self._close_at_rest(job)
            return
        number, job.num_commands = job.num_commands, job.num_commands + 1
        try:
            node = self._apply(job, command)
        except KvquiltError as error:
            job.emit(RefusedEvent(number, error))
            return
        if isinstance(command, (Start, Append)):
            job.num_given += len(ids_of(command.piece))
        compact(node.branch for node in job.nodes.values())
        job.emit(
            AppliedEvent(number, len(node.tokens), node.num_exact is not None)
            if node
            else AppliedEvent(number, 0),
        )
        if node is not None:
            self._grow(job, node)
        self._close_at_rest(job)

    def on_computed(self, job: ForestJob, owner: Grower, computed: Computed) -> None:
        match owner:
            case Survey():
                job.questions.remove(owner)
                owner.end(job, self._spec)
            case Question():
                job.questions.remove(owner)
            case ForestNode():
                owner.logits_V = computed.logits_V
                self._grow(job, owner, computed.chosen)
                if owner.logits_V is not None:
                    owner.logits_V = owner.logits_V.clone()  # it rests: without those of the whole step
                self._close_at_rest(job)

    def _close_at_rest(self, job: ForestJob) -> None:
        if job.closing and all(node.growth is None for node in job.nodes.values()):
            job.num_open = 0
            if not job.clock.first_token:
                job.clock.tick_first_token()

    # --- commands ------------------------------------------------------------------------------------------

    def _apply(self, job: ForestJob, command: Edit) -> ForestNode | None:
        """The branch that it names, unless that is gone now."""
        match command:
            case Start(branch, piece):
                return self._add(job, "start.branch", self._nodes.start(job, branch, ids_of(piece)))
            case Fork(branch, source, length):
                node = self._nodes.find(job, "fork.source", source)
                return self._add(
                    job, "fork.branch", self._nodes.fork(job, node, branch, "fork.length", length)
                )
            case Rewind(branch, num_tokens):
                node = self._nodes.find(job, "rewind.branch", branch)
                if not 0 <= num_tokens < len(node.tokens):
                    raise InvalidRequest(
                        f"rewind.num_tokens: {num_tokens} is out of range; branch {branch} has "
                        f"{len(node.tokens)} tokens and keeps "
                        f"at least 1 (prune it instead)"
                    )
                cut = self._nodes.fork(job, node, branch, "rewind.num_tokens", len(node.tokens) - num_tokens)
                node.branch, node.tokens, node.logits_V, node.num_exact = (
                    cut.branch,
                    cut.tokens,
                    cut.logits_V,
                    cut.num_exact,
                )
                node.growth = None
                return node
            case Prune(branch):
                self._nodes.find(job, "prune.branch", branch)
                del job.nodes[branch]
                return None
            case Append(branch, piece):
                token_ids = ids_of(piece)
                node = self._nodes.resting(job, "append.branch", branch)
                self._nodes.check_ids("append.token_ids", token_ids)
                self._nodes.check_room(job, "append.token_ids", len(node.tokens) + len(token_ids))
                node.append(token_ids)
                return node
            case Grow(branch, sampling):
                node = self._nodes.resting(job, "grow.branch", branch)
                if sampling.n != 1:
                    raise InvalidRequest(
                        f"grow.sampling.n: {sampling.n} is not 1; fork the branch to have several"
                    )
                if sampling.stop and self._decode is None:
                    raise InvalidRequest(
                        "grow.sampling.stop: this model has no tokenizer, so stop strings cannot be "
                        "recognised"
                    )
                num_tokens = len(node.tokens) + sampling.limit - 1
                self._nodes.check_room(job, "grow.sampling.max_tokens", num_tokens)
                node.growth = Growth(sampling, TextStream(self._decode, sampling.stop))
                return node
            case Merge():
                return self._add(job, "merge.branch", self._nodes.merge(job, command))

    def _add(self, job: ForestJob, field: str, node: ForestNode) -> ForestNode:
        branch = node.branch_id
        if branch in job.nodes:
            raise InvalidRequest(
                f"{field}: {branch} is the id of a live branch; choose another or prune that one"
            )
        if len(job.nodes) >= self._config.max_running_branches:
            raise InvalidRequest(
                f"{field}: {len(job.nodes)} branches live; this engine runs at most "
                f"{self._config.max_running_branches} at once"
            )
        job.nodes[branch] = node
        return node

    # --- growth --------------------------------------------------------------------------------------------

    def _grow(self, job: ForestJob, node: ForestNode, chosen: Sampled | None = None) -> None:
        """The next token, if one is wanted and can be known. ``chosen``: it was drawn already."""
        growth, draw = node.growth, node.draw()
        if growth is None or draw is None or node.logits_V is None:
            return
        params = growth.params
        if chosen is None:
            (chosen,) = sample(node.logits_V[None], [draw])
        if not job.clock.first_token:
            job.clock.tick_first_token()
        job.generated += 1
        growth.num_tokens += 1
        ended = chosen.token_id in self._spec.eos_ids and not params.ignore_eos
        text = "" if ended else growth.text.push(chosen.token_id)
        job.emit(GrownEvent(node.branch_id, chosen.token_id, text, chosen.logprob, chosen.top_logprobs))
        if not ended:  # an end mark is told, but is no token of the branch, which may go on
            node.append([chosen.token_id])
        if ended or growth.text.stopped:
            self._rest(job, node, growth, FinishReason.STOP)
        elif growth.num_tokens >= params.limit:
            self._rest(job, node, growth, FinishReason.LENGTH)

    def _rest(self, job: ForestJob, node: ForestNode, growth: Growth, reason: FinishReason) -> None:
        node.growth = None
        rest = growth.text.finish()
        reason = FinishReason.STOP if growth.text.stopped else reason
        job.emit(RestedEvent(node.branch_id, reason, rest, len(node.tokens)))
