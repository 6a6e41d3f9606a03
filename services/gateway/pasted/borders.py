"""Cuts a text into pieces at borders that its own content makes.

A border depends on what stands within a piece's length of it and on nothing further away: two texts that have
a passage in common are cut alike within it, from the first border that both have on. An empty line is a
border wherever the piece in front is long enough, so that documents that are pasted with empty lines between
them meet at one; nothing is cut shortly in front of it. Otherwise the end of a line or of a sentence is, if
its surroundings hash to one value in four (content-defined chunking, as of Muthitacharoen et al., 2001), and
where nothing ends for too long, a word does, by one hash in 32 or else the least one.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator

import numpy as np

from services.gateway.pasted.text_hash import Hashes, TextHash

PARAGRAPH, LEAST, MOST = 64, 512, 2048
"""Characters of a piece: at least, of one that ends with a paragraph and of any other, and at most. The last
piece of a text may be shorter."""

_WINDOW = 32
_EMPTY_LINE = re.compile(r"\n[^\S\n]*\n\s*")
_END = re.compile(r"\n\s*|[.!?][\"')\]]*\s+|[。！？]")
_WORD = re.compile(r"\s+")
_ONE_IN_FOUR, _ONE_IN_32 = np.uint64(62), np.uint64(59)  # the top two bits, and five


def pieces(text: str) -> Iterator[tuple[int, int]]:
    """Begin and end of each, side by side over the whole text. Linear in its length."""
    if not text:
        return
    mixed = _mixed(TextHash(text).windows(_WINDOW))
    empty = [match.end() for match in _EMPTY_LINE.finditer(text)]
    empty.append(len(text))
    ends, words = ([match.end() for match in pattern.finditer(text)] for pattern in (_END, _WORD))
    begin = 0
    while begin < len(text):
        cut = _border(mixed, empty, ends, words, begin)
        yield begin, cut
        begin = cut


def _border(mixed: Hashes, empty: list[int], ends: list[int], words: list[int], begin: int) -> int:
    """The first one behind ``begin``. ``empty``: where a paragraph ends, the last one of the text included.
    None comes so shortly in front of such a place that what is between them would be no piece."""
    least, most = begin + LEAST, begin + MOST
    paragraph = next(iter(_within(empty, begin + PARAGRAPH, most + PARAGRAPH)), empty[-1])
    most = min(most, paragraph - PARAGRAPH) if paragraph <= most + PARAGRAPH else most
    if cut := _first(mixed, near := _within(ends, least, most), _ONE_IN_FOUR):
        return cut
    if paragraph <= begin + MOST:
        return paragraph
    if not near and (cut := _first(mixed, near := _within(words, least, most), _ONE_IN_32)):
        return cut
    if near:
        return min(near, key=lambda place: int(mixed[place - _WINDOW]))
    return least + int(np.argmin(mixed[least - _WINDOW : most - _WINDOW + 1]))


def _first(mixed: Hashes, places: list[int], shift: np.uint64) -> int:
    """Of those whose surroundings hash to nothing but zeros; 0: there is none."""
    return next((place for place in places if not mixed[place - _WINDOW] >> shift), 0)


def _within(places: list[int], least: int, most: int) -> list[int]:
    return places[bisect_left(places, least) : bisect_left(places, most + 1)]


def _mixed(hashes: Hashes) -> Hashes:
    """So that the top bits depend on every character (the finalizer of SplitMix64)."""
    hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return hashes ^ (hashes >> np.uint64(31))
