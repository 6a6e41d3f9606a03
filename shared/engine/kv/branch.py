"""Holds where a request places segments, and its own runs of tokens, which see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from shared.engine.kv.exclusion import Excluded
from shared.engine.kv.segment import Segment
from shared.engine.model.spec import ModelSpec
from shared.identity import TokenIds


@dataclass(frozen=True, slots=True)
class Placement:
    """A segment whose key at local position ``j`` stands at position ``offset + j`` for this request.
    ``length``: only its first so many tokens are seen; None: all of them. ``excluded``: those that are not
    seen although they are among these."""

    segment: Segment
    offset: int
    length: int | None = None
    excluded: Excluded | None = None

    @property
    def num_tokens(self) -> int:
        return self.segment.length if self.length is None else self.length


@dataclass(frozen=True, slots=True)
class Tempering:
    """The weighing by a branch of ``num_chunks`` of its placements from ``first_chunk`` on (mode ``ape``).
    For a row, c over all these together and o over the rest, with Z_c = Σ exp(q·k / (T·√d)) and Z_o
    at T = 1::

        out = (Z_c^(S·T) · out_c + Z_o · out_o) / (Z_c^(S·T) + Z_o)

    Partial results of the chunks merge by their sums Z_i like all others, if each Z_i counts as
    Z_i · Z_c^(S·T − 1): their share of Z_c stays what it is. T = S = 1 is ordinary attention."""

    first_chunk: int
    num_chunks: int
    temperature: float
    scale: float

    @property
    def chunks(self) -> range:
        return range(self.first_chunk, self.first_chunk + self.num_chunks)

    @property
    def more(self) -> float:
        """The exponent of Z_c that comes on top."""
        return self.scale * self.temperature - 1


class Probe(Protocol):
    """Watches what the rows of a branch attend to."""

    def look(self, branch: Branch, num_rows: int, layer: int, q_HSD: Tensor, scale: float) -> None:
        """Unrotated queries of the branch's next ``num_rows`` tokens, whose keys are in its segment already,
        but not counted yet."""
        ...


class Branch:
    """A private, growing run of tokens: a question, a generated answer, or a chunk that is being computed.

    Its rows see the placements of its context, of each ancestor the tokens in front of the place where it was
    forked, and its own tokens up to themselves. An ancestor may grow on behind that place. ``pending`` are
    tokens whose KV is not computed yet; where there is a ``probe`` it is told what they attend to.
    ``excluded``: of its own tokens, what others do not see.
    ``tempering``: it and what hangs on it weigh chunks otherwise than by ordinary attention::

        parent  [first …        fork …        end)
        branch                  [first … end)          both count from ``offset`` if ``fork`` made it
    """

    def __init__(
        self,
        spec: ModelSpec,
        pending: TokenIds,
        offset: int,
        context: tuple[Placement, ...] = (),
        parent: Branch | None = None,
        capacity: int = 0,
        start: int = 0,
    ) -> None:
        self._spec = spec
        self.parent = parent
        self.context: tuple[Placement, ...] = parent.context if parent else context
        self.offset = offset
        self.pending = list(pending)
        self.segment = Segment(spec, capacity or len(pending), start)
        self.probe: Probe | None = None
        self.excluded: Excluded | None = None
        self.tempering: Tempering | None = parent.tempering if parent else None

    @classmethod
    def at(
        cls,
        spec: ModelSpec,
        pending: TokenIds,
        positions: Sequence[int],
        context: tuple[Placement, ...] = (),
    ) -> Branch:
        """Of tokens at any ascending ``positions``; the last of these, one more than there are tokens, is
        where it ends."""
        branch = cls(spec, pending, positions[0], context)
        if positions[-1] - positions[0] != len(pending):
            places = np.array(positions, dtype=np.int64) - positions[0]
            branch.segment = Segment(spec, len(pending), places=places)
        return branch

    @property
    def first(self) -> int:
        """Position of its first token."""
        return self.offset + self.segment.start

    @property
    def computed(self) -> int:
        """Position of its next token: the first whose KV is not there."""
        return self.offset + self.segment.place(self.segment.length)

    @property
    def end(self) -> int:
        """Position behind its last token."""
        return self.offset + self.segment.place(self.segment.length + len(self.pending))

    @property
    def runnable(self) -> bool:
        """It has tokens to compute, and what it sees of its ancestors is computed."""
        child, parent = self, self.parent
        while parent is not None and parent.computed >= child.first:
            child, parent = parent, parent.parent
        return bool(self.pending) and parent is None

    def seen(self) -> list[Placement]:
        """Everything its rows see as a whole: context in order, then ancestors from the root on."""
        ancestors: list[Placement] = []
        child, node = self, self.parent
        while node is not None:
            num_seen = node.segment.num_before(child.first - node.offset)
            ancestors.append(Placement(node.segment, node.offset, num_seen, node.excluded))
            child, node = node, node.parent
        return [p for p in (*self.context, *reversed(ancestors)) if p.num_tokens]

    def fork(self, pending: TokenIds = (), num_seen: int | None = None, capacity: int = 0) -> Branch:
        """A branch on the first ``num_seen`` computed tokens of this one (None: on all). Nothing is
        copied."""
        start = self.segment.start + (self.segment.length if num_seen is None else num_seen)
        return Branch(self._spec, pending, self.offset, parent=self, capacity=capacity, start=start)

    def child(self, capacity: int) -> Branch:
        """An empty branch behind all of this one."""
        return Branch(self._spec, (), self.end, parent=self, capacity=capacity)

    def advance(self, num_tokens: int) -> None:
        """The KV of its next ``num_tokens`` pending tokens is in its segment."""
        self.segment.length += num_tokens
        del self.pending[:num_tokens]

    def absorb_parent(self) -> None:
        """Becomes one with a parent by ``fork`` that nobody else sees any more: the few tokens of its own
        move behind those that it sees of the parent."""
        assert self.parent is not None
        parent, own = self.parent, self.segment
        self.segment = parent.segment
        self.segment.truncate(own.start - parent.segment.start)
        self.segment.join(own)
        self.parent = parent.parent
