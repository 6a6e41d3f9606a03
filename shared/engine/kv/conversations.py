"""Keeps the KV of what was said in conversations from one turn for the next: a prefix cache behind contexts.

What is computed behind a context depends on its own tokens and on all that stands in front of them. So it is
kept in blocks of a few tokens, each under a name that says just that, and found by the longest beginning that
is there::

    front ──► block ──► block ──► block          name = H(name of the block in front, tokens of this one)
                          └─────► block          of the first one, the name in front is that of the front

A front's name covers whose conversation it is and everything that its tokens see, besides each other
(``shared.engine.jobs.turn``): where that is another, no block is found.

It takes what requests leave of ``private_bytes``, in which the same KV was computed, and gives it back when
they need it. Owned by the engine's thread. Shapes: L layers, K kv heads, T tokens of a block, D head_dim.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shared.engine.kv.segment import Segment, interleaved
from shared.engine.model.spec import ModelSpec
from shared.engine.scheduler import TILE
from shared.engine_config import EngineConfig

BLOCK_TOKENS = 16
FRONT = "front:"
"""Of the names of fronts, which no block's name begins with."""


@dataclass(slots=True)
class ConversationCounts:
    """Requests of conversations that found some of their KV, those that found none, and the tokens found."""

    num_hits: int = 0
    num_misses: int = 0
    num_tokens: int = 0


@dataclass(slots=True, eq=False)
class KeptBlock:
    """``parent``: name of the block, or the front, in front of it. ``chunk_ids``: chunks that it stands on.
    ``kv_LKTD``: of each layer keys and then values. ``used_s``: when it was found or kept last; ``nth_use``
    counts these, of all blocks."""

    name: str
    parent: str
    chunk_ids: frozenset[str]
    kv_LKTD: Tensor
    used_s: float = 0.0
    nth_use: int = 0


class Conversations:
    """``in_use``: bytes of private KV that requests take, or are about to; they come first. A block is used
    whenever one behind it is, and so goes after it: nothing is left that cannot be found."""

    def __init__(
        self,
        spec: ModelSpec,
        config: EngineConfig,
        in_use: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spec, self._config, self._in_use, self._clock = spec, config, in_use, clock
        # under batch invariance rows have the same bits only where their pass was cut at the same places
        self.block_tokens = TILE if config.batch_invariant else BLOCK_TOKENS
        self.block_bytes = self.block_tokens * spec.kv_bytes_per_token
        self.counts = ConversationCounts()
        self._of: dict[
            str, dict[str, KeptBlock]
        ] = {}  # by tenant, each least recently used first; none is empty
        self._num_blocks = 0
        self._standing_on = Counter[str]()
        self._uses = itertools.count()

    @property
    def keeps(self) -> bool:
        """Anything, ever."""
        config = self._config
        return min(config.conversation_bytes, config.conversation_tenant_bytes) >= self.block_bytes and (
            config.conversation_s > 0
        )

    @property
    def num_bytes(self) -> int:
        return self._num_blocks * self.block_bytes

    @property
    def chunk_ids(self) -> tuple[str, ...]:
        """Chunks that something kept stands on."""
        return tuple(self._standing_on)

    @property
    def remaining_s(self) -> float | None:
        """Seconds until the next block is over; None: there is none."""
        if not self._of:
            return None
        first_s = min(_oldest(blocks).used_s for blocks in self._of.values())
        return max(0.0, first_s + self._config.conversation_s - self._clock())

    # --- what requests ask ---------------------------------------------------------------------------------

    def find(self, tenant: str, names: Sequence[str]) -> list[KeptBlock]:
        """The longest beginning of ``names`` that is kept."""
        self.expire()
        blocks = self._of.get(tenant, {})
        found = []
        for name in names:
            if (block := blocks.get(name)) is None:
                break
            found.append(block)
        self._touch(tenant, found)
        return found

    def keep(
        self, tenant: str, front: str, names: Sequence[str], chunk_ids: frozenset[str], segment: Segment
    ) -> None:
        """Keeps the blocks that ``segment`` begins with, as many as there may be: others go for them. What is
        kept already is not copied again. A device without memory keeps fewer."""
        room = min(self._room(), self._config.conversation_tenant_bytes) // self.block_bytes
        names = names[: min(room, segment.length // self.block_tokens)]
        known = self.find(tenant, names)
        self._evict(tenant, (len(names) - len(known)) * self.block_bytes)
        chain = list(known)
        for nth in range(len(known), len(names)):
            parent = names[nth - 1] if nth else front
            try:
                kv_LKTD = self._cut(segment, nth)
            except torch.OutOfMemoryError:
                break
            chain.append(KeptBlock(names[nth], parent, chunk_ids, kv_LKTD))
            self._add(tenant, chain[-1])
        self._touch(tenant, chain)

    def fill(self, segment: Segment, blocks: Sequence[KeptBlock]) -> int:
        """Makes these the beginning of an empty segment. Returns how many tokens that are."""
        if not blocks:
            return 0
        num_tokens = len(blocks) * self.block_tokens
        for layer, x_KTD in enumerate(interleaved(segment.k_LKTD, segment.v_LKTD)):
            x_KTD[:, :num_tokens] = torch.cat([block.kv_LKTD[layer] for block in blocks], dim=1)
        return num_tokens

    # --- what goes -----------------------------------------------------------------------------------------

    def expire(self) -> None:
        """What was not used for as long as that is gone."""
        last_s = self._clock() - self._config.conversation_s
        for tenant, blocks in list(self._of.items()):
            while blocks and _oldest(blocks).used_s <= last_s:
                self._drop(tenant, _oldest(blocks))

    def give_way(self) -> None:
        """Requests have the room that they need."""
        if self._num_blocks:
            self._evict("", 0)

    def forget(self, chunk_ids: Sequence[str]) -> None:
        """Lets go of what stands on one of these."""
        if not self._standing_on.keys().isdisjoint(chunk_ids):
            for tenant, blocks in list(self._of.items()):
                for block in [b for b in blocks.values() if not b.chunk_ids.isdisjoint(chunk_ids)]:
                    self._drop(tenant, block)

    def clear(self) -> int:
        """Bytes of all of it, which is gone."""
        num_bytes = self.num_bytes
        self._of.clear()
        self._standing_on.clear()
        self._num_blocks = 0
        return num_bytes

    def check_invariants(self) -> None:
        blocks = [block for of_tenant in self._of.values() for block in of_tenant.values()]
        assert all(self._of.values()), "a tenant without blocks"
        assert len(blocks) == self._num_blocks, "kept blocks"
        assert self.num_bytes <= self._config.conversation_bytes, "more is kept than may be"
        assert Counter(c for b in blocks for c in b.chunk_ids) == self._standing_on, "chunks stood on"
        shape = (2 * self._spec.num_layers, self._spec.num_kv_heads, self.block_tokens, self._spec.head_dim)
        assert all(block.kv_LKTD.shape == shape for block in blocks), "a block of another size"
        for tenant, of_tenant in self._of.items():
            num_bytes = len(of_tenant) * self.block_bytes
            assert num_bytes <= self._config.conversation_tenant_bytes, f"{tenant} keeps more than it may"
            later: set[str] = set()
            for name, block in reversed(of_tenant.items()):  # most recently used first
                begins = block.parent not in of_tenant and block.parent.startswith(FRONT)
                assert name == block.name, "a block under another name"
                assert begins or block.parent in later, "a block that is never found"
                later.add(name)
            used = [block.nth_use for block in of_tenant.values()]
            used_s = [block.used_s for block in of_tenant.values()]
            assert used == sorted(used), "not in the order of their use"
            assert used_s == sorted(used_s), "times of use out of order"

    def _room(self) -> int:
        """Bytes that may be kept now."""
        config = self._config
        return max(0, min(config.conversation_bytes, config.private_bytes - self._in_use()))

    def _evict(self, tenant: str, needed: int) -> None:
        """Makes room for ``needed`` bytes more of ``tenant``: first by its own blocks if it would have more
        than a tenant may, then by whichever were used least recently."""
        own, most, room = self._of.get(tenant, {}), self._config.conversation_tenant_bytes, self._room()
        while own and len(own) * self.block_bytes + needed > most:
            self._drop(tenant, _oldest(own))
        while self._of and self.num_bytes + needed > room:
            oldest = min(self._of, key=lambda name: _oldest(self._of[name]).nth_use)
            self._drop(oldest, _oldest(self._of[oldest]))

    def _cut(self, segment: Segment, nth: int) -> Tensor:
        rows = slice(nth * self.block_tokens, (nth + 1) * self.block_tokens)
        parts = [x_KTD[:, rows] for x_KTD in interleaved(segment.k_LKTD, segment.v_LKTD)]
        return torch.stack(parts).to(self._spec.device)  # a paused request's are in host memory

    def _add(self, tenant: str, block: KeptBlock) -> None:
        self._of.setdefault(tenant, {})[block.name] = block
        self._num_blocks += 1
        self._standing_on.update(block.chunk_ids)

    def _drop(self, tenant: str, block: KeptBlock) -> None:
        del self._of[tenant][block.name]
        if not self._of[tenant]:
            del self._of[tenant]
        self._num_blocks -= 1
        for chunk_id in block.chunk_ids:
            self._standing_on[chunk_id] -= 1
            if not self._standing_on[chunk_id]:
                del self._standing_on[chunk_id]

    def _touch(self, tenant: str, chain: Sequence[KeptBlock]) -> None:
        """The first of them is the most recently used one."""
        now_s = self._clock()
        for block in reversed(chain):
            block.used_s, block.nth_use = now_s, next(self._uses)
            self._of[tenant][block.name] = self._of[tenant].pop(block.name)


def _oldest(blocks: dict[str, KeptBlock]) -> KeptBlock:
    return next(iter(blocks.values()))
