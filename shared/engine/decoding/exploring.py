"""A live forest: branches over one context that its owner starts, forks, rewinds, prunes, continues and
merges while they run.

A branch (``Node``) is its tokens behind the context; which segments hold their KV is nobody's business. Every
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

from collections.abc import Sequence
from itertools import takewhile

import torch

from shared.engine.decoding.forest import blending, placed_context, tempering
from shared.engine.decoding.sampling import Sampled, sample
from shared.engine.decoding.text import Decode, TextStream
from shared.engine.decoding.tree import compact
from shared.engine.jobs import ForestJob, Growth, Node, Question, emit
from shared.engine.kv.segment import Branch
from shared.engine.model.rope import Rotation
from shared.engine.model.spec import ModelSpec
from shared.engine.modes.recomputing import select
from shared.engine_config import EngineConfig
from shared.errors import ContextTooLong, FailedPrecondition, InvalidRequest, KvquiltError, NotFound
from shared.generation.forest import Append, Close, Command, Edit, Fork, Grow, Merge, Prune, Rewind, Start
from shared.generation.modes import ReuseMode
from shared.generation.pieces import ids_of
from shared.generation.told import AppliedEvent, FinishReason, GrownEvent, RefusedEvent, RestedEvent


class Exploring:
    """Every method runs between passes, on the engine's thread. A job with ``num_open`` 0 is complete."""

    def __init__(self, spec: ModelSpec, config: EngineConfig, decode: Decode | None) -> None:
        self._spec = spec
        self._config = config
        self._decode = decode
        self._rotation = Rotation(spec.rope, spec.device)

    def start(self, job: ForestJob) -> None:
        select(job, self._spec.num_layers)
        base = placed_context(job, job.selected or ())
        job.context, job.origin = base.placements, base.end
        if job.request.reuse is ReuseMode.CACHEBLEND and job.selected is None:
            blended = blending(job, self._spec)
            job.base, job.context = blended.branch, blended.branch.context
            job.questions.append(blended)
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
            emit(job, RefusedEvent(number, error))
            return
        if isinstance(command, (Start, Append)):
            job.num_given += len(ids_of(command.piece))
        compact(node.branch for node in job.nodes.values())
        emit(
            job,
            AppliedEvent(number, len(node.tokens), node.num_exact is not None)
            if node
            else AppliedEvent(number, 0),
        )
        if node is not None:
            self._grow(job, node)
        self._close_at_rest(job)

    def on_computed(self, job: ForestJob, node: Node, logits_V: torch.Tensor, chosen: Sampled | None) -> None:
        node.logits_V = logits_V
        self._grow(job, node, chosen)
        if node.logits_V is not None:
            node.logits_V = logits_V.clone()  # kept while it rests: without the logits of the whole step
        self._close_at_rest(job)

    def _close_at_rest(self, job: ForestJob) -> None:
        if job.closing and all(node.growth is None for node in job.nodes.values()):
            job.num_open = 0
            if not job.clock.first_token:
                job.clock.tick_first_token()

    # --- commands ------------------------------------------------------------------------------------------

    def _apply(self, job: ForestJob, command: Edit) -> Node | None:
        """The branch that it names, unless that is gone now."""
        match command:
            case Start(branch, piece):
                token_ids = ids_of(piece)
                self._check_ids("start.token_ids", token_ids)
                self._check_room(job, "start.token_ids", len(token_ids))
                root = Branch(self._spec, token_ids, job.origin, job.context, job.base)
                root.tempering = tempering(job)
                return self._add(job, "start.branch", branch, Node(branch, root, list(token_ids)))
            case Fork(branch, source, length):
                node = self._find(job, "fork.source", source)
                return self._add(
                    job, "fork.branch", branch, self._fork(job, node, branch, "fork.length", length)
                )
            case Rewind(branch, num_tokens):
                node = self._find(job, "rewind.branch", branch)
                if not 0 <= num_tokens < len(node.tokens):
                    raise InvalidRequest(
                        f"rewind.num_tokens: {num_tokens} is out of range; branch {branch} has "
                        f"{len(node.tokens)} tokens and keeps "
                        f"at least 1 (prune it instead)"
                    )
                cut = self._fork(job, node, branch, "rewind.num_tokens", len(node.tokens) - num_tokens)
                node.branch, node.tokens, node.logits_V, node.num_exact = (
                    cut.branch,
                    cut.tokens,
                    cut.logits_V,
                    cut.num_exact,
                )
                node.growth = None
                return node
            case Prune(branch):
                node = self._find(job, "prune.branch", branch)
                job.answers.remove(node)
                del job.nodes[branch]
                return None
            case Append(branch, piece):
                token_ids = ids_of(piece)
                node = self._resting(job, "append.branch", branch)
                self._check_ids("append.token_ids", token_ids)
                self._check_room(job, "append.token_ids", len(node.tokens) + len(token_ids))
                node.append(token_ids)
                return node
            case Grow(branch, sampling):
                node = self._resting(job, "grow.branch", branch)
                if sampling.n != 1:
                    raise InvalidRequest(
                        f"grow.sampling.n: {sampling.n} is not 1; fork the branch to have several"
                    )
                if sampling.stop and self._decode is None:
                    raise InvalidRequest(
                        "grow.sampling.stop: this model has no tokenizer, so stop strings cannot be "
                        "recognised"
                    )
                self._check_room(job, "grow.sampling.max_tokens", len(node.tokens) + sampling.limit - 1)
                node.growth = Growth(sampling, TextStream(self._decode, sampling.stop))
                return node
            case Merge(branch, sources, length, placed):
                return self._add(
                    job, "merge.branch", branch, self._merge(job, branch, sources, length, placed)
                )

    def _add(self, job: ForestJob, field: str, branch: int, node: Node) -> Node:
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
        job.answers.append(node)
        return node

    def _find(self, job: ForestJob, field: str, branch: int) -> Node:
        if branch not in job.nodes:
            raise NotFound(f"{field}: there is no branch {branch}; it was never started, or it was pruned")
        return job.nodes[branch]

    def _resting(self, job: ForestJob, field: str, branch: int) -> Node:
        node = self._find(job, field, branch)
        if node.growth is not None:
            raise FailedPrecondition(
                f"{field}: branch {branch} is growing; wait until it rests, rewind it, or fork it"
            )
        return node

    def _fork(self, job: ForestJob, node: Node, branch: int, field: str, length: int | None) -> Node:
        """A node with the first ``length`` tokens. ``pending`` are those not computed, at least the last
        unless its logits are known."""
        length = len(node.tokens) if length is None else length
        if not 1 <= length <= len(node.tokens):
            raise InvalidRequest(
                f"{field}: {length} is out of range; branch {node.branch_id} has 1 to "
                f"{len(node.tokens)} tokens"
            )
        logits_V = node.logits_V if length == len(node.tokens) else None
        seen = min(length if logits_V is not None else length - 1, node.branch.computed - job.origin)
        on = node.branch
        while on.parent is not None and on.parent is not job.base and on.first >= job.origin + seen:
            on = on.parent
        forked = on.fork(self._spec, tuple(node.tokens[seen:length]), num_seen=job.origin + seen - on.first)
        num_exact = None if node.num_exact is None or length <= node.num_exact else node.num_exact
        return Node(branch, forked, node.tokens[:length], logits_V, num_exact=num_exact)

    def _merge(
        self, job: ForestJob, branch: int, sources: tuple[int, ...], length: int | None, placed: bool
    ) -> Node:
        nodes = [self._find(job, f"merge.sources[{i}]", source) for i, source in enumerate(sources)]
        if len(nodes) < 2:
            raise InvalidRequest("merge.sources: name at least 2 branches")
        if length is None:
            length = _num_shared([node.tokens for node in nodes])
        shared = nodes[0].tokens[:length]
        for i, node in enumerate(nodes):
            if not 0 <= length < len(node.tokens) or node.tokens[:length] != shared:
                raise InvalidRequest(
                    f"merge.length: branch {sources[i]} does not begin with the {length} tokens of the "
                    "first, and more of its own"
                )
            if node.branch.pending or node.growth is not None:
                raise FailedPrecondition(
                    f"merge.sources[{i}]: branch {sources[i]} is not at rest; wait until it is"
                )
        tails = [node.tokens[length:] for node in nodes[1:]]
        self._check_room(job, "merge.sources", len(nodes[0].tokens) + sum(map(len, tails)))
        merged = self._fork(job, nodes[0], branch, "merge.length", None)
        if placed:
            if merged.num_exact is None:
                merged.num_exact = len(merged.tokens)
            for node in nodes[1:]:
                self._place(job, merged, node, length)
            merged.branch.segment.length -= (
                1  # the last token is computed again: it sees all the others, and its logits are wanted
            )
            merged.branch.pending.append(merged.tokens[-1])
            merged.logits_V = None
        else:
            merged.append([token for tail in tails for token in tail])
        return merged

    def _place(self, job: ForestJob, merged: Node, node: Node, length: int) -> None:
        """Moves a copy of the KV of ``node``'s tokens from ``length`` on behind those of ``merged``."""
        distance = torch.tensor([len(merged.tokens) - length], device=self._spec.device)
        angles = self._rotation.angles(distance)
        target = merged.branch.segment
        target.reserve(len(node.tokens) - length)
        parts, child, end = [], node.branch, node.branch.end
        while end > job.origin + length:
            begin = max(child.first, job.origin + length)
            parts.append((child.segment, begin - child.first, end - child.first))
            end = child.first
            if child.parent is not None:
                child = child.parent
        for segment, begin, end in reversed(parts):
            room = slice(target.length, target.length + end - begin)
            for layer in range(self._spec.num_layers):
                target.k_LKTD[layer][:, room] = self._rotation.rotate(
                    segment.k_LKTD[layer][:, begin:end], angles
                )
                target.v_LKTD[layer][:, room] = segment.v_LKTD[layer][:, begin:end]
            target.length += end - begin
        merged.tokens += node.tokens[length:]

    # --- growth --------------------------------------------------------------------------------------------

    def _grow(self, job: ForestJob, node: Node, chosen: Sampled | None = None) -> None:
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
        emit(job, GrownEvent(node.branch_id, chosen.token_id, text, chosen.logprob, chosen.top_logprobs))
        if not ended:  # an end mark is told, but is no token of the branch, which may go on
            node.append([chosen.token_id])
        if ended or growth.text.stopped:
            self._rest(job, node, growth, FinishReason.STOP)
        elif growth.num_tokens >= params.limit:
            self._rest(job, node, growth, FinishReason.LENGTH)

    def _rest(self, job: ForestJob, node: Node, growth: Growth, reason: FinishReason) -> None:
        node.growth = None
        rest = growth.text.finish()
        reason = FinishReason.STOP if growth.text.stopped else reason
        emit(job, RestedEvent(node.branch_id, reason, rest, len(node.tokens)))

    # --- limits --------------------------------------------------------------------------------------------

    def _check_ids(self, field: str, token_ids: tuple[int, ...]) -> None:
        if not token_ids:
            raise InvalidRequest(f"{field}: is empty")
        for token_id in token_ids:
            if not 0 <= token_id < self._spec.vocab_size:
                raise InvalidRequest(
                    f"{field}: token id {token_id} is outside the vocabulary (0 to "
                    f"{self._spec.vocab_size - 1})"
                )

    def _check_room(self, job: ForestJob, field: str, num_tokens: int) -> None:
        most = min(self._spec.max_positions, self._spec.sliding_window or self._spec.max_positions)
        if job.origin + num_tokens > most:
            raise ContextTooLong(
                f"{field}: the branch would need {job.origin + num_tokens} positions; the model has {most}"
            )


def _num_shared(lists: Sequence[Sequence[int]]) -> int:
    """With how many equal tokens all begin, and have at least one more."""
    heads = zip(*(tokens[:-1] for tokens in lists), strict=False)
    return sum(1 for _ in takewhile(lambda head: len(set(head)) == 1, heads))
