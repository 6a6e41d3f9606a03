"""Cutting text that nobody knows, at borders that its content makes."""

from __future__ import annotations

import random

import pytest

from services.gateway.pasted.borders import MOST, PARAGRAPH, pieces
from services.gateway.pasted.text_hash import TextHash

WORDS = ["Brücke", "market", "日本語", "𝔘nicode", "12", "Tambach,", "the", "and.", "so!\n", "💧"]
WITHOUT_ENDS = ["Brücke", "日本語", "the"]


def prose(draw: random.Random, num_words: int, words: list[str] = WORDS) -> str:
    return " ".join(draw.choices(words, k=num_words))


def texts(text: str) -> list[str]:
    return [text[begin:end].strip() for begin, end in pieces(text)]


@pytest.mark.parametrize("seed", range(20))
def test_pieces_are_the_text_and_neither_too_short_nor_too_long(seed: int) -> None:
    draw = random.Random(seed)
    text = "".join(
        prose(draw, draw.randint(0, 400), draw.choice([WORDS, WITHOUT_ENDS]))
        + draw.choice(["", "\n", "\n \n\n"])
        for _ in range(draw.randint(0, 12))
    )
    found = list(pieces(text))
    assert "".join(text[begin:end] for begin, end in found) == text
    sizes = [end - begin for begin, end in found]
    assert all(PARAGRAPH <= size <= MOST for size in sizes[:-1])
    assert all(0 < size <= MOST for size in sizes)
    assert list(pieces(text)) == found


@pytest.mark.parametrize("seed", range(10))
def test_documents_between_empty_lines_have_the_same_pieces_in_any_order(seed: int) -> None:
    draw = random.Random(seed)
    documents = ["\n\n".join(prose(draw, draw.randint(40, 400)) for _ in range(3)) for _ in range(8)]
    first = set(texts("\n\n".join(documents)))
    draw.shuffle(documents)
    again = texts("\n\n".join(documents))
    assert set(again) == first


@pytest.mark.parametrize("words", [WORDS, WITHOUT_ENDS])
@pytest.mark.parametrize("seed", range(5))
def test_behind_an_edit_the_pieces_are_soon_the_same_again(seed: int, words: list[str]) -> None:
    draw = random.Random(seed)
    text = prose(draw, 6000, words)
    first = set(texts(text))
    edited = texts("something else in front. " + text)
    assert sum(piece in first for piece in edited) > len(edited) / 2


@pytest.mark.parametrize("seed", range(10))
def test_a_windows_hash_is_that_of_its_text_alone(seed: int) -> None:
    draw = random.Random(seed)
    text = prose(draw, 40)
    for length in (1, 7, len(text)):
        windows = TextHash(text).windows(length)
        assert [int(one) for one in windows] == [
            int(TextHash(text[i : i + length]).windows(length)[0]) for i in range(len(text) - length + 1)
        ]
    assert len(TextHash(text).windows(len(text) + 1)) == 0
