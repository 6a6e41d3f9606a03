"""Memory for what is about to be filled from storage.

Fresh memory costs more than the reading itself: the system hands it out page by page, at the first touch. In
huge pages (where the system has them to give) that is a fifth; and memory of tensors that are gone, a little
of which is kept, costs nothing.
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
        mapping.madvise(mmap.MADV_HUGEPAGE)
    owner = np.frombuffer(mapping, np.uint8)  # lives as long as a tensor in it
    weakref.finalize(owner, _freed.give, mapping).atexit = False
    return torch.from_numpy(owner)[:num_bytes]
