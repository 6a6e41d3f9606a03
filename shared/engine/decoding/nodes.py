"""What becomes of the tokens and KV of a live forest's branches when they are forked and merged."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import torch

from shared.engine.jobs.forest import ForestJob, ForestNode
from shared.engine.kv.segment import Branch
from shared.engine.model.rope import Rotation
from shared.engine.model.spec import ModelSpec
from shared.errors import ContextTooLong, FailedPrecondition, InvalidRequest, NotFound
from shared.generation.forest import Merge


class ForestNodes:
    """Makes branches of a forest, and checks what it is asked for. Nothing of the forest is changed."""

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        self._rotation = Rotation(spec.rope, spec.device)

    def find(self, job: ForestJob, field: str, branch: int) -> ForestNode:
        if branch not in job.nodes:
            raise NotFound(f"{field}: there is no branch {branch}; it was never started, or it was pruned")
        return job.nodes[branch]

    def resting(self, job: ForestJob, field: str, branch: int) -> ForestNode:
        node = self.find(job, field, branch)
        if node.growth is not None:
            raise FailedPrecondition(
                f"{field}: branch {branch} is growing; wait until it rests, rewind it, or fork it"
            )
        return node

    def start(self, job: ForestJob, branch: int, token_ids: tuple[int, ...]) -> ForestNode:
        self.check_ids("start.token_ids", token_ids)
        self.check_room(job, "start.token_ids", len(token_ids))
        root = Branch(self._spec, token_ids, job.origin, job.context, job.base)
        root.tempering = job.tempering
        return ForestNode(branch, root, list(token_ids))

    def fork(
        self, job: ForestJob, node: ForestNode, branch: int, field: str, length: int | None
    ) -> ForestNode:
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
        return ForestNode(branch, forked, node.tokens[:length], logits_V, num_exact=num_exact)

    def merge(self, job: ForestJob, command: Merge) -> ForestNode:
        branch, sources, length = command.branch, command.sources, command.length
        nodes = [self.find(job, f"merge.sources[{i}]", source) for i, source in enumerate(sources)]
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
        self.check_room(job, "merge.sources", len(nodes[0].tokens) + sum(map(len, tails)))
        merged = self.fork(job, nodes[0], branch, "merge.length", None)
        if command.placed:
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

    def _place(self, job: ForestJob, merged: ForestNode, node: ForestNode, length: int) -> None:
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

    def check_ids(self, field: str, token_ids: tuple[int, ...]) -> None:
        if not token_ids:
            raise InvalidRequest(f"{field}: is empty")
        for token_id in token_ids:
            if not 0 <= token_id < self._spec.vocab_size:
                raise InvalidRequest(
                    f"{field}: token id {token_id} is outside the vocabulary (0 to "
                    f"{self._spec.vocab_size - 1})"
                )

    def check_room(self, job: ForestJob, field: str, num_tokens: int) -> None:
        most = min(self._spec.max_positions, self._spec.sliding_window or self._spec.max_positions)
        if job.origin + num_tokens > most:
            raise ContextTooLong(
                f"{field}: the branch would need {job.origin + num_tokens} positions; the model has {most}"
            )


def _num_shared(lists: Sequence[Sequence[int]]) -> int:
    """With how many equal tokens all begin, and have at least one more."""
    heads = zip(*(tokens[:-1] for tokens in lists), strict=False)
    return sum(1 for _ in takewhile(lambda head: len(set(head)) == 1, heads))
