"""A run that only tells what another one would do."""

from __future__ import annotations

from shared.documents import SOURCE_KEY, SourceDocument, Stage
from tests.ingestion_world import World, context, outcome, text, upsert


async def test_a_dry_run_tells_what_is_new_changed_and_unreadable_and_stores_nothing() -> None:
    world = World()
    await upsert(world.service(), text("same.txt", "One."), text("other.txt", "Two."))
    before = dict(world.manifests)
    world.calls.clear()
    documents = [
        text("same.txt", "One."),
        text("other.txt", "Three."),
        text("new.txt", "Four words are here."),
        SourceDocument("broken.pdf", b"no PDF"),
    ]
    events = [e async for e in world.service().upsert(context(), "c", documents, dry_run=True)]
    assert outcome(events) == {
        "same.txt": Stage.UNCHANGED,
        "other.txt": Stage.WOULD_STORE,
        "new.txt": Stage.WOULD_STORE,
        "broken.pdf": Stage.FAILED,
    }
    assert {e.document_id: (e.num_chunks, e.num_tokens) for e in events}["new.txt"] == (1, 4)
    assert world.manifests == before
    assert world.calls.keys() <= {"describe", "manifest_page", "get_manifest"}


async def test_a_document_tells_which_source_it_came_from() -> None:
    service = World().service()
    await upsert(service, text("a.txt", "One.", **{SOURCE_KEY: "file:///docs"}), text("b.txt", "Two."))
    page = await service.list_documents(context(), "c", "", 0)
    assert [(d.document_id, d.source) for d in page.documents] == [("a.txt", "file:///docs"), ("b.txt", "")]
