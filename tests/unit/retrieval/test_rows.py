from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.retrieval.rows import hit_of, revision_of, rows_of
from shared.errors import InvalidRequest
from shared.search import Block, IndexedChunk, IndexedDocument

text = st.text(st.characters(codec="utf-8"), max_size=40)
chunks = st.builds(
    IndexedChunk,
    text,
    text.filter(bool),
    st.lists(st.integers(0, 2**32 - 1)).map(tuple),
    text,
    st.integers(0, 9),
    st.integers(9, 99),
    text,
    st.integers(0, 9),
    st.none() | st.builds(Block, st.integers(1, 9), text, st.integers(1, 9), st.booleans()),
    st.lists(st.sampled_from(["hr", "board"]), unique=True).map(tuple),
)
documents = st.builds(
    IndexedDocument,
    text.filter(bool),
    text,
    text,
    st.lists(chunks, min_size=1, max_size=4).map(tuple),
    st.dictionaries(text.filter(lambda k: k not in ("", "document_id", "title")), text, max_size=3),
)


@given(documents)
def test_a_row_gives_back_the_chunk_it_was_made_of(document: IndexedDocument) -> None:
    for row, chunk in zip(rows_of("t", "c", document), document.chunks, strict=True):
        hit = hit_of(row, 0.5)
        assert (hit.chunk, hit.score) == (chunk, 0.5)
        assert (hit.document_id, hit.title, hit.metadata) == (
            document.document_id,
            document.title,
            document.metadata,
        )
        assert hit.model_fingerprint == document.model_fingerprint
        assert hit.kv_context == document.kv_context


@given(documents)
def test_every_difference_makes_another_revision(document: IndexedDocument) -> None:
    first = document.chunks[0]
    others = [
        replace(document, title=document.title + "x"),
        replace(document, model_fingerprint=document.model_fingerprint + "x"),
        replace(document, metadata={**document.metadata, "new": "x"}),
        replace(document, template_hash="x"),
        replace(document, template_hash="x", prefix_hash="x"),
        replace(document, kv_context="header"),
        replace(document, chunks=(replace(first, block=Block(99, "x", 1, False)), *document.chunks[1:])),
        replace(document, chunks=document.chunks[1:]),
        replace(document, chunks=(replace(first, text=first.text + "x"), *document.chunks[1:])),
        replace(document, chunks=(replace(first, token_ids=(*first.token_ids, 1)), *document.chunks[1:])),
        replace(document, chunks=(replace(first, char_end=first.char_end + 1), *document.chunks[1:])),
    ]
    assert revision_of(document) not in map(revision_of, others)


def test_the_same_chunk_has_a_row_of_its_own_wherever_it_occurs() -> None:
    chunk = IndexedChunk("id", "text", (1,))
    one = IndexedDocument("d", "", "f", (chunk, chunk))
    keys = [
        row["row_id"] for row in rows_of("t", "c", one) + rows_of("t", "c2", one) + rows_of("u", "c", one)
    ]
    keys += [row["row_id"] for row in rows_of("t", "c", replace(one, document_id="e"))]
    assert len(set(keys)) == len(keys) == 8


@pytest.mark.parametrize(
    ("document", "field"),
    [
        (
            IndexedDocument("d", "", "f", (IndexedChunk("i", "é" * 40_000, (1,)),)),
            r"chunks\[0\].text: 80000 bytes",
        ),
        (IndexedDocument("d", "", "f", (IndexedChunk("i", "t", (1,) * 20_000),)), r"chunks\[0\].token_ids"),
        (IndexedDocument("d", "", "f", (IndexedChunk("i", "t", (1,)),), {"k": "v" * 40_000}), "metadata"),
    ],
)
def test_what_does_not_fit_in_a_row_is_refused_by_name(document: IndexedDocument, field: str) -> None:
    with pytest.raises(InvalidRequest, match=field):
        rows_of("t", "c", document)
