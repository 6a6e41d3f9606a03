"""Documents and sections with readers: where they are cut, what a change of readers costs, and that nobody
reads more on the way."""

from __future__ import annotations

import pytest

from services.ingestion.recipe import Draft
from shared.documents import SourceDocument, Stage
from shared.errors import DocumentTaken, InvalidRequest, PermissionDenied
from shared.kv_types import KvContext
from shared.readers import SectionReaders
from tests.ingestion_world import Crash, Selector, World, context, outcome, text, upsert

SECTIONS = (SectionReaders("Salaries", ("hr",)),)
HANDBOOK = """# Handbook

Everybody may read these words of the beginning.

## Salaries

Ada earns ten and Bob earns nine in gold.

### Bonuses

Nobody gets any of them this year again.

## Holidays

There are many of these for everybody who works.
"""


def handbook(
    *readers: str, sections: tuple[SectionReaders, ...] = SECTIONS, body: str = HANDBOOK
) -> SourceDocument:
    return SourceDocument("handbook.md", body.encode(), readers=readers, sections=sections)


def readers_in(world: World, document_id: str = "handbook.md") -> dict[str, tuple[str, ...]]:
    return {c.text: c.readers for c in world.indexed["default", "c", document_id].chunks}


async def test_readers_go_into_manifest_and_index_each_group_once() -> None:
    world = World()
    document = SourceDocument("a.txt", b"some words", readers=("hr", "board", "hr"))
    assert outcome(await upsert(world.service(), document)) == {"a.txt": Stage.STORED}
    assert world.manifests["default", "c", "a.txt"].readers == ("board", "hr")
    assert set(readers_in(world, "a.txt").values()) == {("board", "hr")}
    (info,) = (await world.service().list_documents(context(), "c", "", 0)).documents
    assert info.readers == ("board", "hr")
    world.check_settled()


@pytest.mark.parametrize("kv_context", list(KvContext))
async def test_a_section_with_other_readers_is_in_chunks_and_blocks_of_its_own(kv_context: KvContext) -> None:
    world = World(kv_context=kv_context)
    await upsert(world.service(chunk_tokens=64), handbook("hr", "staff"))
    manifest = world.manifests["default", "c", "handbook.md"]
    for i, chunk in enumerate(manifest.chunks):
        secret = "earns" in chunk.text or "Nobody gets" in chunk.text
        assert manifest.readers_of(i) == (("hr",) if secret else ("hr", "staff"))
        assert not (secret and ("Everybody" in chunk.text or "Holidays" in chunk.text))
        in_front = " ".join(manifest.link_texts_of(i))
        assert secret or not ("earns" in in_front or "Nobody gets" in in_front)
    if kv_context is KvContext.DOCUMENT:
        assert [manifest.block_start(i) for i in range(3)] == [0, 1, 2]
    assert readers_in(world)[manifest.chunks[1].text] == ("hr",)
    world.check_settled()


async def test_a_section_that_is_not_there_fails_its_document_and_names_the_headings() -> None:
    world = World()
    document = handbook(sections=(SectionReaders("Salary", ("hr",)),))
    events = await upsert(world.service(), document, text("other.txt", "words"))
    assert outcome(events) == {"handbook.md": Stage.FAILED, "other.txt": Stage.STORED}
    (failed,) = [event for event in events if event.stage is Stage.FAILED]
    assert failed.error.startswith(
        "sections: the document has no heading 'Salary'; it has 'Handbook', 'Salaries'"
    )
    assert ("default", "c", "handbook.md") not in world.manifests


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (handbook("a b"), r"documents\[0\]\.readers\[0\]: 'a b' is no word"),
        (handbook(*(f"g{i}" for i in range(10_000))), r"documents\[0\]\.readers: 10000 groups"),
        (handbook("staff"), r"documents\[0\]\.sections\[0\]\.readers: 'hr' is not among"),
        (
            handbook(sections=(SectionReaders("S", ()),)),
            r"documents\[0\]\.sections\[0\]\.readers: names nobody",
        ),
    ],
)
async def test_readers_that_cannot_be_stop_the_run_before_it_begins(
    document: SourceDocument, message: str
) -> None:
    world = World()
    with pytest.raises(InvalidRequest, match=message):
        await upsert(world.service(), document)
    assert not world.calls["prefill"]


async def test_a_change_of_readers_alone_prefills_parses_and_embeds_nothing() -> None:
    world = World()
    service = world.service()
    await upsert(service, handbook("hr", "staff"))
    before = world.manifests["default", "c", "handbook.md"]
    for readers in (("hr",), ("board", "hr"), (), ("hr", "staff")):
        world.calls.clear()
        assert outcome(await upsert(service, handbook(*readers))) == {"handbook.md": Stage.STORED}
        assert not world.calls["prefill"]
        assert world.manifests["default", "c", "handbook.md"].chunks == before.chunks
        world.check_settled()
    world.calls.clear()
    assert outcome(await upsert(service, handbook("hr", "staff"))) == {"handbook.md": Stage.UNCHANGED}
    assert not world.calls["put_manifest"]


async def test_other_sections_make_other_blocks_and_compute_only_these() -> None:
    world = World()
    service = world.service(chunk_tokens=64)
    await upsert(service, handbook(sections=()))
    await upsert(service, handbook(body=HANDBOOK))
    assert ("hr",) in readers_in(world).values()
    computed = world.num_prefilled
    await upsert(service, handbook(sections=(SectionReaders("Salaries", ("board",)),)))
    assert world.num_prefilled == computed
    assert ("board",) in readers_in(world).values()
    world.check_settled()


@pytest.mark.parametrize(
    "crash_at", ["restrict", "restricted", "put_manifest", "manifest_put", "index", "indexed"]
)
@pytest.mark.parametrize(
    ("old", "new"), [(("a", "b"), ("a",)), (("a",), ("a", "b")), (("a",), ("b",)), ((), ("a",)), (("a",), ())]
)
async def test_wherever_a_change_of_readers_ends_nobody_reads_more_than_by_the_old_or_the_new_ones(
    old: tuple[str, ...], new: tuple[str, ...], crash_at: str
) -> None:
    world = World()
    await upsert(world.service(), SourceDocument("d.txt", b"words", readers=old))

    def crash(step: str) -> None:
        index = set(readers_in(world, "d.txt").values())
        manifest = world.manifests["default", "c", "d.txt"].readers
        if manifest == new:  # from here on nobody finds it whom the manifest does not name
            assert all(not new or (readers and set(readers) - {""} <= set(new)) for readers in index)
        if step == crash_at:
            raise Crash

    world.step = crash
    document = SourceDocument("d.txt", b"words", readers=new)
    if crash_at in ("restrict", "restricted") and (not new or (set(old) <= set(new) and old)):
        await upsert(world.service(), document)
    else:
        with pytest.raises(BaseExceptionGroup):
            await upsert(world.service(), document)
    world.step = lambda step: None
    await upsert(world.service(), document)
    assert world.manifests["default", "c", "d.txt"].readers == new
    world.check_settled()


async def test_who_may_not_read_a_document_is_not_told_of_it_and_cannot_take_its_place() -> None:
    world = World()
    service = world.service()
    await upsert(
        service, SourceDocument("secret.txt", b"secret words", readers=("hr",)), text("open.txt", "words")
    )
    stranger = context(groups=["staff"])
    listed = (await service.list_documents(stranger, "c", "", 0)).documents
    assert [info.document_id for info in listed] == ["open.txt"]
    deleted = await service.delete(stranger, "c", ["secret.txt", "gone.txt"], everything=False)
    assert deleted.not_found == ("secret.txt", "gone.txt")
    events = await upsert(service, text("secret.txt", "others"), ctx=stranger)
    assert [event.error_code for event in events if event.stage is Stage.FAILED] == [DocumentTaken.code]
    assert "secret words" in world.texts()["secret.txt"]
    await service.delete(stranger, "c", (), everything=True)
    assert set(world.texts()) == {"secret.txt"}


@pytest.mark.parametrize("document", [SourceDocument("handbook.md", b"words", readers=("hr",)), handbook()])
async def test_for_a_document_that_one_may_not_replace_nothing_is_computed(document: SourceDocument) -> None:
    world = World()
    world.selector = Selector(world.kv)
    service = world.service()
    await upsert(service, document)
    told_before, kv = world.manifests["default", "c", "handbook.md"], set(world.kv)
    world.calls.clear()
    others = text("handbook.md", "quite other words"), text("b.txt", "more")
    events = await upsert(service, *others, ctx=context(groups=["staff"]))
    assert outcome(events) == {"handbook.md": Stage.FAILED, "b.txt": Stage.STORED}
    assert world.calls["prefill"] == 1, "of the other document"
    assert len(world.kv - kv) == len(world.manifests["default", "c", "b.txt"].kv_ids)
    assert world.manifests["default", "c", "handbook.md"] == told_before


async def test_the_kv_of_documents_that_one_may_not_read_is_not_counted() -> None:
    world = World(kv_context=KvContext.NONE)
    service = world.service()
    await upsert(service, SourceDocument("secret.txt", b"the very same words", readers=("hr",)))
    for groups, reused in ((["staff"], 0), (["hr"], 1)):
        copy = text(f"{groups[0]}.txt", "the very same words")
        events = await upsert(service, copy, ctx=context(groups=groups))
        assert events[-1].stage is Stage.STORED
        assert events[-1].num_chunks_reused == reused
    assert world.num_prefilled == 1


async def test_who_reads_a_part_replaces_and_removes_nothing() -> None:
    world = World()
    service = world.service()
    await upsert(service, handbook())
    stranger = context(groups=["staff"])
    (info,) = (await service.list_documents(stranger, "c", "", 0)).documents
    assert (info.num_chunks, info.sections) == (
        len(world.indexed["default", "c", "handbook.md"].chunks) - 2,
        (),
    )
    events = await upsert(service, text("handbook.md", "others"), ctx=stranger)
    assert events[-1].error_code == DocumentTaken.code
    assert not any(event.stage is Stage.PREFILLED for event in events)
    with pytest.raises(DocumentTaken):
        await service.delete(stranger, "c", ["handbook.md"], everything=False)
    world.check_invariants()


async def test_a_collection_is_indexed_for_another_embedder_by_who_reads_all_of_it() -> None:
    world = World()
    service = world.service()
    await upsert(service, text("a.txt", "words"))
    world.other_embedder["c"] = {}
    with pytest.raises(PermissionDenied):
        _ = [event async for event in service.upkeep.rebuild(context(groups=["hr"]), "c")]
    assert [event.stage async for event in service.upkeep.rebuild(context(groups=["*"]), "c")] == [
        Stage.STORED
    ]


async def test_re_encoding_keeps_readers_and_their_borders() -> None:
    world = World()
    await upsert(world.service(chunk_tokens=64), handbook("hr", "staff"))
    again = world.service(chunk_tokens=24)
    _ = [event async for event in again.re_encode(context(), "c")]
    manifest = world.manifests["default", "c", "handbook.md"]
    assert (manifest.readers, manifest.sections) == (("hr", "staff"), SECTIONS)
    for i in range(len(manifest.chunks)):
        if manifest.readers_of(i) != ("hr",):
            assert "earns" not in " ".join(manifest.link_texts_of(i))
    world.check_settled()


@pytest.mark.parametrize("redacted", range(3))
async def test_deleting_a_passage_leaves_no_chunk_of_its_block_that_saw_it(redacted: int) -> None:
    world = World()
    service = world.service(chunk_tokens=16)
    passages = [
        f"passage {name} says so many words of its own and ends with {name}{name}"
        for name in ("one", "two", "three")
    ]
    await upsert(service, text("d.txt", "\n\n".join(passages)))
    before = world.manifests["default", "c", "d.txt"]
    gone = passages.pop(redacted)
    await upsert(service, text("d.txt", "\n\n".join(passages)))
    saw = {
        chunk.chunk_id
        for i, chunk in enumerate(before.chunks)
        if gone.split()[-1] in " ".join([*before.link_texts_of(i), chunk.text])
    }
    assert saw
    assert not saw & world.kv
    world.check_settled()


def test_a_draft_is_for_everybody_unless_it_says_otherwise() -> None:
    assert Draft("d", "", "", {}, ()).readers == ()
