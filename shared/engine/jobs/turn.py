"""Takes over what earlier turns of a conversation have computed, and leaves it for later ones
(``shared.engine.kv.conversations``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from shared.engine.kv.branch import Branch
from shared.engine.kv.conversations import FRONT, Conversations
from shared.identity import TokenIds, digest, ids_hash


@dataclass(frozen=True, slots=True)
class KeptRun:
    """A branch whose KV is kept at the request's end, and the names of its blocks behind ``front``."""

    branch: Branch
    front: str
    names: tuple[str, ...]


@dataclass(slots=True, eq=False)
class ConversationTurn:
    """``seen``: all that its rows see and go with, besides their own tokens; ``chunk_ids``: of what it stands
    on. ``num_context``, ``num_said``: tokens taken over, of those of the context that are computed for the
    request, and of its questions."""

    conversations: Conversations
    tenant: str
    seen: tuple[object, ...]
    chunk_ids: frozenset[str]
    runs: list[KeptRun] = field(default_factory=list)
    num_context: int = 0
    num_said: int = 0

    @property
    def num_tokens(self) -> int:
        return self.num_context + self.num_said

    def resume(self, branch: Branch, num_context: int = 0, behind: TokenIds = ()) -> None:
        """Takes over what is kept of a new branch, but never its last token, whose logits are wanted.
        ``num_context``: of its tokens, the first so many are the context's; ``behind``: tokens of the branch
        that it grows on."""
        front = FRONT + digest(
            self.tenant.encode(), repr(self.seen).encode(), ids_hash(behind).encode(), size=20
        )
        size = self.conversations.block_tokens
        names = tuple(_names(front, branch.pending, size))
        self.runs.append(KeptRun(branch, front, names))
        found = self.conversations.find(self.tenant, names[: (len(branch.pending) - 1) // size])
        num_tokens = self.conversations.fill(branch.segment, found)
        branch.advance(num_tokens)
        self.num_context += min(num_tokens, num_context)
        self.num_said += num_tokens - min(num_tokens, num_context)

    def keep(self) -> None:
        """The request has ended: what it has computed is kept."""
        counts = self.conversations.counts
        counts.num_hits += bool(self.runs) and self.num_tokens > 0
        counts.num_misses += bool(self.runs) and self.num_tokens == 0
        counts.num_tokens += self.num_tokens
        for run in self.runs:
            segment = run.branch.segment
            self.conversations.keep(self.tenant, run.front, run.names, self.chunk_ids, segment)


def _names(front: str, token_ids: Sequence[int], size: int) -> Iterator[str]:
    """Of the blocks that ``token_ids`` begin with."""
    name = front
    for begin in range(0, len(token_ids) - size + 1, size):
        name = digest(name.encode(), ids_hash(token_ids[begin : begin + size]).encode(), size=20)
        yield name
