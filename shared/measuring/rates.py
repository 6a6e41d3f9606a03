"""Measures what this machine can do at most: matrix products and memory reads, in the run that compares
itself with them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from shared.engine.host_memory import host_tensors

REPEATS = 5
_SMALLEST, _LONGEST_S = 256, 1.0
"""Of products of matrices: rows, and how long one may take. Torch computes those of bf16 at a fiftieth of
float32's rate or less where the CPU has no AVX-512."""


@dataclass(frozen=True, slots=True)
class Rates:
    """``flops``: of matrix products per second, in bf16 or float32, whichever is faster here;
    ``bytes_per_s``: reads from memory. Best of several."""

    flops: float
    bytes_per_s: float

    def limit_s(self, flops: float, num_bytes: float) -> float:
        """No machine with these rates can be faster: arithmetic or memory, whichever takes longer."""
        return max(flops / self.flops, num_bytes / self.bytes_per_s)


def measure_rates(device: str = "cpu") -> Rates:
    size, num_bytes = 2048 if device == "cpu" else 8192, 512 * 2**20
    flops = max(_flops(size, dtype, device) for dtype in (torch.bfloat16, torch.float32))
    data = _ones(num_bytes // 4, device)
    return Rates(flops, num_bytes / best_s(data.sum, device))


def _flops(largest: int, dtype: torch.dtype, device: str) -> float:
    """Of products of square matrices, ``largest`` or as large as does not take long."""
    size = _SMALLEST
    while size < largest and 8 * best_s(_product(size, dtype, device), device) < _LONGEST_S:
        size *= 2
    return 2 * size**3 / best_s(_product(size, dtype, device), device)


def _product(size: int, dtype: torch.dtype, device: str) -> Callable[[], object]:
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    return lambda: torch.mm(a, b)


def _ones(count: int, device: str) -> torch.Tensor:
    """On a CPU in huge pages, as weights and KV lie there: ordinary ones are read more slowly."""
    if device != "cpu":
        return torch.ones(count, device=device)
    return host_tensors(1, (count,), torch.float32)[0].fill_(1.0)


def best_s(work: Callable[[], object], device: str = "cpu") -> float:
    """The shortest of several times that ``work`` takes."""
    times_s = []
    for _ in range(REPEATS):
        started = now_s(device)
        work()
        times_s.append(now_s(device) - started)
    return min(times_s)


def now_s(device: str) -> float:
    """The clock, read when ``device`` has done all it was told: accelerators run behind the program."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter()
