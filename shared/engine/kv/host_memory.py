"""Memory for what is about to be filled from storage.

Fresh memory costs more than the reading itself: the system hands it out page by page, at the first touch. In
huge pages (where the system has them to give) that is a fifth.
"""

from __future__ import annotations

import math
import mmap

import torch

_HUGE_PAGE_BYTES = 2 << 20
_ALIGNMENT = 64  # as torch aligns its own


def host_tensors(count: int, shape: tuple[int, ...], dtype: torch.dtype) -> list[torch.Tensor]:
    """``count`` uninitialised tensors of ``shape`` in one piece of memory, which is returned when the last of
    them goes."""
    num_items = math.prod(shape)
    stride = -(-num_items * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT // dtype.itemsize
    flat = _memory(count * stride * dtype.itemsize).view(dtype)
    return [flat[i * stride : i * stride + num_items].view(shape) for i in range(count)]


def _memory(num_bytes: int) -> torch.Tensor:
    if num_bytes < _HUGE_PAGE_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(num_bytes, dtype=torch.uint8)
    mapping = mmap.mmap(-1, num_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapping.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(mapping, dtype=torch.uint8)
