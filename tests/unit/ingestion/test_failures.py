"""What goes wrong while documents come in: crashes, services that are away, full disks, unreadable files."""

import itertools

import pytest

from services.ingestion.calls import CallPolicy
from shared.documents import SourceDocument, Stage
from shared.errors import Conflict, StorageFull, Unavailable
from shared.request import RequestContext
from tests.ingestion_world import LONG, Crash, World, context, fail_once, outcome, text, upsert
from tests.virtual_time import run_virtually, virtual_loop

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
