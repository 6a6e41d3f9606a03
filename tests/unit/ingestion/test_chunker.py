import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.ingestion.chunker import Chunker, HeadingPaths
from services.ingestion.formats.document import Heading, ParsedDocument
from services.ingestion.formats.parse import parse
from services.ingestion.formats.plain import headings_of
from shared.documents import SourceDocument
from shared.errors import ConfigError, UnreadableDocument


class PieceEncoder:
    """Words and single other characters are tokens; the template adds two."""

    def encode_chunk(self, text: str) -> tuple[int, ...]:
        return (1, *(hash(piece) % 997 for piece in re.findall(r"\w{1,4}|[^\w]", text)), 2)


class ByteEncoder:
    def encode_chunk(self, text: str) -> tuple[int, ...]:
        return tuple(text.encode())


prose = st.lists(
    st.sampled_from(
        [
            "A short sentence.",
            "Another one, with a comma!",
            "# Heading",
            "## Sub",
            "- item",
            "日本語。",
            "\n",
            "\n\n",
            "word " * 30,
            "```\ncode\n```",
        ]
    )
    | st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=30),
    max_size=12,
).map("\n".join)


@given(prose, st.integers(12, 60), st.booleans())
def test_chunks_are_spans_of_the_text_with_only_white_space_between(
    text: str, chunk_tokens: int, markdown: bool
) -> None:
    chunks = Chunker(PieceEncoder(), chunk_tokens).split(ParsedDocument(text, markdown=markdown))
    position = 0
    for chunk in chunks:
        assert text[chunk.start : chunk.end] == chunk.text
        assert text[position : chunk.start].strip() == ""
        assert chunk.text.strip()
        position = chunk.end
    assert text[position:].strip() == ""


@given(prose, st.integers(12, 60), st.booleans())
def test_no_chunk_has_too_many_tokens_and_the_ids_are_those_of_its_text(
    text: str, chunk_tokens: int, markdown: bool
) -> None:
    encoder = PieceEncoder()
    for chunk in Chunker(encoder, chunk_tokens).split(ParsedDocument(text, markdown=markdown)):
        assert chunk.token_ids == encoder.encode_chunk(chunk.text)
        assert len(chunk.token_ids) <= chunk_tokens


class Measured(PieceEncoder):
    """Counts the characters that it is asked to encode."""

    def __init__(self) -> None:
        self.num_chars = 0

    def encode_chunk(self, text: str) -> tuple[int, ...]:
        self.num_chars += len(text)
        return super().encode_chunk(text)


@given(prose.map(lambda text: text * 9), st.integers(12, 60), st.booleans())
def test_texts_that_are_measured_by_their_beginning_are_cut_as_others(
    text: str, chunk_tokens: int, markdown: bool
) -> None:
    class ByAll(Chunker):
        def _num_tokens_or_too_many(self, text: str) -> int:
            return self._num_tokens(text)

    document = ParsedDocument(text, markdown=markdown)
    encoder = PieceEncoder()
    assert Chunker(encoder, chunk_tokens).split(document) == ByAll(encoder, chunk_tokens).split(document)


@pytest.mark.parametrize("line", ["x" * 70_000, "a," * 80_000, "word " * 40_000, "日" * 70_000])
@pytest.mark.parametrize("markdown", [False, True])
def test_a_line_costs_what_its_length_is_and_not_the_square_of_it(line: str, markdown: bool) -> None:
    encoder = Measured()
    chunks = Chunker(encoder, 200).split(ParsedDocument(f"before\n{line}\nafter", markdown=markdown))
    assert "".join(chunk.text for chunk in chunks).replace(" ", "").replace("\n", "") == (
        f"before{line}after".replace(" ", "")
    )
    assert encoder.num_chars < 100 * len(line)


@given(prose, st.integers(30, 60), st.integers(12, 30))
def test_cutting_chunks_again_for_another_tokenizer_loses_nothing(text: str, first: int, second: int) -> None:
    document = ParsedDocument(text)
    recut = Chunker(PieceEncoder(), second).recut("", Chunker(PieceEncoder(), first).split(document))
    assert "".join("".join(c.text for c in recut).split()) == "".join(text.split())
    assert all(text[c.start : c.end] == c.text and len(c.token_ids) <= second for c in recut)


def test_cuts_fall_between_sentences() -> None:
    text = "The first sentence is here. The second one follows. The third one ends it."
    chunks = Chunker(PieceEncoder(), 24).split(ParsedDocument(text))
    assert len(chunks) > 1
    assert all(chunk.text.endswith(".") for chunk in chunks)


def test_cuts_fall_on_headings_and_chunks_know_what_stands_above() -> None:
    source = (
        "# Town\n\n"
        + "About the town. " * 3
        + "\n\n## River\n\n"
        + "About the river. " * 3
        + "\n\n## Hill\n\n"
        + "About the hill. " * 3
    )
    parsed = parse(SourceDocument("a.md", source.encode()))
    chunks = Chunker(PieceEncoder(), 40).split(parsed)
    assert [chunk.heading for chunk in chunks] == ["Town", "Town > River", "Town > Hill"]
    assert [chunk.text.split("\n")[0] for chunk in chunks] == ["# Town", "## River", "## Hill"]


@pytest.mark.parametrize("underline", ["", "\n=====", "\n-----"])
@pytest.mark.parametrize("chunk_tokens", [20, 26, 40, 60])
def test_a_heading_of_plain_text_stays_with_what_stands_below_it(underline: str, chunk_tokens: int) -> None:
    names = ("Construction", "Shape of the arches", "Today")
    body = "The citizens paid for it. Swans rest below. It was painted white."
    text = "\n\n".join(f"{name}{underline}\n\n{body}" for name in names)
    chunks = Chunker(PieceEncoder(), chunk_tokens).split(parse(SourceDocument("a.txt", text.encode())))
    assert [text.index(name) for name in names] == [h.start for h in headings_of(text)]
    for chunk in chunks:
        blocks = [block.split("\n")[0] for block in chunk.text.split("\n\n")]
        assert blocks[-1] not in names, f"{chunk.text!r} ends with a heading"
        assert not chunk.text.startswith("Swans") or chunk.heading in names
    assert chunks[0].heading == "Construction"


@given(st.lists(st.sampled_from(["A heading", "A sentence of it.", "word " * 20, "", "===="]), max_size=12))
def test_plain_text_with_headings_is_cut_into_spans_that_fit(lines: list[str]) -> None:
    text = "\n".join(lines)
    chunks = Chunker(PieceEncoder(), 24).split(ParsedDocument(text, headings=headings_of(text)))
    assert all(text[c.start : c.end] == c.text and len(c.token_ids) <= 24 for c in chunks)
    assert "".join("".join(c.text for c in chunks).split()) == "".join(text.split())


@pytest.mark.parametrize(
    "text",
    ["A sentence of it.\n\nMore.", "two lines\nof text\n\nMore.", "- item\n\nMore.", "The end", "x " * 50],
)
def test_what_is_no_heading_is_taken_for_none(text: str) -> None:
    assert headings_of(text) == ()


def test_a_heading_ends_what_stood_deeper() -> None:
    paths = HeadingPaths([Heading(0, 1, "A"), Heading(10, 3, "B"), Heading(20, 2, "C"), Heading(30, 1, "D")])
    assert [paths.at(p) for p in (0, 9, 10, 25, 99)] == ["A", "A", "A > B", "A > C", "D"]
    assert HeadingPaths([Heading(5, 1, "A")]).at(4) == ""


def test_a_template_that_leaves_no_room_is_refused() -> None:
    with pytest.raises(ConfigError, match="chunk_tokens: the chunk template alone has 2 tokens"):
        Chunker(PieceEncoder(), 9)


def test_a_character_longer_than_a_chunk_is_refused() -> None:
    family = "👨‍👩‍👧‍👦" * 2
    chunks = Chunker(ByteEncoder(), 8).split(ParsedDocument(family))
    assert "".join(c.text for c in chunks) == family

    class Wide:
        def encode_chunk(self, text: str) -> tuple[int, ...]:
            return (0,) * (20 * len(text))

    with pytest.raises(UnreadableDocument, match="raise chunk_tokens"):
        Chunker(Wide(), 8).split(ParsedDocument("x"))
