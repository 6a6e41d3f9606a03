"""KV of contiguous tokens, and where a request places it.

A segment's keys stand at local positions 0, 1, 2, …; it has no position of its own in any request, so one
segment serves every request that placed it anywhere. Shapes: L layers, K kv heads, T tokens, D head_dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shared.engine.kv.arrival import Arrival
from shared.engine.kv.exclusion import Excluded
from shared.engine.kv.host_memory import host_tensors
from shared.engine.model.spec import ModelSpec
from shared.identity import TokenIds

_GROWTH_TOKENS = 32
Ints = NDArray[np.int64]
Places = Sequence[int] | Ints


class Segment:
    """Growing while its branch is, immutable once shared. Buffers hold ``capacity`` tokens, the first
    ``length`` are valid::

    k[layer]  [K, capacity, D]
              |<-- length -->|<- room ->|

    ``start``: local position of the first token. Not 0 for one that goes on where another is left: both then
    count from the same origin, and can be joined without rotating anything.
    ``places``: local positions of tokens that do not stand one behind the other, ascending, and one more:
    where what follows on the segment begins. None: start, start + 1, ….
    ``arrival``: of a segment that is being read, which layers are there; None: it is whole, or its owner
    computes it.
    """

    def __init__(self, spec: ModelSpec, capacity: int, start: int = 0, places: Ints | None = None) -> None:
        self._spec = spec
        self.start = start
        self._places = places
        self.length = 0
        self.capacity = capacity
        self.arrival: Arrival | None = None
        self.k_LKTD, self.v_LKTD = self._buffers(capacity)
        self._addresses: Ints | None = None

    @classmethod
    def arriving(cls, spec: ModelSpec, num_tokens: int) -> Segment:
        """Of ``num_tokens`` whose keys and values are about to be read from storage."""
        on_host = spec.device.type == "cpu"
        segment = cls(spec, 0 if on_host else num_tokens)
        if on_host:
            shape = (spec.num_kv_heads, num_tokens, spec.head_dim)
            tensors = host_tensors(2 * spec.num_layers, shape, spec.dtype)
            segment.k_LKTD, segment.v_LKTD = tensors[::2], tensors[1::2]
        segment.length = segment.capacity = num_tokens
        segment.arrival = Arrival(spec.num_layers)
        return segment

    @property
    def whole(self) -> bool:
        return self.arrival is None or self.arrival.whole

    @property
    def num_bytes(self) -> int:
        return self.capacity * self._spec.kv_bytes_per_token

    def places(self, begin: int, end: int) -> Places:
        """Local positions of tokens [begin, end); a range where they stand one behind the other."""
        if self._places is None:
            return range(self.start + begin, self.start + end)
        places_T = self._places[begin:end]
        consecutive = len(places_T) > 0 and places_T[-1] - places_T[0] == len(places_T) - 1
        return range(int(places_T[0]), int(places_T[-1]) + 1) if consecutive else places_T

    def place(self, token: int) -> int:
        """Local position of a token, or of the one behind the last."""
        return self.start + token if self._places is None else int(self._places[token])

    def num_before(self, place: int) -> int:
        """The number of its tokens, computed or not, that stand in front of a local position."""
        return place - self.start if self._places is None else int(np.searchsorted(self._places[:-1], place))

    def reserve(self, num_tokens: int) -> None:
        """Makes room for ``num_tokens`` more; doubles, so that growth costs a constant number of copies per
        token."""
        needed = self.length + num_tokens
        if needed <= self.capacity:
            return
        self._resize(max(needed, min(2 * self.capacity, self.capacity + 1024), _GROWTH_TOKENS))

    def truncate(self, length: int) -> None:
        """Forgets what is behind ``length``; buffers that are mostly room afterwards shrink."""
        self.length = length
        if self.capacity - length > max(length, _GROWTH_TOKENS):
            self._resize(length)

    def join(self, tail: Segment) -> None:
        """Takes over the tokens of ``tail``, which goes on where this one ends."""
        assert tail.start == self.start + self.length, "segments that do not meet"
        self.reserve(tail.length)
        room = slice(self.length, self.length + tail.length)
        for ours, theirs in ((self.k_LKTD, tail.k_LKTD), (self.v_LKTD, tail.v_LKTD)):
            for to_KTD, from_KTD in zip(ours, theirs, strict=True):
                to_KTD[:, room] = from_KTD[:, : tail.length]
        self.length += tail.length

    def move(self, device: torch.device) -> None:
        """To host memory when its request is paused, and back."""
        k_LKTD, v_LKTD = ([x_KTD.to(device) for x_KTD in kv] for kv in (self.k_LKTD, self.v_LKTD))
        self.k_LKTD, self.v_LKTD = k_LKTD, v_LKTD
        self._addresses = None

    def addresses(self) -> Ints:
        """The places in memory where each layer's keys and then each layer's values begin, [2 · L]; until
        other buffers take their place."""
        if self._addresses is None:
            self._addresses = np.array([x.data_ptr() for x in (*self.k_LKTD, *self.v_LKTD)], dtype=np.int64)
        return self._addresses

    def _buffers(self, capacity: int) -> tuple[list[Tensor], list[Tensor]]:
        """Keys and values of every layer. On a GPU in one allocation, of each layer keys and then values;
        kernels need each at a multiple of 16 bytes."""
        spec = self._spec
        shape = (spec.num_kv_heads, capacity, spec.head_dim)
        if spec.device.type == "cpu" or spec.head_dim * spec.dtype.itemsize % 16:
            each = [
                torch.empty(shape, dtype=spec.dtype, device=spec.device) for _ in range(2 * spec.num_layers)
            ]
        else:
            whole = torch.empty(2 * spec.num_layers, *shape, dtype=spec.dtype, device=spec.device)
            each = list(whole.unbind(0))
        return each[::2], each[1::2]

    def _resize(self, capacity: int) -> None:
        """All buffers, or none if there is no room for one."""
        new = self._buffers(capacity)
        for to_LKTD, from_LKTD in zip(new, (self.k_LKTD, self.v_LKTD), strict=True):
            torch._foreach_copy_(
                [x_KTD[:, : self.length] for x_KTD in to_LKTD],
                [x_KTD[:, : self.length] for x_KTD in from_LKTD],
            )
        self.k_LKTD, self.v_LKTD = new
        self.capacity = capacity
        self._addresses = None


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

    def absorb_parent(self) -> None:
        """Becomes one with a parent by ``fork`` that nobody else sees any more: the few tokens of its own
        move behind those that it sees of the parent."""
        assert self.parent is not None
        parent, own = self.parent, self.segment
        self.segment = parent.segment
        self.segment.truncate(own.start - parent.segment.start)
        self.segment.join(own)
        self.parent = parent.parent
