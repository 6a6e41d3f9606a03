"""KV of contiguous tokens, and where a request places it.

A segment's keys stand at local positions 0, 1, 2, …; it has no position of its own in any request, so one segment serves every
request that placed it anywhere. Shapes: L layers, K kv heads, T tokens, D head_dim.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from shared.engine.arrival import Arrival
from shared.engine.exclusion import Excluded
from shared.engine.host_memory import host_tensors

if TYPE_CHECKING:
    from shared.engine.model import ModelSpec

_GROWTH_TOKENS = 32


class Segment:
    """Growing while its branch is, immutable once shared. Buffers hold ``capacity`` tokens, the first ``length`` are valid::

    k[layer]  [K, capacity, D]
              |<-- length -->|<- room ->|

    ``arrival``: of a segment that is being read, which layers are there; None: it is whole, or its owner computes it.
    """

    def __init__(self, spec: ModelSpec, capacity: int) -> None:
        self._spec = spec
        self.length = 0
        self.capacity = capacity
        self.arrival: Arrival | None = None
        self.k_LKTD = [self._buffer(capacity) for _ in range(spec.num_layers)]
        self.v_LKTD = [self._buffer(capacity) for _ in range(spec.num_layers)]
        self._addresses: NDArray[np.int64] | None = None

    @classmethod
    def arriving(cls, spec: ModelSpec, num_tokens: int) -> Segment:
        """Of ``num_tokens`` whose keys and values are about to be read from storage."""
        segment = cls(spec, 0)
        segment.length = segment.capacity = num_tokens
        segment.arrival = Arrival(spec.num_layers)
        shape = (spec.num_kv_heads, num_tokens, spec.head_dim)
        if spec.device.type == "cpu":
            tensors = host_tensors(2 * spec.num_layers, shape, spec.dtype)
            segment.k_LKTD, segment.v_LKTD = tensors[::2], tensors[1::2]
        else:
            segment.k_LKTD, segment.v_LKTD = ([segment._buffer(num_tokens) for _ in range(spec.num_layers)] for _ in "kv")
        return segment

    @property
    def whole(self) -> bool:
        return self.arrival is None or self.arrival.whole

    @property
    def num_bytes(self) -> int:
        return self.capacity * self._spec.kv_bytes_per_token

    def reserve(self, num_tokens: int) -> None:
        """Makes room for ``num_tokens`` more; doubles, so that growth costs a constant number of copies per token."""
        needed = self.length + num_tokens
        if needed <= self.capacity:
            return
        self.capacity = max(needed, min(2 * self.capacity, self.capacity + 1024), _GROWTH_TOKENS)
        self.k_LKTD = [self._grown(k) for k in self.k_LKTD]
        self.v_LKTD = [self._grown(v) for v in self.v_LKTD]
        self._addresses = None

    def keys(self, layer: int, length: int) -> torch.Tensor:
        return self.k_LKTD[layer][:, :length]

    def values(self, layer: int, length: int) -> torch.Tensor:
        return self.v_LKTD[layer][:, :length]

    def move(self, device: torch.device) -> None:
        """To host memory when its request is paused, and back."""
        self.k_LKTD = [k.to(device) for k in self.k_LKTD]
        self.v_LKTD = [v.to(device) for v in self.v_LKTD]
        self._addresses = None

    def addresses(self) -> NDArray[np.int64]:
        """Where in memory each layer's keys and then each layer's values begin, [2 · L]; until the buffers grow or move."""
        if self._addresses is None:
            self._addresses = np.array([x.data_ptr() for x in (*self.k_LKTD, *self.v_LKTD)], dtype=np.int64)
        return self._addresses

    def _buffer(self, capacity: int) -> torch.Tensor:
        spec = self._spec
        return torch.empty(spec.num_kv_heads, capacity, spec.head_dim, dtype=spec.dtype, device=spec.device)

    def _grown(self, old_KTD: torch.Tensor) -> torch.Tensor:
        new_KTD = self._buffer(self.capacity)
        new_KTD[:, : self.length] = old_KTD[:, : self.length]
        return new_KTD


@dataclass(frozen=True, slots=True)
class Placement:
    """A segment whose key ``j`` stands at position ``offset + j`` for this request. ``excluded``: keys that it does not see."""

    segment: Segment
    offset: int
    excluded: Excluded | None = None


class Branch:
    """A private, growing run of tokens: a question, a generated answer, or a chunk that is being computed.

    Its rows see the placements of its context, all its ancestors' tokens, and its own tokens up to themselves. ``pending`` are
    tokens whose KV is not computed yet; the branch ends at position ``offset + segment.length + len(pending)``.
    """

    def __init__(
        self,
        spec: ModelSpec,
        pending: tuple[int, ...],
        offset: int,
        context: tuple[Placement, ...] = (),
        parent: Branch | None = None,
        capacity: int = 0,
    ) -> None:
        self.parent = parent
        self.context: tuple[Placement, ...] = parent.context if parent else context
        self.offset = offset
        self.pending = list(pending)
        self.segment = Segment(spec, capacity or len(pending))

    @property
    def end(self) -> int:
        return self.offset + self.segment.length + len(self.pending)

    def seen(self) -> list[Placement]:
        """Everything its rows see as a whole: context in order, then ancestors from the root on."""
        ancestors: list[Placement] = []
        node = self.parent
        while node is not None:
            ancestors.append(Placement(node.segment, node.offset))
            node = node.parent
        return [p for p in (*self.context, *reversed(ancestors)) if p.segment.length]
