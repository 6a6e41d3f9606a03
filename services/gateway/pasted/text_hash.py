"""Hashes every window of a text, whatever its length, from one pass over it.

A window's hash is Σ (c[i] + 1) · B^(i − start) modulo 2^64: a rolling hash (Rabin and Karp, 1987), taken from
prefix sums and moved to position 0 by the inverse of B, so that numpy does all windows at once. Whoever knows
B can make two texts collide: equal hashes say where to compare, and no more.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]

_BASE = 0x9E3779B97F4A7C15  # odd, so that it has an inverse
_INVERSE = pow(_BASE, -1, 1 << 64)


class TextHash:
    """Of one text. Takes about 28 bytes a character."""

    def __init__(self, text: str) -> None:
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
        self._sums = np.zeros(len(codes) + 1, np.uint64)
        np.cumsum((codes.astype(np.uint64) + np.uint64(1)) * _powers(_BASE, len(codes)), out=self._sums[1:])
        self._inverses = _powers(_INVERSE, len(codes) + 1)

    def __len__(self) -> int:
        return len(self._sums) - 1

    def windows(self, length: int) -> Hashes:
        """Of every window of so many characters, by its first one; empty: the text is shorter."""
        if length > len(self):
            return np.zeros(0, np.uint64)
        num = len(self) - length + 1
        return (self._sums[length:] - self._sums[:num]) * self._inverses[:num]

    def at(self, starts: Places, length: int) -> Hashes:
        """Of the windows of so many characters that begin there; all of them must end within the text."""
        return (self._sums[starts + length] - self._sums[starts]) * self._inverses[starts]


def _powers(base: int, num: int) -> Hashes:
    powers = np.full(num, base, np.uint64)
    powers[:1] = 1
    return np.cumprod(powers, dtype=np.uint64)
