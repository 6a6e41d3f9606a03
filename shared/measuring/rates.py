"""What this machine can do at most: matrix products and memory reads, measured by the run that compares
itself with them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

REPEATS = 5


@dataclass(frozen=True, slots=True)
class Rates:
    """``flops``: bf16 matrix products per second; ``bytes_per_s``: reads from memory. Best of several."""

    flops: float
    bytes_per_s: float


def measure_rates(device: str = "cpu") -> Rates:
    size = 2048 if device == "cpu" else 8192
    return Rates(_matmul_rate(size, device), _read_rate(512 * 2**20, device))


def _matmul_rate(size: int, device: str) -> float:
    a, b = (torch.randn(size, size, device=device).bfloat16() for _ in range(2))
    return 2 * size**3 / min(_seconds(lambda: torch.mm(a, b), device) for _ in range(REPEATS))


def _read_rate(num_bytes: int, device: str) -> float:
    data = torch.ones(num_bytes // 4, dtype=torch.float32, device=device)
    return num_bytes / min(_seconds(data.sum, device) for _ in range(REPEATS))


def _seconds(work: Callable[[], object], device: str) -> float:
    synchronize(device)
    started = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - started


def synchronize(device: str) -> None:
    """Accelerators run behind the program: to be called before the clock is read."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()
