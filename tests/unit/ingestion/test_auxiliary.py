"""Auxiliary KV of documents: made when they are ingested, named by their manifests, and never a reason to
fail."""

from __future__ import annotations

import pytest

from services.ingestion.service import IngestionService
from shared.documents import Stage
from shared.errors import (
    ContextTooLong,
    DeadlineExceeded,
    FailedPrecondition,
    ModelMismatch,
    StorageFull,
    Unavailable,
)
from shared.identity import chunk_identity
from shared.kv_types import KvContext, Manifest
from tests.ingestion_world import (
    Selector,
    WordTokenizer,
    World,
    context,
    fail_once,
    outcome,
    text,
    upsert,
)

LONG = " ".join(f"Sentence number {i} has some words in it." for i in range(12))


def world_with_selector() -> World:
    world = World()
    world.selector = Selector(world.kv)
    return world


def manifest(world: World, document_id: str = "a.txt") -> Manifest:
    return world.manifests["default", "c", document_id]


def has_auxiliary(world: World, document_id: str = "a.txt") -> bool:
    of_chunks = {bool(c.auxiliary_id) for c in manifest(world, document_id).chunks}
    assert of_chunks == {bool(manifest(world, document_id).auxiliary)}
    return of_chunks == {True}


async def refresh(service: IngestionService, *kv_ids: str) -> dict[str, Stage]:
    return outcome([e async for e in service.upkeep.refresh(context(), "c", kv_ids, "")])


async def test_every_chunk_is_encoded_as_the_primary_reads_it_and_the_manifest_says_so() -> None:
    world = world_with_selector()
    assert world.selector is not None
    assert outcome(await upsert(world.service(), text("a.txt", LONG))) == {"a.txt": Stage.STORED}
    assert len(manifest(world).chunks) > 3
    assert has_auxiliary(world)
    assert world.selector.texts == [f"{c.text}\n" for c in manifest(world).chunks]
    world.check_settled()


@pytest.mark.parametrize("kv_context", list(KvContext))
@pytest.mark.parametrize("batch", [2, 32])
async def test_auxiliary_kv_stands_behind_what_the_primarys_stands_behind(
    kv_context: KvContext, batch: int
) -> None:
    world = world_with_selector()
    world.kv_context = kv_context
    await upsert(world.service(prefill_batch=batch), text("a.md", f"# A Title\n\n{LONG}"))
    of = ("default", "auxiliary-a", (1,))
    for i, chunk in enumerate(manifest(world, "a.md").chunks):
        parent_id = ""
        for link in manifest(world, "a.md").link_texts_of(i):
            parent_id = chunk_identity(*of, WordTokenizer().encode_chunk(link), parent_id)
        assert chunk.auxiliary_id == chunk_identity(*of, chunk.token_ids, parent_id)
        assert bool(parent_id) is (kv_context is not KvContext.NONE)
    world.check_settled()


async def test_lost_auxiliary_kv_is_restored_behind_its_chain() -> None:
    world = world_with_selector()
    assert world.selector is not None
    service = world.service()
    await upsert(service, text("a.md", f"# A Title\n\n{LONG}"))
    lost = manifest(world, "a.md").chunks[2].auxiliary_id
    world.kv.discard(lost)
    assert (await refresh(service, lost))["a.md"] is Stage.STORED
    world.check_settled()


async def test_auxiliary_kv_of_before_chains_is_made_anew() -> None:
    world = world_with_selector()
    assert world.selector is not None
    world.selector.chains = False
    document = text("a.md", f"# A Title\n\n{LONG}")
    await upsert(world.service(), document)
    older = manifest(world, "a.md")
    world.selector.chains = True
    assert outcome(await upsert(world.service(), document)) == {"a.md": Stage.STORED}
    newer = manifest(world, "a.md")
    assert not {c.auxiliary_id for c in newer.chunks} & {c.auxiliary_id for c in older.chunks}
    world.check_settled()


async def test_an_unchanged_document_is_not_encoded_again() -> None:
    world = world_with_selector()
    assert world.selector is not None
    service = world.service()
    await upsert(service, text("a.txt", LONG))
    encoded = world.selector.calls["encode"]
    assert outcome(await upsert(service, text("a.txt", LONG))) == {"a.txt": Stage.UNCHANGED}
    assert (world.selector.calls["encode"], world.calls["put_manifest"]) == (encoded, 1)


@pytest.mark.parametrize("before", ["no auxiliary model", "another auxiliary model"])
async def test_a_document_of_before_gets_it_when_it_is_ingested_again_unchanged(before: str) -> None:
    world = World()
    if before == "another auxiliary model":
        world.selector = Selector(world.kv, fingerprint="auxiliary-b")
    await upsert(world.service(), text("a.txt", LONG))
    older = manifest(world)
    num_prefilled = world.num_prefilled
    world.selector = Selector(world.kv)
    assert outcome(await upsert(world.service(), text("a.txt", LONG))) == {"a.txt": Stage.STORED}
    assert has_auxiliary(world)
    assert manifest(world).without_auxiliary() == older.without_auxiliary()
    assert world.num_prefilled == num_prefilled
    assert outcome(await upsert(world.service(), text("a.txt", LONG))) == {"a.txt": Stage.UNCHANGED}
    world.check_settled()  # nothing of the other model is left


@pytest.mark.parametrize("error", [Unavailable("away"), DeadlineExceeded("late")])
async def test_a_dead_selector_fails_nothing_and_is_asked_once_in_a_run(error: Exception) -> None:
    world = world_with_selector()
    assert world.selector is not None
    world.selector.failure = error  # type: ignore[assignment]
    documents = [text(f"{name}.txt", f"Of {name}.") for name in "abcd"]
    assert set(outcome(await upsert(world.service(), *documents)).values()) == {Stage.STORED}
    assert world.selector.calls == {"describe": 1}
    assert not has_auxiliary(world)
    world.check_settled()
    world.selector.failure = None
    assert set(outcome(await upsert(world.service(), *documents)).values()) == {Stage.STORED}
    assert has_auxiliary(world)
    world.check_settled()


async def test_a_document_is_stored_without_auxiliary_kv_that_the_store_will_not_have_it_name() -> None:
    world = world_with_selector()
    await upsert(world.service(), text("a.md", f"# A Title\n\n{LONG}"))
    world.untold = {c.auxiliary_id for c in manifest(world, "a.md").chunks}
    again = text("b.md", f"# A Title\n\n{LONG}")
    assert outcome(await upsert(world.service(), again)) == {"b.md": Stage.STORED}
    assert not has_auxiliary(world, "b.md")
    world.check_settled()


async def test_one_that_dies_during_a_run_is_not_asked_again() -> None:
    world = world_with_selector()
    assert world.selector is not None
    selector = world.selector

    def dies(step: str) -> None:
        selector.failure = Unavailable("away") if step == "prefill" else selector.failure

    world.step = dies
    documents = [text(f"{name}.txt", f"Of {name}.") for name in "abcd"]
    assert set(outcome(await upsert(world.service(parallel_documents=1), *documents)).values()) == {
        Stage.STORED
    }
    assert selector.calls["encode"] == 1
    assert not any(has_auxiliary(world, f"{name}.txt") for name in "abcd")


async def test_one_that_hangs_is_given_up() -> None:
    world = world_with_selector()
    assert world.selector is not None
    service = world.service(step_timeout_s=0.05)
    world.selector.hangs = True
    assert outcome(await upsert(service, text("a.txt", LONG))) == {"a.txt": Stage.STORED}
    world.selector.hangs = False

    def hangs(step: str) -> None:
        assert world.selector is not None
        world.selector.hangs = True

    world.step = lambda step: hangs(step) if step == "prefill" else None
    assert outcome(await upsert(service, text("b.txt", LONG))) == {"b.txt": Stage.STORED}
    assert world.selector.calls["encode"] == 1
    assert not has_auxiliary(world, "b.txt")


@pytest.mark.parametrize("error", [ContextTooLong("long"), ModelMismatch("other"), StorageFull("full")])
async def test_a_document_that_cannot_be_encoded_goes_without_and_the_others_do_not(error: Exception) -> None:
    world = world_with_selector()
    assert world.selector is not None
    selector = world.selector

    def refuses_the_first(step: str) -> None:
        if step == "prefill":
            selector.failure = None if world.calls["prefill"] > 1 else error  # type: ignore[assignment]

    world.step = refuses_the_first
    documents = [text("a.txt", "One."), text("b.txt", "Two.")]
    assert set(outcome(await upsert(world.service(parallel_documents=1), *documents)).values()) == {
        Stage.STORED
    }
    assert not has_auxiliary(world, "a.txt")
    assert has_auxiliary(world, "b.txt")


async def test_what_vanishes_before_the_manifest_names_it_is_encoded_again() -> None:
    world = world_with_selector()
    assert world.selector is not None

    def lose(step: str) -> None:
        if step == "put_manifest" and world.calls["put_manifest"] == 1:
            world.kv.clear()

    world.step = lose
    assert outcome(await upsert(world.service(), text("a.txt", LONG))) == {"a.txt": Stage.STORED}
    assert has_auxiliary(world)
    world.check_settled()


async def test_a_manifest_that_cannot_be_rewritten_stays_as_it_was() -> None:
    world = World()
    await upsert(world.service(), text("a.txt", LONG))
    world.selector = Selector(world.kv)
    world.step = fail_once("put_manifest", FailedPrecondition("chunks are not stored"))
    assert outcome(await upsert(world.service(), text("a.txt", LONG))) == {"a.txt": Stage.UNCHANGED}
    assert not has_auxiliary(world)


async def test_lost_auxiliary_kv_is_restored_by_name_and_by_a_whole_refresh() -> None:
    world = world_with_selector()
    assert world.selector is not None
    service = world.service()
    await upsert(service, text("a.txt", LONG), text("b.txt", "Short."))
    lost = manifest(world).chunks[1].auxiliary_id
    for names in ((lost,), ()):
        world.kv.discard(lost)
        world.selector.calls.clear()
        assert (await refresh(service, *names))["a.txt"] is Stage.STORED
        assert world.selector.calls["computed"] == 1
        world.check_settled()
    assert await refresh(service, lost) == {"a.txt": Stage.UNCHANGED}  # only the document that names it
    assert set((await refresh(service)).values()) == {Stage.UNCHANGED}


async def test_a_refresh_gives_it_to_documents_that_lack_it() -> None:
    world = World()
    await upsert(world.service(), text("a.txt", LONG))
    world.selector = Selector(world.kv)
    service = world.service()
    assert await refresh(service, manifest(world).chunks[0].chunk_id) == {"a.txt": Stage.UNCHANGED}
    assert not has_auxiliary(world)
    assert await refresh(service) == {"a.txt": Stage.STORED}
    assert has_auxiliary(world)
    world.check_settled()


async def test_deleting_a_document_takes_its_auxiliary_kv_along_unless_another_needs_it() -> None:
    world = world_with_selector()
    world.kv_context = KvContext.NONE
    service = world.service()
    await upsert(service, text("a.txt", LONG), text("b.txt", LONG))
    num_chunks = len(manifest(world).chunks)
    for document_id, removed in (("a.txt", 0), ("b.txt", num_chunks)):
        assert (await service.delete(context(), "c", [document_id], everything=False)).num_chunks == removed
        world.check_settled()
    assert world.kv == set()
