"""Finding known chunks in a text, against a search that compares every text at every place."""

from __future__ import annotations

import random
import time
from itertools import pairwise

import pytest

from services.gateway.pasted.known_chunks import BORDER, KnownChunks, hashes_of

WORDS = ["Brücke", "market", "日本語", "𝔘nicode", "e\u0301tude", "12", "Tambach,", "the", "\u2028", "💧"]


def passage(draw: random.Random, num_words: int) -> str:
    return " ".join(draw.choices(WORDS, k=num_words))


def slow(text: str, documents: list[list[str]]) -> list[tuple[int, int, set[tuple[int, int]]]]:
    """The first of what overlaps, the longest of what begins together."""
    known = [
        (chunk.strip(), (d, c))
        for d, document in enumerate(documents)
        for c, chunk in enumerate(document)
        if len(chunk.strip()) >= BORDER
    ]
    found, at = [], 0
    while at < len(text):
        here = [chunk for chunk, _ in known if text.startswith(chunk, at)]
        if here:
            longest = max(here, key=len)
            found.append((at, at + len(longest), {where for chunk, where in known if chunk == longest}))
            at += len(longest)
        else:
            at += 1
    return found


@pytest.mark.parametrize("seed", range(60))
def test_what_is_found_is_what_comparing_everything_everywhere_finds(seed: int) -> None:
    draw = random.Random(seed)
    common = passage(draw, 30)  # chunks that begin alike, one within another, and the same one twice
    documents = [
        [
            draw.choice(["", " ", "\n"]) + draw.choice([common, ""]) + passage(draw, draw.randint(1, 40))
            for _ in range(draw.randint(0, 5))
        ]
        for _ in range(draw.randint(1, 4))
    ]
    chunks = [chunk for document in documents for chunk in document]
    documents += [[common], draw.choices(chunks, k=2) if chunks else []]
    chunks += [common]
    parts = []
    for _ in range(draw.randint(1, 8)):
        part = draw.choice(chunks)
        if draw.random() < 0.3:  # an edit
            place = draw.randrange(len(part) + 1)
            part = part[:place] + draw.choice(["x", "", "\n"]) + part[place + draw.randint(0, 2) :]
        if draw.random() < 0.3:
            part = part[: draw.randrange(len(part) + 1)]
        parts += [part, draw.choice(["", " ", passage(draw, 3)])]
    text = "".join(parts)
    found = KnownChunks([hashes_of(document) for document in documents]).find(text)
    assert [(one.begin, one.end, set(one.alike)) for one in found] == slow(text, documents)
    assert all(one.end <= other.begin for one, other in pairwise(found))


def test_nothing_is_found_of_nothing() -> None:
    text = "a" * 200
    assert KnownChunks(()).find(text) == []
    assert KnownChunks([hashes_of([]), hashes_of(["short", "", " "])]).find(text) == []
    assert KnownChunks([hashes_of([text])]).find("") == []
    assert KnownChunks([hashes_of([text])]).find(text[:-1]) == []


def test_a_text_of_a_million_alike_characters_is_looked_through_in_linear_time() -> None:
    documents = [hashes_of(["a" * (BORDER + i) + "b" for i in range(200)])]
    began = time.process_time()
    assert KnownChunks(documents).find("a" * 1_000_000) == []
    assert time.process_time() - began < 20  # comparing all at every place takes minutes


def test_half_a_surrogate_pair_is_text() -> None:
    text = "\ud800" * 100
    assert [one.end for one in KnownChunks([hashes_of([text])]).find(f"x{text}")] == [101]
