"""The branches of a live forest, and what becomes of their tokens and KV when they are forked and merged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import torch

from shared.engine.admission import check_ids
from shared.engine.decoding.drafting import Drafter
from shared.engine.decoding.draws import Draw, Wanted
from shared.engine.decoding.grammar import GrammarState
from shared.engine.decoding.text import Growth
from shared.engine.jobs.context import Grower
from shared.engine.jobs.host import Host
from shared.engine.kv.branch import Branch, Placement, Tempering
from shared.errors import ContextTooLong, FailedPrecondition, InvalidRequest, NotFound
from shared.generation.asked import SamplingParams
from shared.generation.forest import Merge
from shared.generation.response_format import ResponseFormat
from shared.identity import TokenIds


@dataclass(frozen=True, slots=True)
class FormedText:
    """``first``: the number of its first token in the branch; ``grammar``: behind its last one. ``ended``: by
    an end mark, which is no token of the branch."""

    form: ResponseFormat
    first: int
    grammar: GrammarState
    ended: bool = False

    @property
    def over(self) -> bool:
        return self.ended or self.grammar.complete

    def after(self, token_ids: Sequence[int]) -> FormedText | None:
        grammar = None if self.over else self.grammar.after(token_ids)
        return None if grammar is None else FormedText(self.form, self.first, grammar)

    def upto(self, length: int, num_tokens: int) -> FormedText | None:
        """In a branch of which the first ``length`` of its ``num_tokens`` remain."""
        grammar = self.grammar.before(num_tokens - length) if length > self.first else None
        ended = self.ended and length == num_tokens
        return None if grammar is None else FormedText(self.form, self.first, grammar, ended)


@dataclass(slots=True, eq=False)
class ForestNode(Grower):
    """A branch of a live forest: all its tokens behind the context. ``logits_V``: behind the last one, once
    it is computed; ``growth``: how it grows at present.
    ``num_exact``: so many of its tokens have exact KV, a merge placed that of the next one as it was; None:
    all have. ``formed``: the text that keeps to a format and that its last tokens are, or are becoming.
    """

    branch_id: int
    branch: Branch
    tokens: list[int]
    logits_V: torch.Tensor | None = None
    growth: Growth | None = None
    num_exact: int | None = None
    formed: FormedText | None = None

    @property
    def wanted(self) -> Wanted:
        growth = self.growth
        if growth is None:
            return Wanted()
        return Wanted((Draw(growth.params, self.branch_id, len(self.tokens), growth.grammar),))

    @property
    def drafter(self) -> Drafter | None:
        return None if self.growth is None else self.growth.drafter

    def append(self, token_ids: Sequence[int]) -> None:
        """Tokens that it is given. If they do not fit the format, its text is over."""
        if self.formed is not None:
            self.formed = self.formed.after(token_ids)
        self.grow(token_ids)

    def grow(self, token_ids: Sequence[int]) -> None:
        """Tokens that its grammar was told already."""
        self.tokens += token_ids
        self.branch.pending += token_ids
        self.logits_V = None


@dataclass(slots=True, eq=False)
class ForestNodes:
    """Those that live, by id. ``context``: its placements, ``base``: under ``full`` the branch that holds the
    chunks instead, ``origin``: position of the nodes' first token. ``start``, ``fork`` and ``merge`` make a
    node that ``add`` may take in; if anything is refused nothing has changed."""

    host: Host
    context: tuple[Placement, ...] = ()
    base: Branch | None = None
    origin: int = 0
    tempering: Tempering | None = None
    by_id: dict[int, ForestNode] = field(default_factory=dict)

    def find(self, field: str, branch: int) -> ForestNode:
        if branch not in self.by_id:
            raise NotFound(f"{field}: there is no branch {branch}; it was never started, or it was pruned")
        return self.by_id[branch]

    def resting(self, field: str, branch: int) -> ForestNode:
        node = self.find(field, branch)
        if node.growth is not None:
            raise FailedPrecondition(
                f"{field}: branch {branch} is growing; wait until it rests, rewind it, or fork it"
            )
        return node

    def add(self, field: str, node: ForestNode) -> ForestNode:
        branch, most = node.branch_id, self.host.config.max_running_branches
        if branch in self.by_id:
            raise InvalidRequest(
                f"{field}: {branch} is the id of a live branch; choose another or prune that one"
            )
        if len(self.by_id) >= most:
            raise InvalidRequest(
                f"{field}: {len(self.by_id)} branches live; this engine runs at most {most} at once"
            )
        self.by_id[branch] = node
        return node

    def start(self, branch: int, token_ids: TokenIds) -> ForestNode:
        check_ids("start.token_ids", token_ids, self.host.spec)
        self.check_room("start.token_ids", len(token_ids))
        root = Branch(self.host.spec, token_ids, self.origin, self.context, self.base)
        root.tempering = self.tempering
        return ForestNode(branch, root, list(token_ids))

    def extend(self, branch: int, token_ids: TokenIds) -> ForestNode:
        node = self.resting("append.branch", branch)
        check_ids("append.token_ids", token_ids, self.host.spec)
        self.check_room("append.token_ids", len(node.tokens) + len(token_ids))
        node.append(token_ids)
        return node

    def fork(self, node: ForestNode, branch: int, field: str, length: int | None) -> ForestNode:
        """A node with the first ``length`` tokens. ``pending`` are those not computed, at least the last
        unless its logits are known."""
        length = len(node.tokens) if length is None else length
        if not 1 <= length <= len(node.tokens):
            raise InvalidRequest(
                f"{field}: {length} is out of range; branch {node.branch_id} has 1 to "
                f"{len(node.tokens)} tokens"
            )
        logits_V = node.logits_V if length == len(node.tokens) else None
        seen = min(length if logits_V is not None else length - 1, node.branch.computed - self.origin)
        on = node.branch
        while on.parent is not None and on.parent is not self.base and on.first >= self.origin + seen:
            on = on.parent
        forked = on.fork(tuple(node.tokens[seen:length]), num_seen=self.origin + seen - on.first)
        num_exact = None if node.num_exact is None or length <= node.num_exact else node.num_exact
        formed = None if node.formed is None else node.formed.upto(length, len(node.tokens))
        return ForestNode(branch, forked, node.tokens[:length], logits_V, num_exact=num_exact, formed=formed)

    def grammar(self, node: ForestNode, sampling: SamplingParams) -> GrammarState | None:
        """Of a branch that is about to grow: it goes on in a text of this format that is not over, else it
        begins one."""
        form, formed = sampling.response_format, node.formed
        if form is None:
            node.formed = None
        elif formed is None or formed.form != form or formed.over:
            node.formed = FormedText(form, len(node.tokens), self.host.grammars.of(form).begin())
        return None if node.formed is None else node.formed.grammar

    def merge(self, command: Merge) -> ForestNode:
        branch, sources, length = command.branch, command.sources, command.length
        nodes = [self.find(f"merge.sources[{i}]", source) for i, source in enumerate(sources)]
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
        self.check_room("merge.sources", len(nodes[0].tokens) + sum(map(len, tails)))
        merged = self.fork(nodes[0], branch, "merge.length", None)
        if command.placed:
            if merged.num_exact is None:
                merged.num_exact = len(merged.tokens)
            for node in nodes[1:]:
                self._place(merged, node, length)
            # the last token is computed again: it sees all the others, and its logits are wanted
            merged.branch.segment.length -= 1
            merged.branch.pending.append(merged.tokens[-1])
            merged.logits_V = None
        else:
            merged.append([token for tail in tails for token in tail])
        return merged

    def _place(self, merged: ForestNode, node: ForestNode, length: int) -> None:
        """Moves a copy of the KV of ``node``'s tokens from ``length`` on behind those of ``merged``."""
        rotation = self.host.rotation
        angles = rotation.angles([len(merged.tokens) - length])
        target = merged.branch.segment
        target.reserve(len(node.tokens) - length)
        parts, child, end = [], node.branch, node.branch.end
        while end > self.origin + length:
            begin = max(child.first, self.origin + length)
            parts.append((child.segment, begin - child.first, end - child.first))
            end = child.first
            if child.parent is not None:
                child = child.parent
        for segment, begin, end in reversed(parts):
            room = slice(target.length, target.length + end - begin)
            for layer in range(self.host.spec.num_layers):
                target.k_LKTD[layer][:, room] = rotation.rotate(segment.k_LKTD[layer][:, begin:end], angles)
                target.v_LKTD[layer][:, room] = segment.v_LKTD[layer][:, begin:end]
            target.length += end - begin
        merged.tokens += node.tokens[length:]
        if merged.formed is not None:
            merged.formed = merged.formed.after(node.tokens[length:])

    def check_room(self, field: str, num_tokens: int) -> None:
        most = self.host.spec.sight
        if self.origin + num_tokens > most:
            raise ContextTooLong(
                f"{field}: the branch would need {self.origin + num_tokens} positions; the model has {most}"
            )


def _num_shared(lists: Sequence[Sequence[int]]) -> int:
    """With how many equal tokens all begin, and have at least one more."""
    heads = zip(*(tokens[:-1] for tokens in lists), strict=False)
    return sum(1 for _ in takewhile(lambda head: len(set(head)) == 1, heads))
