import asyncio
import gc
import itertools
from contextlib import aclosing
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.ingestion.calls import CallPolicy
from shared.documents import SourceDocument, Stage
from shared.errors import (
    ConfigError,
    Conflict,
    FailedPrecondition,
    InvalidRequest,
    ModelMismatch,
    NotFound,
    StorageFull,
    Unavailable,
)
from shared.generation.pieces import Conditioned
from shared.kv_types import KvContext
from shared.request import RequestContext
from shared.sharing import SharingScopes
from tests.ingestion_world import (
    CONTEXT_TOKENS,
    Crash,
    WordTokenizer,
    World,
    context,
    fail_once,
    outcome,
    text,
    upsert,
)
from tests.virtual_time import run_virtually, virtual_loop

LONG = " ".join(f"Sentence number {i} has some words in it." for i in range(12))
STEPS = [
    "describe",
    "manifest_page",
    "check_quota",
    "prefill",
    "prefilled",
    "put_manifest",
    "manifest_put",
    "index",
    "indexed",
]


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        ({"key": "x" * 40_000}, "metadata, title and document_id: "),
        ({"": "x"}, "metadata: '' cannot be a key"),
        ({"key": "x" * 30_000, "other": "x" * 2_600}, "chunks[0].token_ids with metadata: "),
    ],
)
async def test_a_document_that_the_index_cannot_hold_is_refused_before_anything_is_made_of_it(
    metadata: dict[str, str], says: str
) -> None:
    world = World()
    many = [i + 70_000 for i in range(8_000)]
    (failed,) = await upsert(
        world.service(chunk_tokens=8192), text("a.txt", " ".join(map(str, many)), **metadata)
    )
    assert (failed.stage, failed.error_code) == (Stage.FAILED, "INVALID_REQUEST")
    assert failed.error.startswith(says)
    assert (world.kv, world.manifests, world.indexed) == (set(), {}, {})


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


@pytest.mark.parametrize(
    ("step", "occurrence"), [("describe", 1), ("manifest_page", 1), *itertools.product(STEPS[2:], [1, 2, 3])]
)
async def test_a_run_that_crashed_at_any_step_goes_on_where_it_stopped(step: str, occurrence: int) -> None:
    world = World()
    await upsert(world.service(), text("a.txt", "The old text."), text("b.txt", "Another. The old text."))
    world.calls.clear()

    def crash(name: str) -> None:
        if name == step and world.calls[name] == occurrence:
            raise Crash

    documents = [text("a.txt", LONG), text("b.txt", "New. " + LONG), text("c.txt", "Third.")]
    world.step = crash
    with pytest.raises((Crash, BaseExceptionGroup)):
        await upsert(world.service(parallel_documents=1), *documents)
    world.check_invariants()
    durable, world.num_prefilled = set(world.kv), 0
    world.step = lambda name: None
    assert Stage.FAILED not in outcome(await upsert(world.service(), *documents)).values()
    assert world.texts() == {"a.txt": LONG, "b.txt": "New. " + LONG, "c.txt": "Third."}
    assert world.num_prefilled == len(world.kv - durable)
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


@pytest.mark.parametrize("step", ["unindex", "unindexed", "delete_manifest", "manifest_deleted"])
async def test_a_delete_that_crashed_can_be_run_again(step: str) -> None:
    world = World()
    await upsert(world.service(), text("a.txt", LONG), text("b.txt", "Rest."))

    def crash(name: str) -> None:
        if name == step:
            raise Crash

    world.step = crash
    with pytest.raises(Crash):
        await world.service().delete(context(), "c", ["a.txt"], everything=False)
    world.check_invariants()
    assert world.indexed.keys() <= world.manifests.keys()
    world.step = lambda name: None
    await world.service().delete(context(), "c", ["a.txt"], everything=False)
    assert world.texts() == {"b.txt": "Rest."}
    world.check_settled()


async def test_an_index_without_room_lets_a_document_go_once_its_kv_has_made_some() -> None:
    world = World()
    await upsert(world.service(), text("a.txt", LONG), text("b.txt", "Rest."))

    def full(name: str) -> None:
        if name == "unindex" and len(world.manifests) == 2:
            raise StorageFull("no space left where the index is kept")

    world.step = full
    deleted = await world.service().delete(context(), "c", ["a.txt"], everything=False)
    assert (deleted.num_documents, deleted.not_found) == (1, ())
    assert world.texts() == {"b.txt": "Rest."}
    world.check_settled()


async def test_what_cannot_be_read_fails_alone_and_says_why() -> None:
    world = World()
    documents = [
        text("a.txt", ""),
        SourceDocument("b.pdf", b"no"),
        text("c.txt", "Fine."),
        text("d.xyz", "?"),
        text("e.txt", "x", title="t"),
    ]
    events = await upsert(world.service(), *documents)
    assert outcome(events) == {
        "a.txt": Stage.FAILED,
        "b.pdf": Stage.FAILED,
        "c.txt": Stage.STORED,
        "d.xyz": Stage.FAILED,
        "e.txt": Stage.FAILED,
    }
    failed = {e.document_id: (e.error_code, e.error) for e in events if e.stage is Stage.FAILED}
    assert failed["a.txt"] == ("DOCUMENT_UNREADABLE", "the document is empty")
    assert failed["b.pdf"][0] == failed["d.xyz"][0] == "DOCUMENT_UNREADABLE"
    assert failed["e.txt"][0] == "INVALID_REQUEST"
    world.check_settled()


async def test_a_document_that_became_unreadable_stays_as_it_was() -> None:
    world = World()
    await upsert(world.service(), text("a.txt", "Good."))
    assert outcome(await upsert(world.service(), text("a.txt", " "))) == {"a.txt": Stage.FAILED}
    assert world.texts() == {"a.txt": "Good."}


async def test_a_document_that_is_too_large_is_refused() -> None:
    events = await upsert(World().service(max_document_bytes=3), text("a.txt", "four"))
    assert events[0].error_code == "DOCUMENT_UNREADABLE"


async def test_an_unexpected_error_fails_one_document_without_telling_secrets() -> None:
    world = World()

    def fail(name: str) -> None:
        if name == "put_manifest" and world.calls["put_manifest"] == 1:
            raise RuntimeError("/secret/path")

    world.step = fail
    events = await upsert(world.service(parallel_documents=1), text("a.txt", "One."), text("b.txt", "Two."))
    assert outcome(events) == {"a.txt": Stage.FAILED, "b.txt": Stage.STORED}
    assert all("secret" not in e.error for e in events)


@pytest.mark.parametrize("step", ["prefill", "put_manifest"])
async def test_a_full_disk_stops_the_run_and_keeps_what_was_done(step: str) -> None:
    world = World()

    def fill(name: str) -> None:
        if name == step and world.calls["indexed"] == 1:
            raise StorageFull("no space left; free some or give the store more")

    world.step = fill
    documents = [text(f"{i}.txt", f"Document {i}.") for i in range(4)]
    events = await upsert(world.service(parallel_documents=1), *documents)
    assert outcome(events) == {"0.txt": Stage.STORED, **{f"{i}.txt": Stage.FAILED for i in (1, 2, 3)}}
    errors = [e for e in events if e.stage is Stage.FAILED]
    assert {e.error_code for e in errors} == {"STORAGE_FULL"}
    assert errors[0].error.startswith("no space left")
    assert errors[1].error.startswith("not started")
    assert world.calls[step] == 2
    assert world.texts() == {"0.txt": "Document 0."}


@pytest.mark.parametrize(
    "step", ["describe", "manifest_page", "prefill", "prefilled", "put_manifest", "index"]
)
@pytest.mark.parametrize("error", [Unavailable("restarting"), Conflict("again")])
async def test_a_service_that_comes_back_is_waited_for(step: str, error: Unavailable | Conflict) -> None:
    world = World(step=fail_once(step, error))
    assert outcome(await upsert(world.service(), text("a.txt", LONG))) == {"a.txt": Stage.STORED}
    world.check_settled()


@pytest.mark.parametrize(("deadline_s", "least_s"), [(300, 295.0), (3600, 595.0)])
def test_a_call_is_tried_as_long_as_deadline_and_patience_let_it(deadline_s: int, least_s: float) -> None:
    tries = 0

    async def call(ctx: RequestContext) -> None:
        nonlocal tries
        tries += 1
        raise Unavailable("the generator is not available; retry")

    async def work() -> float:
        with pytest.raises(Unavailable, match="the generator is not available"):
            await CallPolicy().run(context(deadline_ms=deadline_s * 1000), call)
        return virtual_loop().time()

    assert least_s <= run_virtually(work()) <= least_s + 5.0
    assert 100 < tries < 600


def test_a_service_that_stays_away_ends_the_run() -> None:
    world = World(first_pause_s=0.1)

    def away(name: str) -> None:
        if name == "prefill":
            raise Unavailable("the generator is not available; retry")

    world.step = away
    ctx = context(deadline_ms=3_600_000)
    documents = text("a.txt", "One."), text("b.txt", "Two.")
    events = run_virtually(upsert(world.service(parallel_documents=1), *documents, ctx=ctx))
    assert outcome(events) == {"a.txt": Stage.FAILED, "b.txt": Stage.FAILED}
    assert {e.error_code for e in events if e.stage is Stage.FAILED} == {"UNAVAILABLE"}
    assert world.calls["prefill"] > 1


async def test_chunks_that_vanish_before_the_manifest_are_prefilled_again() -> None:
    world = World()

    def vanish(name: str) -> None:
        if name == "put_manifest" and world.calls["put_manifest"] <= 2:
            world.kv.clear()

    world.step = vanish
    assert outcome(await upsert(world.service(), text("a.txt", LONG))) == {"a.txt": Stage.STORED}
    world.check_settled()


async def test_chunks_that_vanish_for_ever_end_in_a_conflict() -> None:
    world = World()
    world.step = lambda name: world.kv.clear() if name == "put_manifest" else None
    events = await upsert(world.service(), text("a.txt", LONG))
    assert events[-1].error_code == "CONFLICT"


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


CHAPTERS = {
    name: f"# {name}\n\n{' '.join(f'{name}{i}' for i in range(45))}" for name in ("One", "Two", "Three")
}


def book(**chapters: str) -> SourceDocument:
    return SourceDocument("book.md", "\n\n".join((CHAPTERS | chapters).values()).encode())


async def test_a_document_is_prefilled_as_chains_and_the_index_knows_the_parents() -> None:
    world = World()
    await upsert(world.service(), book())
    manifest = world.manifests["default", "c", "book.md"]
    headers = [chunk.header_ids for chunk in manifest.chunks if chunk.header_ids]
    assert headers == [WordTokenizer().encode_chunk(f"One {name}") for name in CHAPTERS]
    for i, piece in enumerate(world.pieces):
        chunk, links = manifest.chunks[i], manifest.links_of(i)
        assert sum(map(len, links)) <= CONTEXT_TOKENS
        # what is in front of a block's first chunk is said, of the others the piece before them
        assert piece == (
            Conditioned(chunk.token_ids, links)
            if chunk.header_ids
            else Conditioned(chunk.token_ids, parent_id=chunk.parent_id)
        )
    indexed = world.indexed["default", "c", "book.md"].chunks
    assert [c.parent_id for c in indexed] == [c.parent_id for c in manifest.chunks]
    world.check_settled()


async def test_what_a_call_has_not_said_yet_is_said_with_its_first_chunk() -> None:
    world = World()
    await upsert(world.service(prefill_batch=2), book())
    manifest = world.manifests["default", "c", "book.md"]
    for i, (piece, chunk) in enumerate(zip(world.pieces, manifest.chunks, strict=True)):
        assert isinstance(piece, Conditioned)
        assert piece.context == (() if i % 2 and not chunk.header_ids else manifest.links_of(i))
    world.check_settled()


async def test_the_index_knows_places_and_blocks() -> None:
    world = World()
    await upsert(world.service(), book(), text("a.txt", "Short."))
    indexed = world.indexed["default", "c", "book.md"]
    manifest = world.manifests["default", "c", "book.md"]
    assert indexed.kv_context == manifest.kv_context == "document"
    assert [chunk.place for chunk in indexed.chunks] == list(range(1, 1 + len(manifest.chunks)))
    for index, chunk in enumerate(indexed.chunks):
        block = chunk.block
        assert block is not None
        assert block.first == manifest.block_start(index) + 1
        assert (block.number, block.heading) == (list(CHAPTERS).index(chunk.heading) + 1, chunk.heading)
        assert block.has_header
    plain = World(kv_context=KvContext.NONE)
    await upsert(plain.service(), book())
    indexed = plain.indexed["default", "c", "book.md"]
    assert (indexed.kv_context, {chunk.block for chunk in indexed.chunks}) == ("", {None})


async def test_a_document_that_the_embedder_does_not_read_is_a_warning() -> None:
    world = World()
    document = text("de.txt", "Das ist nicht so.")
    events = await upsert(world.service(), text("en.txt", "It is so."), document)
    told = {e.document_id: e.warnings for e in events if e.stage is Stage.STORED}
    assert told == {"en.txt": (), "de.txt": ("seems not to be English",)}
    assert [e.warnings for e in await upsert(world.service(), document)] == [()]


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


async def test_an_edit_costs_its_block() -> None:
    world = World()
    await upsert(world.service(), book())
    before = {c.chunk_id: c.heading for c in world.manifests["default", "c", "book.md"].chunks}
    world.num_prefilled = 0
    await upsert(world.service(), book(Two=CHAPTERS["Two"].replace("Two3 ", "Two3 changed ")))
    after = world.manifests["default", "c", "book.md"].chunks
    assert {c.heading for c in after if c.chunk_id not in before} == {"Two"}
    assert world.num_prefilled == len([c for c in after if c.chunk_id not in before])


async def test_another_title_costs_the_document() -> None:
    world = World()
    await upsert(world.service(), book(One=CHAPTERS["One"]))
    world.num_prefilled = 0
    await upsert(world.service(), book(One=CHAPTERS["One"].replace("# One", "# First")))
    assert world.num_prefilled == len(world.manifests["default", "c", "book.md"].chunks)


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


async def test_a_lost_chunk_is_prefilled_behind_its_chain() -> None:
    world = World()
    service = world.service()
    await upsert(service, book())
    chunk = world.manifests["default", "c", "book.md"].chunks[2]
    world.kv.discard(chunk.chunk_id)
    events = [e async for e in service.upkeep.refresh(context(), "c", [chunk.chunk_id], "")]
    assert outcome(events) == {"book.md": Stage.STORED}
    world.check_settled()
