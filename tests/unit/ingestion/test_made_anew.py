"""Documents that were made for another model, template, context or scope: told apart, and made anew."""

from dataclasses import replace

import pytest

from shared.documents import Stage
from shared.errors import ConfigError, FailedPrecondition, ModelMismatch, Unavailable
from shared.kv_types import KvContext
from shared.sharing import SharingScopes
from tests.ingestion_world import LONG, World, book, context, fail_once, outcome, text, upsert


async def test_new_documents_are_not_mixed_with_those_of_another_model() -> None:
    world = World()
    await upsert(world.service(), *(text(f"{i}.txt", f"Old {i}.") for i in range(5)))
    world.fingerprint = "model-b"
    events = await upsert(world.service(), text("new.txt", "New."), text("3.txt", "Old 3."))
    assert outcome(events) == {"new.txt": Stage.FAILED, "3.txt": Stage.STORED}
    error = next(e for e in events if e.stage is Stage.FAILED)
    assert error.error_code == "MODEL_MISMATCH"
    assert "4 documents" in error.error
    assert "--re-encode --collection c" in error.error


async def test_documents_under_another_chunk_template_are_made_anew_and_told_apart() -> None:
    world = World()
    await upsert(world.service(), text("a.txt", "One."), text("b.txt", "Two."))
    world.chunk_template = "<{text}>"
    service = world.service()
    (error,) = [e.error for e in await upsert(service, text("new.txt", "New.")) if e.error]
    assert "2 documents made for another chunk template than" in error
    assert "--re-encode --collection c" in error
    page = await service.list_documents(context(), "c", "", 0)
    assert [d.current for d in page.documents] == [False, False]
    re_encoded = [event async for event in service.re_encode(context(), "c")]
    assert outcome(re_encoded) == {"a.txt": Stage.STORED, "b.txt": Stage.STORED}
    page = await service.list_documents(context(), "c", "", 0)
    assert [d.current for d in page.documents] == [True, True]
    assert outcome(await upsert(service, text("new.txt", "New."))) == {"new.txt": Stage.STORED}
    world.check_settled()


async def test_what_an_earlier_version_stored_is_as_current_as_it_was() -> None:
    world = World()
    await upsert(world.service(), text("a.txt", "One."))
    ((key, stored),) = world.manifests.items()
    world.manifests[key] = replace(stored, source_hash=stored.source_hash.partition(".")[0])
    world.indexed[key] = replace(world.indexed[key], prefix_hash="", template_hash="")
    assert outcome(await upsert(world.service(), text("a.txt", "One."))) == {"a.txt": Stage.UNCHANGED}


async def test_a_folder_that_renews_every_document_may_bring_new_ones() -> None:
    world = World()
    await upsert(world.service(), text("a.txt", "One."), text("b.txt", "Two."))
    world.fingerprint = "model-b"
    events = await upsert(
        world.service(), text("a.txt", "One."), text("b.txt", "Two."), text("c.txt", "Three.")
    )
    assert set(outcome(events).values()) == {Stage.STORED}
    world.check_settled()


@pytest.mark.parametrize("salt", [0, 5])
async def test_re_encoding_makes_every_document_anew_from_what_is_stored(salt: int) -> None:
    world = World()
    await upsert(world.service(), *(text(f"{i}.txt", f"{LONG} {i}.") for i in range(5)))
    before = world.texts()
    world.fingerprint, world.salt = "model-b", salt
    events = [e async for e in world.service().re_encode(context(), "c")]
    assert outcome(events) == {f"{i}.txt": Stage.STORED for i in range(5)}
    assert world.texts() == before
    assert {m.model_fingerprint for m in world.manifests.values()} == {"model-b"}
    world.check_settled()
    assert [e async for e in world.service().re_encode(context(), "c")] == []
    again = outcome(await upsert(world.service(), text("0.txt", f"{LONG} 0.")))
    assert again == {"0.txt": Stage.UNCHANGED if salt == 0 else Stage.STORED}
    assert outcome(await upsert(world.service(), text("0.txt", f"{LONG} 0."))) == {"0.txt": Stage.UNCHANGED}


async def test_re_encoding_for_a_finer_tokenizer_cuts_further() -> None:
    world = World()
    await upsert(world.service(chunk_tokens=32), text("a.txt", LONG))
    world.fingerprint = "model-b"
    events = [e async for e in world.service(chunk_tokens=16).re_encode(context(), "c")]
    assert outcome(events) == {"a.txt": Stage.STORED}
    assert all(len(c.token_ids) <= 16 for c in world.manifests["default", "c", "a.txt"].chunks)
    assert world.texts()["a.txt"].split() == LONG.split()


async def test_a_model_that_changes_during_a_run_is_noticed() -> None:
    world = World()

    def change(name: str) -> None:
        if name == "prefill":
            world.fingerprint = "model-b"

    world.step = change
    events = await upsert(world.service(), text("a.txt", "One."))
    assert events[-1].error_code == "MODEL_MISMATCH"
    assert not world.manifests


async def test_ingestion_and_generator_must_have_the_same_model() -> None:
    world = World()
    service = world.service()
    world.salt = 3
    with pytest.raises(ModelMismatch, match="tokenizer of the generator's model"):
        await upsert(service, text("a.txt", "One."))
    world.salt, world.chunk_template = 0, "{text}"
    with pytest.raises(ModelMismatch, match=r"chunk template of the generator's model .*same prompt section"):
        await upsert(service, text("a.txt", "One."))
    with pytest.raises(ModelMismatch):
        await service.check_ready(context())


async def test_a_model_without_tokenizer_cannot_be_ingested_for() -> None:
    service = World().service()
    service._recipe = None
    with pytest.raises(FailedPrecondition, match="no tokenizer"):
        await upsert(service, text("a.txt", "One."))
    assert "no tokenizer" in await service.check_ready(context()), "such a model is served all the same"


async def test_a_model_that_is_not_there_is_told_and_nothing_else_stops() -> None:
    world = World()
    await upsert(world.service(), text("a.txt", "One."))
    service = world.service()
    service._recipe = ConfigError("model: there is no directory '/models/x'")
    with pytest.raises(ConfigError, match="/models/x"):
        await upsert(service, text("b.txt", "Two."))
    with pytest.raises(ConfigError, match="/models/x"):
        await service.check_ready(context())
    assert (await service.list_documents(context(), "c", "", 10)).documents


async def test_health_names_collections_that_are_not_as_they_would_be_made_now() -> None:
    world = World(kv_context=KvContext.NONE)
    await upsert(world.service(), book(), text("a.txt", "Short."), collection="old")
    await upsert(world.service(), text("b.txt", "Theirs."), collection="theirs", tenant="other")
    assert await world.service().check_ready(context()) == ""
    world.kv_context = KvContext.DOCUMENT
    await upsert(world.service(), text("c.txt", "New."), collection="old")
    await upsert(world.service(), text("c.txt", "New."), collection="new")
    detail = await world.service().check_ready(context())
    assert "old (2 of kv_context none; 3 documents)" in detail
    assert detail.endswith("kvquilt ingest --re-encode --collection old")
    assert "theirs" not in detail
    assert "new" not in detail
    [_ async for _ in world.service().re_encode(context(), "old")]
    assert await world.service().check_ready(context()) == ""
    world.fingerprint = "model-b"
    detail = await world.service().check_ready(context())
    assert "new (1 of another model; 1 documents), old (3 of another model; 3 documents)" in detail
    assert detail.endswith("--collection NAME")
    world.step = fail_once("count_documents", Unavailable("away"))
    assert await world.service().check_ready(context()) == ""


async def test_in_a_scope_documents_are_made_of_kv_that_is_there_and_outside_of_none() -> None:
    world = World(scopes=SharingScopes({"shared": ("acme", "partner")}))
    await upsert(world.service(), book(), tenant="acme")
    num_chunks = world.num_prefilled
    await upsert(world.service(), book(), tenant="partner")
    assert world.num_prefilled == num_chunks
    await upsert(world.service(), book(), tenant="other")
    assert world.num_prefilled == 2 * num_chunks
    acme, partner = (world.manifests[tenant, "c", "book.md"] for tenant in ("acme", "partner"))
    assert partner == replace(acme, tenant="partner")
    world.check_settled()


async def test_documents_of_another_scope_are_told_and_brought_over() -> None:
    world, ctx = World(), context(tenant="acme")
    await upsert(world.service(), book(), text("a.txt", "Short."), tenant="acme")
    before = world.manifests["acme", "c", "book.md"]
    for scopes, told in (({"shared": ("acme",)}, "sharing scope none"), ({}, "sharing scope shared")):
        world.scopes = SharingScopes(scopes)
        service = world.service()
        detail = await service.check_ready(ctx)
        assert f"c (2 of {told}; 2 documents)" in detail
        refused = [e async for e in service.upkeep.refresh(ctx, "c", (), "")]
        assert "made for another sharing scope" in refused[-1].error
        assert [d.current for d in (await service.list_documents(ctx, "c", "", 0)).documents] == [True] * 2
        assert outcome(await upsert(service, text("a.txt", "Short."), tenant="acme")) == {
            "a.txt": Stage.STORED
        }
        events = [e async for e in service.re_encode(ctx, "c")]
        assert outcome(events) == {"book.md": Stage.STORED}
        assert await service.check_ready(ctx) == ""
        world.check_settled()
    assert world.manifests["acme", "c", "book.md"] == before


async def test_what_was_stored_before_settings_were_noted_can_be_brought_over() -> None:
    world = World()
    await upsert(world.service(), book())
    key = ("default", "c", "book.md")
    world.manifests[key] = replace(world.manifests[key], kv_context="")
    assert "kv_context none" in await world.service().check_ready(context())
    num_prefilled = world.num_prefilled
    [_ async for _ in world.service().re_encode(context(), "c")]
    assert await world.service().check_ready(context()) == ""
    assert world.num_prefilled == num_prefilled


@pytest.mark.parametrize("to", list(KvContext))
@pytest.mark.parametrize("of", list(KvContext))
async def test_re_encode_moves_a_collection_to_the_configured_context(of: KvContext, to: KvContext) -> None:
    world = World(kv_context=of)
    await upsert(world.service(), book(), text("a.txt", "Short."))
    events = [e async for e in world.service(kv_context=to).re_encode(context(), "c")]
    assert outcome(events) == ({} if of is to else dict.fromkeys(["book.md", "a.txt"], Stage.STORED))
    fresh = World(kv_context=to)
    await upsert(fresh.service(), book(), text("a.txt", "Short."))
    world.check_settled()
    chained = {key: [bool(c.parent_id) for c in m.chunks] for key, m in world.manifests.items()}
    assert chained == {key: [bool(c.parent_id) for c in m.chunks] for key, m in fresh.manifests.items()}
    assert [e async for e in world.service(kv_context=to).re_encode(context(), "c")] == []
