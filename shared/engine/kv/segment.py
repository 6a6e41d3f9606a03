"""KV of contiguous tokens.

A segment's keys stand at local positions 0, 1, 2, …; it has no position of its own in any request, so one
segment serves every request that placed it anywhere (``branch``). Shapes: L layers, K kv heads, T tokens, D
head_dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shared.engine.host_memory import host_tensors
from shared.engine.kv.arrival import Arrival
from shared.engine.model.spec import ModelSpec

_GROWTH_TOKENS = 32
Ints = NDArray[np.int64]
Places = Sequence[int] | Ints


class LayerViews(Sequence[Tensor]):
    """Keys (``first`` 0) or values (1) of ``layers``, [K, T, D] each, in one piece of memory of all layers,
    ``kv_2LKTD``: of each layer keys and then values. A view is made when it is asked for: of a segment that
    is loaded and placed as a whole, nobody does."""

    def __init__(self, kv_2LKTD: Tensor, first: int, layers: range) -> None:
        self.kv_2LKTD = kv_2LKTD
        self._first = first
        self._layers = layers

    def __len__(self) -> int:
        return len(self._layers)

    @overload
    def __getitem__(self, layer: int) -> Tensor: ...
    @overload
    def __getitem__(self, layer: slice) -> LayerViews: ...
    def __getitem__(self, layer: int | slice) -> Tensor | LayerViews:
        if isinstance(layer, slice):
            return LayerViews(self.kv_2LKTD, self._first, self._layers[layer])
        return self.kv_2LKTD[2 * self._layers[layer] + self._first]

    def with_others(self) -> Tensor:
        """Keys and values of these layers, which stand one behind the other, [2 · layers, K, T, D]."""
        assert self._layers.step == 1, "layers stand one behind the other"
        return self.kv_2LKTD[2 * self._layers.start : 2 * self._layers.stop]


def side_by_side(parts: Sequence[Tensor]) -> Tensor | None:
    """Tensors [K, T, D] as one [parts, K, T, D], where they lie one behind the other in one piece of memory,
    so that one copy takes all; None: they do not."""
    first, size = parts[0], parts[0].numel()
    joint = first.untyped_storage().data_ptr() == parts[-1].untyped_storage().data_ptr() and all(
        part.is_contiguous()
        and part.shape == first.shape
        and part.storage_offset() == first.storage_offset() + i * size
        for i, part in enumerate(parts)
    )
    return first.as_strided((len(parts), *first.shape), (size, *first.stride())) if joint else None


def copy_layers(here: Tensor | Sequence[Tensor], k_LKTD: Sequence[Tensor], v_LKTD: Sequence[Tensor]) -> None:
    """Orders the copy of layers' keys and values from pinned memory to a GPU. ``here``: of each layer keys
    and then values."""
    if isinstance(k_LKTD, LayerViews):
        joint = here if isinstance(here, Tensor) else side_by_side(here)
        if joint is not None:
            k_LKTD.with_others().copy_(joint, non_blocking=True)
            return
    for x_KTD, out_KTD in zip(here, interleaved(k_LKTD, v_LKTD), strict=True):
        out_KTD.copy_(x_KTD, non_blocking=True)


def interleaved(k_LKTD: Sequence[Tensor], v_LKTD: Sequence[Tensor]) -> list[Tensor]:
    """Of each layer keys and then values."""
    return [x_KTD for kv in zip(k_LKTD, v_LKTD, strict=True) for x_KTD in kv]


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
    computes it. ``encoding``: of a chunk's, the one whose values it has (``shared.kv_buffers.ENCODINGS``);
    empty: its source does not say, or it was never stored.
    """

    def __init__(self, spec: ModelSpec, capacity: int, start: int = 0, places: Ints | None = None) -> None:
        self._spec = spec
        self.start = start
        self._places = places
        self.length = 0
        self.capacity = capacity
        self.arrival: Arrival | None = None
        self.encoding = ""
        self.k_LKTD, self.v_LKTD = self._buffers(capacity)
        self._addresses: Ints | None = None

    @classmethod
    def arriving(cls, spec: ModelSpec, num_tokens: int) -> Segment:
        """Of ``num_tokens`` whose keys and values are about to be read from storage."""
        segment = cls(spec, num_tokens)
        segment.length = num_tokens
        segment.arrival = Arrival(spec.num_layers)
        return segment

    @property
    def whole(self) -> bool:
        return self.arrival is None or self.arrival.whole

    @property
    def num_bytes(self) -> int:
        return self.capacity * self._spec.kv_bytes_per_token

    def allocations(self) -> list[Tensor]:
        """A tensor of each piece of memory that its buffers lie in."""
        if isinstance(self.k_LKTD, LayerViews):
            return [self.k_LKTD.kv_2LKTD]
        return [*self.k_LKTD, *self.v_LKTD]

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
        if self._addresses is None and isinstance(self.k_LKTD, LayerViews):
            whole = self.k_LKTD.kv_2LKTD
            places = whole.data_ptr() + whole.stride(0) * whole.itemsize * np.arange(len(whole))
            self._addresses = np.concatenate((places[::2], places[1::2]))
        elif self._addresses is None:
            self._addresses = np.array([x.data_ptr() for x in (*self.k_LKTD, *self.v_LKTD)], dtype=np.int64)
        return self._addresses

    def _buffers(self, capacity: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """Keys and values of every layer, in one allocation: of each layer keys and then values. On a GPU
        kernels need each at a multiple of 16 bytes."""
        spec = self._spec
        shape = (spec.num_kv_heads, capacity, spec.head_dim)
        if spec.device.type == "cpu":
            each = host_tensors(2 * spec.num_layers, shape, spec.dtype)
            return each[::2], each[1::2]
        if spec.head_dim * spec.dtype.itemsize % 16:
            each = [
                torch.empty(shape, dtype=spec.dtype, device=spec.device) for _ in range(2 * spec.num_layers)
            ]
            return each[::2], each[1::2]
        whole = torch.empty(2 * spec.num_layers, *shape, dtype=spec.dtype, device=spec.device)
        layers = range(spec.num_layers)
        return LayerViews(whole, 0, layers), LayerViews(whole, 1, layers)

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
