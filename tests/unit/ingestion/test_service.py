"""Documents come in, change, are listed and go, over fakes of the other services."""

import asyncio
import gc
from contextlib import aclosing
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.documents import SourceDocument, Stage
from shared.errors import InvalidRequest, NotFound
from shared.kv_types import KvContext
from tests.ingestion_world import LONG, World, context, outcome, text, upsert


async def test_a_document_is_parsed_prefilled_stored_and_found() -> None:
    world = World()
    events = await upsert(world.service(), text("a.txt", LONG))
    stages = [e.stage for e in events]
    assert stages == [Stage.PARSED, *[Stage.PREFILLED] * (len(stages) - 2), Stage.STORED]
    assert [e.num_chunks_done for e in events[1:-1]] == list(range(1, events[0].num_chunks + 1))
    assert events[-1].num_chunks == events[-1].num_chunks_done == len(world.kv) > 3
    assert events[-1].num_tokens == len(LONG.split())
    assert world.texts()["a.txt"].split() == LONG.split()
    world.check_settled()


async def test_nothing_can_be_found_before_its_kv_is_durable() -> None:
    world = World()

    def check(step: str) -> None:
        if step == "index":
            world.check_invariants()
            assert ("default", "c", "a.txt") in world.manifests
        elif step != "indexed":
            assert not world.indexed

    world.step = check
    await upsert(world.service(), text("a.txt", LONG))


async def test_a_second_run_does_nothing() -> None:
    world = World()
    await upsert(world.service(), text("a.txt", LONG), text("b.txt", "Short."))
    world.calls.clear()
    events = await upsert(world.service(), text("a.txt", LONG), text("b.txt", "Short."))
    assert outcome(events) == {"a.txt": Stage.UNCHANGED, "b.txt": Stage.UNCHANGED}
    assert world.calls["prefill"] == world.calls["put_manifest"] == 0


@pytest.mark.parametrize(
    "later",
    [
        text("a.txt", LONG + " More."),
        text("a.txt", LONG, lang="en"),
        SourceDocument("a.txt", LONG.encode(), "text/markdown"),
    ],
)
async def test_any_difference_of_the_source_counts_as_a_change(later: SourceDocument) -> None:
    world = World()
    await upsert(world.service(), text("a.txt", LONG))
    assert outcome(await upsert(world.service(), later)) == {"a.txt": Stage.STORED}
    world.check_settled()


async def test_other_chunk_sizes_cut_the_document_anew() -> None:
    world = World()
    await upsert(world.service(16), text("a.txt", LONG))
    assert outcome(await upsert(world.service(24), text("a.txt", LONG))) == {"a.txt": Stage.STORED}
    assert any(len(c.token_ids) > 16 for c in world.manifests["default", "c", "a.txt"].chunks)
    world.check_settled()


async def test_a_changed_document_replaces_its_chunks_and_shared_ones_stay() -> None:
    world = World(kv_context=KvContext.NONE)
    await upsert(world.service(), text("a.txt", "Shared text."), text("b.txt", "Shared text."))
    assert len(world.kv) == 1
    await upsert(world.service(), text("a.txt", "Own text."))
    assert world.texts() == {"a.txt": "Own text.", "b.txt": "Shared text."}
    world.check_settled()


async def test_delete_keeps_what_others_refer_to() -> None:
    world = World(kv_context=KvContext.NONE)
    await upsert(world.service(), text("a.txt", "Shared text."), text("b.txt", "Shared text."))
    first = await world.service().delete(context(), "c", ["a.txt", "missing.txt"], everything=False)
    assert (first.num_documents, first.num_chunks, first.not_found) == (1, 0, ("missing.txt",))
    assert world.texts() == {"b.txt": "Shared text."}
    last = await world.service().delete(context(), "c", [], everything=True)
    assert (last.num_documents, last.num_chunks) == (1, 1)
    assert (world.kv, world.manifests, world.indexed) == (set(), {}, {})


async def test_chunks_that_existed_are_counted_as_reused() -> None:
    world = World(kv_context=KvContext.NONE)
    await upsert(world.service(), text("a.txt", "Same words here."))
    events = await upsert(world.service(), text("b.txt", "Same words here."))
    assert (events[-1].num_chunks_reused, world.num_prefilled) == (1, 1)


async def test_a_document_that_another_run_changed_meanwhile_is_made_anew() -> None:
    world = World()
    await upsert(world.service(), text("a.txt", "One."))

    def change(name: str) -> None:
        if name == "get_manifest":
            key = ("default", "c", "a.txt")
            world.manifests[key] = replace(world.manifests[key], source_hash="other")

    world.step = change
    assert outcome(await upsert(world.service(), text("a.txt", "One."))) == {"a.txt": Stage.STORED}
    world.check_settled()


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ([], "none given"),
        ([text("a.txt", "1"), text("a.txt", "2")], "'a.txt' comes more than once"),
        ([text("", "1")], r"documents\[0\].document_id"),
        ([text("a.txt", "1"), text("b\n.txt", "1")], r"documents\[1\].document_id"),
        ([text("x" * 1025, "1")], "document_id"),
    ],
)
async def test_requests_that_cannot_be_are_refused_as_a_whole(
    documents: list[SourceDocument], message: str
) -> None:
    world = World()
    with pytest.raises(InvalidRequest, match=message):
        await upsert(world.service(), *documents)
    assert not world.calls


@pytest.mark.parametrize("collection", ["", "a b", "../x", "x" * 65, '"'])
async def test_collection_names_are_plain(collection: str) -> None:
    with pytest.raises(InvalidRequest, match="collection"):
        await upsert(World().service(), text("a.txt", "1"), collection=collection)


async def test_deleting_needs_to_say_what() -> None:
    service = World().service()
    for ids, everything in (([], False), (["a.txt"], True)):
        with pytest.raises(InvalidRequest, match="document_ids"):
            await service.delete(context(), "c", ids, everything)
    with pytest.raises(NotFound, match="'c' does not exist"):
        await service.delete(context(), "c", [], everything=True)


async def test_listing_tells_which_documents_are_current() -> None:
    world = World()
    await upsert(world.service(), text("a.txt", "One."), text("b.txt", "Two."))
    world.fingerprint = "model-b"
    await upsert(world.service(), text("b.txt", "Two."))
    page = await world.service().list_documents(context(), "c", "", 0)
    assert [(d.document_id, d.title, d.num_chunks, d.current) for d in page.documents] == [
        ("a.txt", "a", 1, False),
        ("b.txt", "b", 1, True),
    ]
    part = await world.service().list_documents(context(), "", "", 1)
    assert [d.document_id for d in part.documents] == ["a.txt"]
    assert part.truncated
    with pytest.raises(NotFound, match="'missing'"):
        await world.service().list_documents(context(), "missing", "", 0)


async def test_tenants_have_documents_of_their_own() -> None:
    world = World()
    await upsert(world.service(), text("a.txt", "Mine."), tenant="me")
    await upsert(world.service(), text("a.txt", "Yours."), tenant="you")
    await world.service().delete(context("you"), "c", [], everything=True)
    assert (world.texts(tenant="me"), world.texts(tenant="you")) == ({"a.txt": "Mine."}, {})


async def test_of_two_requests_for_one_document_the_last_wins_whole() -> None:
    world = World()
    service = world.service()
    await asyncio.gather(*(upsert(service, text("a.txt", f"Version {i}. {LONG}")) for i in range(4)))
    assert world.texts()["a.txt"] == f"Version 3. {LONG}"
    world.check_settled()
    gc.collect()
    assert not service._locks


async def test_closing_the_stream_stops_the_work() -> None:
    world = World()
    documents = [text(f"{i}.txt", LONG + str(i)) for i in range(6)]
    async with aclosing(world.service(parallel_documents=1).upsert(context(), "c", documents)) as events:
        async for event in events:
            if event.stage is Stage.STORED:
                break
    done = world.calls["index"]
    await asyncio.sleep(0)
    assert world.calls["index"] == done < 6
    world.check_invariants()
    assert Stage.FAILED not in outcome(await upsert(world.service(), *documents)).values()


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(["", "One.", "One. Two.", LONG, None])), max_size=6
    )
)
@settings(deadline=None, max_examples=40)
def test_any_history_leaves_what_a_plain_dictionary_holds(history: list[tuple[str, str | None]]) -> None:
    async def play() -> None:
        world, expected = World(), dict[str, str]()
        for name, content in history:
            if content is None:
                await world.service().delete(context(), "c", [name], everything=False)
                expected.pop(name, None)
            else:
                await upsert(world.service(), SourceDocument(name, content.encode(), "text/plain"))
                expected |= {name: content} if content else {}
            world.check_settled()
            assert world.texts() == expected

    asyncio.run(play())


async def test_a_document_that_the_embedder_does_not_read_is_a_warning() -> None:
    world = World()
    document = text("de.txt", "Das ist nicht so.")
    events = await upsert(world.service(), text("en.txt", "It is so."), document)
    told = {e.document_id: e.warnings for e in events if e.stage is Stage.STORED}
    assert told == {"en.txt": (), "de.txt": ("seems not to be English",)}
    assert [e.warnings for e in await upsert(world.service(), document)] == [()]
