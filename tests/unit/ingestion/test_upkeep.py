"""Index and KV of stored documents, made whole."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

import pytest

from services.ingestion.service import IngestionService
from shared.documents import Stage, UpsertProgress
from shared.errors import InvalidRequest, NotFound, Unavailable
from tests.ingestion_world import Crash, World, context, fail_once, text, upsert

LONG = " ".join(f"Sentence number {i} has some words in it." for i in range(12))


async def ended(events: AsyncGenerator[UpsertProgress, None]) -> dict[str, Stage]:
    async with aclosing(events):
        done = [e async for e in events if e.stage not in (Stage.PARSED, Stage.PREFILLED)]
    assert len({e.document_id for e in done}) == len(done)
    return {e.document_id: e.stage for e in done}


def rebuild(
    service: IngestionService, collection: str = "c", tenant: str = "default"
) -> AsyncGenerator[UpsertProgress, None]:
    return service.upkeep.rebuild(context(tenant), collection)


def refresh(
    service: IngestionService, collection: str = "c", *chunk_ids: str, encoding: str = ""
) -> AsyncGenerator[UpsertProgress, None]:
    return service.upkeep.refresh(context(), collection, chunk_ids, encoding)


async def filled(**documents: str) -> tuple[World, IngestionService]:
    world = World()
    service = world.service()
    await upsert(service, *(text(f"{name}.txt", content) for name, content in documents.items()))
    return world, service


async def test_a_lost_index_is_made_anew_from_the_manifests_without_the_generator() -> None:
    world, service = await filled(a=LONG, b="Short.", d="Third.")
    before = dict(world.indexed)
    world.indexed.clear()
    world.calls.clear()
    assert await ended(rebuild(service)) == dict.fromkeys(["a.txt", "b.txt", "d.txt"], Stage.STORED)
    assert world.indexed == before
    assert world.calls["prefill"] == world.calls["describe"] == world.calls["put_manifest"] == 0
    world.check_settled()


async def test_the_index_holds_exactly_what_the_manifests_say() -> None:
    world, service = await filled(a=LONG, b="Short.", gone="Gone.")
    del world.manifests["default", "c", "gone.txt"]
    wrong = world.indexed["default", "c", "a.txt"]
    world.indexed["default", "c", "a.txt"] = replace(wrong, chunks=wrong.chunks[:1])
    assert await ended(rebuild(service)) == {
        "a.txt": Stage.STORED,
        "b.txt": Stage.UNCHANGED,
        "gone.txt": Stage.REMOVED,
    }
    assert world.texts().keys() == {"a.txt", "b.txt"}
    assert world.texts()["a.txt"].split() == LONG.split()


async def test_without_a_name_all_collections_of_the_tenant_are_rebuilt_and_nobody_elses() -> None:
    world, service = await filled(a="One.")
    await upsert(service, text("a.txt", "Two."), collection="d")
    await upsert(service, text("x/y.txt", "Theirs."), tenant="other")
    del world.manifests["default", "d", "a.txt"]
    del world.indexed["default", "c", "a.txt"]
    theirs = world.indexed.pop(("other", "c", "x/y.txt"))
    assert await ended(rebuild(service, "")) == {"c/a.txt": Stage.STORED, "d/a.txt": Stage.REMOVED}
    assert set(world.indexed) == {("default", "c", "a.txt")}
    assert await ended(rebuild(service, "", "other")) == {"c/x/y.txt": Stage.STORED}
    assert world.indexed["other", "c", "x/y.txt"] == theirs


@pytest.mark.parametrize(
    "step", ["manifest_page", "list_indexed", "get_manifest", "index", "indexed", "unindex"]
)
async def test_an_interrupted_rebuild_goes_on(step: str) -> None:
    world, service = await filled(a=LONG, b="Short.", gone="Gone.", d="Last.")
    del world.manifests["default", "c", "gone.txt"]
    for name in ("a.txt", "d.txt"):
        del world.indexed["default", "c", name]
    left = [Crash()]

    def crash(name: str) -> None:
        if name == step and left:
            raise left.pop()

    world.step = crash
    with pytest.raises((Crash, BaseExceptionGroup)):
        await ended(rebuild(service))
    await ended(rebuild(world.service()))
    assert world.texts().keys() == {"a.txt", "b.txt", "d.txt"}


async def test_a_collection_of_another_embedder_is_indexed_anew_while_the_old_index_is_searched() -> None:
    world, service = await filled(a=LONG, b="Short.")
    world.other_embedder["c"] = {}
    before = dict(world.indexed)

    def still_searched(name: str) -> None:
        assert name in ("adopted", "delete_manifest") or world.indexed == before

    world.step = still_searched
    assert await ended(rebuild(service)) == {"a.txt": Stage.STORED, "b.txt": Stage.STORED}
    assert not world.other_embedder
    assert world.calls["unindex"] == 0
    assert world.texts().keys() == {"a.txt", "b.txt"}


async def test_what_is_ingested_while_a_collection_is_indexed_anew_is_found_before_and_after() -> None:
    world, service = await filled(a=LONG)
    world.other_embedder["c"] = {}
    await upsert(service, text("new.txt", "New."))
    assert world.texts().keys() == {"a.txt", "new.txt"}
    assert await ended(rebuild(service)) == {"a.txt": Stage.STORED, "new.txt": Stage.UNCHANGED}
    assert world.texts().keys() == {"a.txt", "new.txt"}


async def test_a_collection_of_which_a_document_fails_is_searched_as_before_until_all_are_indexed() -> None:
    world, service = await filled(a=LONG, b="Short.")
    world.other_embedder["c"] = {}
    world.step = fail_once("index", InvalidRequest("does not fit"))
    assert set((await ended(rebuild(service))).values()) == {Stage.FAILED, Stage.STORED}
    assert "c" in world.other_embedder
    assert world.texts().keys() == {"a.txt", "b.txt"}
    assert set((await ended(rebuild(service))).values()) == {Stage.STORED, Stage.UNCHANGED}
    assert not world.other_embedder


async def test_a_document_that_is_deleted_during_the_rebuild_is_not_found_afterwards() -> None:
    world, service = await filled(a=LONG, b="Short.", d="Last.")

    def remove(name: str) -> None:
        if name == "get_manifest":
            world.manifests.pop(("default", "c", "d.txt"), None)

    world.step = remove
    assert (await ended(rebuild(service)))["d.txt"] is Stage.REMOVED
    assert world.texts().keys() == {"a.txt", "b.txt"}


async def test_an_index_that_is_down_stops_the_rebuild_and_says_so() -> None:
    world, service = await filled(a=LONG, b="Short.")

    def down(name: str) -> None:
        if name == "index":
            raise Unavailable("no index")

    world.step = down
    events = [e async for e in rebuild(service) if e.stage is Stage.FAILED]
    assert {e.document_id for e in events} == {"a.txt", "b.txt"}
    assert all("no index" in e.error and e.error_code == "UNAVAILABLE" for e in events)


async def test_lost_kv_is_computed_again_and_whole_kv_is_not() -> None:
    world, service = await filled(a=LONG, b="Short.")
    lost = world.manifests["default", "c", "a.txt"].chunks[1].chunk_id
    world.kv.discard(lost)
    already = world.num_prefilled
    assert await ended(refresh(service)) == {"a.txt": Stage.STORED, "b.txt": Stage.UNCHANGED}
    assert world.num_prefilled == already + 1
    world.check_settled()


async def test_only_documents_and_chunks_that_were_named_are_touched() -> None:
    world, service = await filled(a=LONG, b=f"{LONG} More.", d="Other.")
    named = world.manifests["default", "c", "a.txt"].chunks[0].chunk_id
    assert named == world.manifests["default", "c", "b.txt"].chunks[0].chunk_id
    world.kv.clear()
    assert set(await ended(refresh(service, "", named))) == {"c/a.txt", "c/b.txt"}
    assert world.kv == {named}


async def test_the_encoding_is_passed_on() -> None:
    world, service = await filled(a=LONG)
    await ended(refresh(service, encoding="int8"))
    assert set(world.encodings.values()) == {"int8"}
    await ended(refresh(service))
    assert set(world.encodings.values()) == {"int8"}


async def test_documents_of_another_model_are_named_with_the_remedy() -> None:
    world, service = await filled(a=LONG)
    world.fingerprint = "model-b"
    (event,) = [e async for e in refresh(service, "")]
    assert (event.stage, event.error_code, event.document_id) == (Stage.FAILED, "MODEL_MISMATCH", "c/a.txt")
    assert "--re-encode --collection c" in event.error


async def test_a_refresh_is_tried_again_when_the_generator_is_away_for_a_moment() -> None:
    world, service = await filled(a=LONG)
    world.kv.clear()
    world.step = fail_once("prefill", Unavailable("restarting"))
    assert await ended(refresh(service)) == {"a.txt": Stage.STORED}
    world.check_settled()


async def test_unknown_collections_and_bad_names_are_refused() -> None:
    _, service = await filled(a="One.")
    for run in (rebuild, refresh):
        with pytest.raises(NotFound, match="'nowhere'"):
            await ended(run(service, "nowhere"))
        with pytest.raises(InvalidRequest):
            await ended(run(service, "../x"))


async def test_a_rebuild_among_changes_ends_with_what_the_manifests_say() -> None:
    world, service = await filled(**{f"n{i}": f"Text number {i}." for i in range(6)})
    rng = random.Random(4)

    async def change() -> None:
        for i in range(12):
            name = f"n{rng.randrange(8)}.txt"
            if rng.random() < 0.5:
                await upsert(service, text(name, f"Changed {i}."))
            else:
                await service.delete(context(), "c", [name], everything=False)

    await asyncio.gather(change(), ended(rebuild(service)))
    await ended(rebuild(service))
    world.check_settled()
