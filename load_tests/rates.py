"""What this machine can do at most: matrix products and memory reads, measured by the run that compares itself with them."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

REPEATS = 5


@dataclass(frozen=True, slots=True)
class Rates:
    """``flops``: bf16 matrix products per second; ``bytes_per_s``: reads from memory. Best of several."""

    flops: float
    bytes_per_s: float


def measure_rates() -> Rates:
    return Rates(_matmul_rate(2048), _read_rate(512 * 2**20))


def _matmul_rate(size: int) -> float:
    a, b = (torch.randn(size, size).bfloat16() for _ in range(2))
    return 2 * size**3 / min(_seconds(lambda: torch.mm(a, b)) for _ in range(REPEATS))


def _read_rate(num_bytes: int) -> float:
    data = torch.ones(num_bytes // 4, dtype=torch.float32)
    return num_bytes / min(_seconds(data.sum) for _ in range(REPEATS))


def _seconds(work: object) -> float:
    assert callable(work)
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
