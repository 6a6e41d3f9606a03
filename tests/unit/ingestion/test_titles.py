"""Titles and headings that nobody would write: their documents are stored, and fit into the index."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.ingestion.chunker import HEADING_SEPARATOR
from services.ingestion.formats.parse import LONGEST_TITLE, parse
from services.retrieval.rows import rows_of
from shared.documents import SourceDocument, Stage
from shared.kv_types import KvContext
from tests.ingestion_world import World, outcome, upsert

TEXT = "The lamp is green.\n\n" * 200
LONG = 10_000


def html(title: str, heading: str = "") -> SourceDocument:
    headings = "".join(f"<h{i}>{heading}</h{i}>" for i in range(1, 7)) if heading else ""
    paragraphs = "<p>The lamp is green.</p>" * 200
    page = f"<html><head><title>{title}</title></head><body>{headings}{paragraphs}</body></html>"
    return SourceDocument("a.html", page.encode())


@pytest.mark.parametrize("kv_context", list(KvContext))
@pytest.mark.parametrize(
    "document",
    [
        html("x" * LONG),
        html("word " * (LONG // 5), "other " * (LONG // 6)),
        html("灯灯灯 " * (LONG // 4), "灯灯灯 " * (LONG // 4)),
        html("\U0001f999\U0001f999\U0001f999 " * (LONG // 4), "\U0001f999 " * (LONG // 2)),
        SourceDocument("a.md", ("# " + "x" * LONG + "\n\n" + TEXT).encode()),
        SourceDocument("a.md", f"---\ntitle: {'x' * LONG}\n---\n{TEXT}".encode()),
        SourceDocument("a.md", f"---\ntitle: ''\n---\n{TEXT}".encode()),
        SourceDocument("x" * 1000 + ".txt", TEXT.encode()),
        html(""),
        html(" \t "),
    ],
    ids=["long", "words", "han", "astral", "heading", "front matter", "none", "name", "empty", "blank"],
)
async def test_a_title_of_any_length_is_stored_and_indexed(
    document: SourceDocument, kv_context: KvContext
) -> None:
    world = World(kv_context=kv_context)
    service = world.service(chunk_tokens=64, kv_context_tokens=256)
    events = await upsert(service, document)
    assert outcome(events) == {document.document_id: Stage.STORED}, events
    (indexed,) = world.indexed.values()
    assert 0 < len(indexed.title) <= LONGEST_TITLE
    rows = rows_of("t", "c", replace(indexed, metadata={"source": "file:///" + "d" * 1000}))  # all fit
    in_front = [len(row["content"]) - len(c.text) for row, c in zip(rows, indexed.chunks, strict=True)]
    assert max(in_front) <= 7 * (LONGEST_TITLE + len(HEADING_SEPARATOR))
    world.check_settled()


def test_the_text_keeps_a_heading_whole() -> None:
    long = "heading " * 200
    parsed = parse(SourceDocument("a.md", f"# {long}\n\nText.".encode()))
    assert long.strip() in parsed.text
    assert parsed.title == parsed.headings[0].title == long[: LONGEST_TITLE - 1].rstrip() + "…"


def test_what_is_short_stays_as_it_is() -> None:
    parsed = parse(SourceDocument("a.md", f"# {'x' * LONGEST_TITLE}\n\nText.".encode()))
    assert parsed.title == "x" * LONGEST_TITLE


@pytest.mark.parametrize("name", ["town hall.md", "   .md"])
@pytest.mark.parametrize("title", ["\u200b", "\u200b \ufeff", "\u2060", " "])
def test_a_title_of_which_nothing_can_be_seen_is_none(title: str, name: str) -> None:
    parsed = parse(SourceDocument(name, f"---\ntitle: '{title}'\n---\n\nText.".encode()))
    assert parsed.title == (name.strip() if name.startswith(" ") else "town hall")


def test_characters_that_join_others_stay_in_a_title() -> None:
    title = "\U0001f469\u200d\U0001f680 \u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"
    assert parse(SourceDocument("a.md", f"# {title}\n\nText.".encode())).title == title
