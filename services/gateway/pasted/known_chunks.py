"""Finds where a text holds chunks of known documents: by hashes, of which it keeps 40 bytes a chunk.

A chunk is known by its first ``BORDER`` characters and, where these are, by all of it. White space around it
does not count. Of chunks that overlap the first one is found, of those that begin together the longest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from services.gateway.pasted.text_hash import Hashes, Places, TextHash

BORDER = 64
"""Characters. A chunk that has fewer is not recognised."""

_MOST_PER_CHARACTER = 16  # comparisons; a border that is everywhere is looked at last
_MOST_ALIKE = 8


@dataclass(frozen=True, slots=True)
class DocumentHashes:
    """``numbers``: of its chunks that can be known; the other fields, one value each, say what they begin
    with, what they are, and of how many characters."""

    numbers: Places
    borders: Hashes
    wholes: Hashes
    lengths: Places

    @property
    def num_bytes(self) -> int:
        return sum(a.nbytes for a in (self.numbers, self.borders, self.wholes, self.lengths))


def hashes_of(texts: Sequence[str]) -> DocumentHashes:
    """``texts``: of a document's chunks."""
    stripped = [(number, text.strip()) for number, text in enumerate(texts)]
    known = [(number, len(text), TextHash(text)) for number, text in stripped if len(text) >= BORDER]
    first = np.zeros(1, np.int64)
    return DocumentHashes(
        np.array([number for number, _, _ in known], np.int64),
        np.array([hashed.at(first, BORDER)[0] for _, _, hashed in known], np.uint64),
        np.array([hashed.at(first, length)[0] for _, length, hashed in known], np.uint64),
        np.array([length for _, length, _ in known], np.int64),
    )


@dataclass(frozen=True, slots=True)
class Likely:
    """A place that has the hash of a chunk. ``alike``: (document, chunk) by their numbers, of which it may be
    any."""

    begin: int
    end: int
    alike: tuple[tuple[int, int], ...]


class KnownChunks:
    """Of several documents; never changes."""

    def __init__(self, documents: Sequence[DocumentHashes]) -> None:
        sizes = [len(one.numbers) for one in documents]
        order = np.argsort(_joined([one.borders for one in documents], np.uint64), kind="stable")
        self._borders = _joined([one.borders for one in documents], np.uint64)[order]
        self._wholes = _joined([one.wholes for one in documents], np.uint64)[order]
        self._lengths = _joined([one.lengths for one in documents], np.int64)[order]
        self._chunks = _joined([one.numbers for one in documents], np.int64)[order]
        self._documents = np.repeat(np.arange(len(documents)), sizes)[order]

    def __len__(self) -> int:
        return len(self._borders)

    def find(self, text: str) -> list[Likely]:
        """In the order of the text, apart from each other. Linear in its length, whatever is known."""
        if not len(self) or len(text) < BORDER:
            return []
        begins, lengths, rows = self._fitting(TextHash(text))
        return list(self._apart(begins, lengths, rows))

    def _fitting(self, hashed: TextHash) -> tuple[Places, Places, Places]:
        """Begin, length and a row of everything that fits."""
        windows = hashed.windows(BORDER)
        rows = np.minimum(np.searchsorted(self._borders, windows), len(self) - 1)
        starts = np.flatnonzero(self._borders[rows] == windows)
        found: list[tuple[Places, Places, Places]] = []
        budget = _MOST_PER_CHARACTER * len(hashed)
        for border, places in sorted(_grouped(windows[starts], starts), key=lambda one: len(one[1])):
            low, high = (
                np.searchsorted(self._borders, border),
                np.searchsorted(self._borders, border, "right"),
            )
            for length in np.unique(self._lengths[low:high])[::-1]:
                if budget < 0:
                    break
                budget -= len(places)
                of_length = low + np.flatnonzero(self._lengths[low:high] == length)
                found += self._whole(hashed, places[places + length <= len(hashed)], int(length), of_length)
        begins, lengths, of_rows = ([one[column] for one in found] for column in range(3))
        return _joined(begins, np.int64), _joined(lengths, np.int64), _joined(of_rows, np.int64)

    def _whole(
        self, hashed: TextHash, places: Places, length: int, rows: Places
    ) -> Iterator[tuple[Places, Places, Places]]:
        """``rows``: chunks of this length."""
        by_hash = rows[np.argsort(self._wholes[rows], kind="stable")]
        wholes = self._wholes[by_hash]
        hashes = hashed.at(places, length)
        at = np.minimum(np.searchsorted(wholes, hashes), len(wholes) - 1)
        fits = wholes[at] == hashes
        begins = places[fits]
        yield begins, np.full(len(begins), length, np.int64), by_hash[at[fits]]

    def _apart(self, begins: Places, lengths: Places, rows: Places) -> Iterator[Likely]:
        order = np.lexsort((-lengths, begins))
        begins, lengths, rows = begins[order], lengths[order], rows[order]
        i = 0
        while i < len(begins):
            begin, length = int(begins[i]), int(lengths[i])
            yield Likely(begin, begin + length, self._alike(int(rows[i])))
            i = int(np.searchsorted(begins, begin + length))

    def _alike(self, row: int) -> tuple[tuple[int, int], ...]:
        low = np.searchsorted(self._borders, self._borders[row])
        high = np.searchsorted(self._borders, self._borders[row], "right")
        same = (self._wholes[low:high] == self._wholes[row]) & (self._lengths[low:high] == self._lengths[row])
        found = low + np.flatnonzero(same)[:_MOST_ALIKE]
        return tuple((int(self._documents[i]), int(self._chunks[i])) for i in found)


def _grouped(keys: Hashes, places: Places) -> Iterator[tuple[np.uint64, Places]]:
    """The places of each key."""
    if not len(keys):
        return
    order = np.argsort(keys, kind="stable")
    values, firsts = np.unique(keys[order], return_index=True)
    yield from zip(values, np.split(places[order], firsts[1:]), strict=True)


def _joined(columns: list[npt.NDArray[Any]], dtype: type) -> npt.NDArray[Any]:
    return np.concatenate([np.zeros(0, dtype), *columns])
