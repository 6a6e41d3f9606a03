"""Brings numbers that the host worked out to the device, without waiting for it: from pinned memory, in the
order of the device's own work."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_ALIGNMENT = 16  # Triton compiles anew for a pointer that is not at a multiple of it
_TYPES = {
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.float32): torch.float32,
    np.dtype(np.float64): torch.float64,
}


class DeviceArrays:
    """Arrays of fixed sizes in one piece of memory, which one copy fills. ``tensors``: flat, each at a
    multiple of 16 bytes; they stay where they are whatever is written."""

    def __init__(self, arrays: Sequence[NDArray[Any]], device: torch.device) -> None:
        self._sizes = [array.nbytes for array in arrays]
        room = [-(-size // _ALIGNMENT) * _ALIGNMENT for size in self._sizes]
        self._starts = [sum(room[:i]) for i in range(len(room))]
        self._device = torch.empty(max(sum(room), _ALIGNMENT), dtype=torch.uint8, device=device)
        self._pinned: deque[tuple[Tensor, torch.cuda.Event]] = deque()  # and when the device has copied it
        self.tensors = tuple(
            self._device[start : start + size].view(_TYPES[array.dtype])
            for start, size, array in zip(self._starts, self._sizes, arrays, strict=True)
        )
        self.write(arrays)

    def write(self, arrays: Sequence[NDArray[Any]]) -> None:
        """Writes new numbers. What the device was told before still reads the old numbers: they are written
        into pinned memory that the device has copied already, or another piece of it."""
        on_gpu = self._device.device.type == "cuda"
        written = self._taken() if on_gpu else self._device
        host = written.numpy()
        for start, size, array in zip(self._starts, self._sizes, arrays, strict=True):
            assert array.nbytes == size, "an array of another size"
            host[start : start + size] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        if on_gpu:
            self._device.copy_(written, non_blocking=True)
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record()
            self._pinned.append((written, copied))

    def _taken(self) -> Tensor:
        if self._pinned and self._pinned[0][1].query():  # type: ignore[no-untyped-call]
            return self._pinned.popleft()[0]
        return torch.empty(len(self._device), dtype=torch.uint8, pin_memory=True)


def integers(values: Sequence[int], device: torch.device) -> Tensor:
    """[len(values)], int64."""
    return brought(torch.tensor(values, dtype=torch.long), device)


def brought(on_host: Tensor, device: torch.device) -> Tensor:
    """The same numbers there."""
    return on_host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else on_host.to(device)
