"""Says how long OpenMP's threads spin, before torch loads them."""

from __future__ import annotations

import os

_SPINS = "10000"


def spin_briefly() -> None:
    """Threads of torch's operations sleep after some 0.1 ms without work, where they would spin for
    milliseconds on processors that the kernels' own threads (``engine/threads.c``) need. Of no effect once
    torch is imported; ``GOMP_SPINCOUNT`` in the environment goes first."""
    os.environ.setdefault("GOMP_SPINCOUNT", _SPINS)
