"""Brings numbers that the host worked out to the device, without waiting for it: in the order of the device's
own work.

A kernel reads them out of pinned memory. A copy would stand behind all copies of stored KV that were ordered
before it, whatever their stream: a GPU has one engine for copies from the host.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_ALIGNMENT = 16  # Triton compiles anew for a pointer that is not at a multiple of it
_TYPES = {
    np.dtype(np.bool_): torch.bool,
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.float32): torch.float32,
    np.dtype(np.float64): torch.float64,
}


class _Pinned:
    """Memory of the host that kernels read."""

    def __init__(self, num_bytes: int, device: torch.device) -> None:
        self.memory = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
        self._read = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._seen = torch.as_tensor(_for_device(self.memory), device=device)

    @property
    def is_read(self) -> bool:
        """By all that were told to."""
        done: bool = self._read.query()  # type: ignore[no-untyped-call]
        return done

    def copy_to(self, on_device: Tensor) -> None:
        """``on_device``: as many bytes, a multiple of 16."""
        torch.bitwise_or(self._seen, 0, out=on_device.view(torch.int64))
        self._read.record()


class DeviceArrays:
    """Arrays of fixed sizes in one piece of memory, which one kernel fills. ``tensors``: flat, each at a
    multiple of 16 bytes; they stay where they are whatever is written."""

    def __init__(self, arrays: Sequence[NDArray[Any]], device: torch.device) -> None:
        self._sizes = [array.nbytes for array in arrays]
        room = [-(-size // _ALIGNMENT) * _ALIGNMENT for size in self._sizes]
        self._starts = [sum(room[:i]) for i in range(len(room))]
        self._device = torch.empty(max(sum(room), _ALIGNMENT), dtype=torch.uint8, device=device)
        self._pinned: deque[_Pinned] = deque()
        self.tensors = tuple(
            self._device[start : start + size].view(_TYPES[array.dtype])
            for start, size, array in zip(self._starts, self._sizes, arrays, strict=True)
        )
        self.write(arrays)

    def __del__(self) -> None:
        if pinned := getattr(self, "_pinned", None):
            _keep_until_read(pinned)

    def write(self, arrays: Sequence[NDArray[Any]]) -> None:
        """Writes new numbers. What the device was told before still reads the old numbers: they are written
        into pinned memory that the device has read already, or another piece of it."""
        pinned = self._taken() if self._device.device.type == "cuda" else None
        host = (self._device if pinned is None else pinned.memory).numpy()
        for start, size, array in zip(self._starts, self._sizes, arrays, strict=True):
            assert array.nbytes == size, "an array of another size"
            host[start : start + size] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        if pinned is not None:
            pinned.copy_to(self._device)
            self._pinned.append(pinned)

    def _taken(self) -> _Pinned:
        if self._pinned and self._pinned[0].is_read:
            return self._pinned.popleft()
        return _Pinned(len(self._device), self._device.device)


def integers(values: Sequence[int], device: torch.device) -> Tensor:
    """[len(values)], int64."""
    return brought(torch.tensor(values, dtype=torch.long), device)


def brought(on_host: Tensor, device: torch.device) -> Tensor:
    """The same numbers there."""
    if device.type != "cuda":
        return on_host.to(device)
    return DeviceArrays([on_host.numpy()], device).tensors[0].view(on_host.shape)


def _for_device(pinned: Tensor) -> SimpleNamespace:
    """Pinned memory, at the same address for kernels, as whole numbers of 64 bits."""
    interface = {
        "shape": (pinned.nbytes // 8,),
        "typestr": "<i8",
        "data": (pinned.data_ptr(), False),
        "version": 3,
    }
    return SimpleNamespace(__cuda_array_interface__=interface)


_unread: deque[_Pinned] = deque()
_dropping = threading.Lock()


def _keep_until_read(pinned: Sequence[_Pinned]) -> None:
    """Torch hands pinned memory to others as soon as nobody has it: it does not know what kernels read.
    Never waits: garbage collection may call this anywhere."""
    _unread.extend(pinned)
    if _dropping.acquire(blocking=False):
        try:
            while _unread and _unread[0].is_read:
                _unread.popleft()
        finally:
            _dropping.release()
