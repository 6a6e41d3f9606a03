"""Blocks: where a document is parted, and what an edit costs."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.ingestion.blocks import blocks_of
from services.ingestion.chunker import Chunker, TextChunk
from services.ingestion.formats.document import Heading, ParsedDocument
from services.ingestion.formats.markdown import parse_markdown
from shared.kv_types import KvContext

LIMIT = 60


def words(text: str) -> int:
    return len(text.split())


def document(paragraphs: list[str]) -> ParsedDocument:
    return parse_markdown("\n\n".join(paragraphs).encode(), "utf-8")


def paragraph(rng: random.Random, headings: bool = True) -> str:
    if headings and rng.random() < 0.2:
        return f"{'#' * rng.randint(1, 3)} Heading {rng.randrange(10**6)}"
    return " ".join(f"w{rng.randrange(10**6)}" for _ in range(rng.randint(3, 25)))


def texts(parsed: ParsedDocument) -> list[str]:
    return [parsed.text[begin:end] for begin, end in blocks_of(parsed, LIMIT, words)]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 60))
def test_blocks_are_the_text_and_fit(seed: int, count: int) -> None:
    rng = random.Random(seed)
    parsed = document([paragraph(rng) for _ in range(count)])
    blocks = texts(parsed)
    assert "".join(blocks) == parsed.text
    assert all(words(block) <= LIMIT for block in blocks)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), at=st.integers(1, 50))
def test_an_insertion_costs_its_own_block_alone(seed: int, at: int) -> None:
    rng = random.Random(seed)
    paragraphs = [f"# Chapter {i}" if i % 10 == 0 else paragraph(rng, headings=False) for i in range(50)]
    before = texts(document(paragraphs))
    inserted = [*paragraphs[:at], "an inserted paragraph of seven words here", *paragraphs[at:]]
    after = texts(document(inserted))
    near = {i for i, block in enumerate(before) if inserted[at - 1] in block}
    others = {block.strip() for i, block in enumerate(before) if not near & {i, i - 1}}
    assert others <= {block.strip() for block in after}


def test_headings_part_before_paragraphs_do_and_the_outermost_first() -> None:
    body = " ".join(["word"] * 18)
    parsed = document([body, "## Inner", body, "# Outer", body, body])
    assert [block.split("\n")[0] for block in texts(parsed)] == [body, "# Outer"]


def test_a_heading_stays_with_the_text_below_it() -> None:
    rng = random.Random(3)
    for _ in range(20):
        parsed = document([paragraph(rng) for _ in range(40)])
        for block in texts(parsed)[:-1]:
            assert not block.strip().split("\n")[-1].startswith("#")


class Letters:
    """One id per word."""

    def encode_chunk(self, text: str) -> tuple[int, ...]:
        return tuple(hash(word) % 1000 for word in text.split())


def chained(context: KvContext, context_tokens: int = 40, title: str = "A Title") -> list[TextChunk]:
    body = " ".join(f"word{i}" for i in range(30))
    text = f"{body}\n\n{body}\n\nsecond {body}\n\nthird {body}"
    headings = (Heading(0, 1, "Chapter"),)
    return Chunker(Letters(), 32, context, context_tokens).split(ParsedDocument(text, title, headings))


def test_none_stands_behind_nothing() -> None:
    assert [chunk.header for chunk in chained(KvContext.NONE)] == [()] * 4


def test_header_stands_behind_title_and_headings() -> None:
    header = Letters().encode_chunk("A Title\nChapter")
    assert [chunk.header for chunk in chained(KvContext.HEADER)] == [header] * 4


def test_document_goes_on_until_the_context_is_full() -> None:
    headers = [chunk.header is not None for chunk in chained(KvContext.DOCUMENT, 1000)]
    assert headers == [True, False, False, False]
    chunks = chained(KvContext.DOCUMENT, 40)
    in_front = 0
    for chunk in chunks:
        if chunk.header is not None:
            in_front = len(chunk.header)
        assert in_front <= 40
        in_front += len(chunk.token_ids)


def test_a_title_of_any_length_leaves_room() -> None:
    assert len(chained(KvContext.DOCUMENT, 40, "long " * 10_000)[0].header or ()) <= 32
    assert chained(KvContext.DOCUMENT, 40, "")[0].header == Letters().encode_chunk("Chapter")


@pytest.mark.parametrize("context", [KvContext.DOCUMENT, KvContext.HEADER])
@pytest.mark.parametrize("context_tokens", [0, 1, 2, 31, 32])
def test_a_header_is_no_longer_than_what_may_stand_in_front_of_a_chunk(
    context: KvContext, context_tokens: int
) -> None:
    chunks = chained(context, context_tokens, "a title of many words " * 20)
    headers = [chunk.header for chunk in chunks if chunk.header is not None]
    assert headers
    assert all(len(header) == context_tokens for header in headers)
    assert [chunk.text for chunk in chunks] == [chunk.text for chunk in chained(KvContext.NONE)]


def test_texts_that_are_cut_anew_get_chains_too() -> None:
    chunker = Chunker(Letters(), 32, KvContext.DOCUMENT, 1000)
    stored = chained(KvContext.NONE)
    assert [chunk.header is not None for chunk in chunker.recut("A Title", stored)] == [True] + [False] * 3
    back = Chunker(Letters(), 32).recut("A Title", chained(KvContext.DOCUMENT, 1000))
    assert [chunk.header for chunk in back] == [()] * 4
