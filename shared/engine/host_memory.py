"""Allocates host memory for keys, values and weights in huge pages, where the system has them to give.

A step reads all of it, and reads huge pages faster: their addresses fit into the processor's tables. Fresh
memory costs more than reading a stored chunk into it: the system hands it out page by page, at the first
touch. In huge pages that is a fifth; and memory of tensors that are gone, a little of which is kept, costs
nothing.
"""

from __future__ import annotations

import math
import mmap
import threading
import weakref

import numpy as np
import torch

_HUGE_PAGE_BYTES = 2 << 20
_KEPT_BYTES = 256 << 20
_ALIGNMENT = 64  # as torch aligns its own


def host_tensors(count: int, shape: tuple[int, ...], dtype: torch.dtype) -> list[torch.Tensor]:
    """``count`` uninitialised tensors of ``shape`` in one piece of memory, which is returned when the last of
    them goes."""
    num_items = math.prod(shape)
    stride = -(-num_items * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT // dtype.itemsize
    flat = _memory(count * stride * dtype.itemsize).view(dtype)
    return list(flat.view(count, stride)[:, :num_items].view(count, *shape).unbind())


class HostArena:
    """Memory for tensors that stay until all of them go, most of them smaller than a huge page. Not
    thread-safe."""

    def __init__(self, at_once_bytes: int = 64 << 20) -> None:
        """``at_once_bytes``: what it asks the system for when room is out, or more for a larger tensor."""
        self._at_once_bytes = at_once_bytes
        self._room = torch.empty(0, dtype=torch.uint8)

    def moved(self, tensor: torch.Tensor) -> torch.Tensor:
        """``tensor``, here."""
        num_bytes = -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
        if len(self._room) < num_bytes:
            self._room = _memory(max(num_bytes, self._at_once_bytes))
        part, self._room = self._room[: tensor.nbytes], self._room[num_bytes:]
        return part.view(tensor.dtype).view(tensor.shape).copy_(tensor)


class FreedMemory:
    """Mappings that nobody uses any more, for those to come. Beyond ``capacity_bytes`` the longest freed go.
    Thread-safe."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._mappings: list[mmap.mmap] = []
        self._lock = threading.Lock()

    @property
    def num_bytes(self) -> int:
        with self._lock:
            return sum(map(len, self._mappings))

    def take(self, num_bytes: int) -> mmap.mmap | None:
        """One of this size, whatever it contains."""
        with self._lock:
            for i, mapping in enumerate(self._mappings):
                if len(mapping) == num_bytes:
                    return self._mappings.pop(i)
        return None

    def give(self, mapping: mmap.mmap) -> None:
        """Never waits: garbage collection may call this in the middle of ``take``. The mapping goes then."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._mappings.append(mapping)
            while sum(map(len, self._mappings)) > self._capacity_bytes:
                del self._mappings[0]
        finally:
            self._lock.release()


_freed = FreedMemory(_KEPT_BYTES)


def _memory(num_bytes: int) -> torch.Tensor:
    if num_bytes < _HUGE_PAGE_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(num_bytes, dtype=torch.uint8)
    whole_pages = -(-num_bytes // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES
    mapping = _freed.take(whole_pages)
    if mapping is None:
        mapping = mmap.mmap(-1, whole_pages, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        mapping.madvise(mmap.MADV_HUGEPAGE, 0, num_bytes // _HUGE_PAGE_BYTES * _HUGE_PAGE_BYTES)
    owner = np.frombuffer(mapping, np.uint8)  # lives as long as a tensor in it
    weakref.finalize(owner, _freed.give, mapping).atexit = False
    return torch.from_numpy(owner)[:num_bytes]
