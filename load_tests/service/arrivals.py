"""Draws or reads when requests arrive: instants in seconds from the start, fixed before the first one is
sent."""

from __future__ import annotations

import random
from pathlib import Path

from shared.errors import InvalidRequest


def poisson(rate: float, count: int, seed: int) -> tuple[float, ...]:
    """A Poisson process of ``rate`` per second, given that it has ``count`` arrivals in ``count / rate``
    seconds.

    So the mean rate is exact, however few requests there are, and the same seed gives the same pattern at
    every rate, faster or slower: rates differ in nothing else. Given their number, a Poisson process's
    instants are independent and uniform.
    """
    draw = random.Random(seed)
    span_s = count / rate
    return tuple(sorted(draw.random() * span_s for _ in range(count)))


def read_trace(path: Path) -> tuple[float, ...]:
    """One instant per line, in seconds, in any order; what follows a comma is ignored, so are empty lines and
    lines with ``#``. The first arrival becomes instant 0.

    Raises:
        InvalidRequest: no such file, or a line is no instant.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InvalidRequest(f"--trace {path}: {error.strerror}") from None
    instants = sorted(
        _instant(path, number, line)
        for number, line in enumerate(lines, 1)
        if line.strip() and "#" not in line
    )
    if not instants:
        raise InvalidRequest(f"--trace {path}: holds no arrival; write one instant in seconds per line")
    return tuple(instant - instants[0] for instant in instants)


def _instant(path: Path, number: int, line: str) -> float:
    try:
        return float(line.partition(",")[0])
    except ValueError:
        raise InvalidRequest(
            f"--trace {path}, line {number}: {line.strip()!r} is no instant in seconds"
        ) from None
