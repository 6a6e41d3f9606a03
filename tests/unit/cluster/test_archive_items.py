"""What front doors keep beside documents, out of one store, into a file, into another store."""

from __future__ import annotations

import dataclasses
import json
import shutil
import tarfile
from pathlib import Path

import pytest

from cluster.archive.items import decode_item, encode_item
from cluster.archive.transfer import Transferred, export_collection, import_collection
from services.kv_store.blobs.protocol import list_all
from services.kv_store.documents.quotas import QuotaConfig
from shared.admission.settings import OwnAllowance, PrincipalLimits
from shared.errors import (
    Conflict,
    CorruptData,
    FailedPrecondition,
    InvalidRequest,
    KvquiltError,
    NotFound,
    StorageFull,
    Unavailable,
)
from shared.kv_items import Expected, Item
from shared.limits import RequestLimits
from shared.principals.principal import Principal, Role
from shared.request import RequestContext
from tests.kv_stores import KnownNodes, agent_on
from tests.unit.cluster.test_archive import MODEL, QUIET, Store, ctx

ANNA = Principal("key/anna", "acme", frozenset({Role.WRITER}), frozenset("*"))
ONE, TWO, THREE, OTHER = (f"file-{n:024x}" for n in range(4))
NOTES = [
    Item("attachment", f"books/{TWO}", {"status": "in_progress", "document": f"{TWO}/b.txt"}),
    Item("batch", "books/vsfb_1", {"file_ids": json.dumps([ONE, THREE])}),
    Item("vector_store", "books", {"name": "books", "description": "ü"}),
]
FILES = {one: f"text of {one}\n\n".encode() + bytes(range(256)) for one in (ONE, TWO, THREE, OTHER)}
ELSEWHERE = [
    Item("response", "resp_1"),
    Item("vector_store", "films", {"name": "Films"}),
    Item("batch", "films/vsfb_1", {"file_ids": json.dumps([OTHER])}),
]


def file_item(file_id: str) -> Item:
    return Item("file", file_id, {"name": "a.txt", "purpose": "assistants"}, readers=("legal",))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "store")
    made.add_document(f"{ONE}/a.txt", (1, 2, 3), (4, 5))
    made.add_document("plain.txt", (4, 5))
    made.add_document("film", (9, 9), collection="films")
    for note in (*NOTES, *ELSEWHERE):
        made.items.put(ANNA, note, b"said" if note.kind == "response" else b"", Expected.NEW)
    for file_id, content in FILES.items():
        made.items.put(ANNA, file_item(file_id), content, Expected.NEW)
    return made


@pytest.fixture
def other(tmp_path: Path) -> Store:
    return Store(tmp_path / "other")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "books.kvquilt"


async def export(store: Store, file: Path, collection: str = "books", **of: bool) -> Transferred:
    return await export_collection(QUIET, store, ctx(), collection, file, **of)


async def bring(
    store: Store, file: Path, collection: str = "", tenant: str = "acme", **of: bool
) -> Transferred:
    return await import_collection(QUIET, store, ctx(tenant), MODEL, file, collection, **of)


def kept(store: Store, tenant: str = "acme") -> dict[str, tuple[Item, bytes]]:
    """By name, with the content."""
    who = Principal.operator(tenant)
    names = [blob.name.split("/", 2)[2] for blob in list_all(store.blobs, "kept/")]
    told = [name.removesuffix(".json").partition("/") for name in names if name.endswith(".json")]
    return {f"{kind}/{one}": store.items.content(who, kind, one) for kind, _, one in told}


OF_BOOKS = {f"file/{one}" for one in (ONE, TWO, THREE)} | {note.name for note in NOTES}


async def test_a_collection_moves_with_its_vector_store_its_files_and_what_is_on_its_way_into_it(
    store: Store, other: Store, file: Path
) -> None:
    assert await export(store, file) == Transferred("books", 2, 2, 2, 6, 6)
    assert await bring(other, file) == Transferred("books", 2, 2, 2, 6, 6)
    assert kept(other) == {name: one for name, one in kept(store).items() if name in OF_BOOKS}
    assert {item.stored_by for item, _ in kept(other).values()} == {"key/anna"}
    assert await bring(other, file) == Transferred("books", 2, 2, 0, 6, 0)


async def test_a_whole_tenant_moves_with_everything_it_has(store: Store, other: Store, file: Path) -> None:
    assert await export(store, file, "") == Transferred("", 3, 3, 3, 10, 10)
    assert await bring(other, file) == Transferred("", 3, 3, 3, 10, 10)
    assert kept(other) == kept(store)
    assert other.manifests == store.manifests
    with pytest.raises(InvalidRequest, match="--collection: the archive holds all collections"):
        await bring(other, file, "novels")


async def test_items_alone_are_enough_to_be_moved(store: Store, other: Store, file: Path) -> None:
    store.manifests.clear()
    assert await export(store, file) == Transferred("books", 0, 0, 0, 6, 6)
    await bring(other, file)
    assert set(kept(other)) == OF_BOOKS
    with pytest.raises(NotFound, match="collection 'nowhere' does not exist"):
        await export(store, file, "nowhere")


async def test_under_another_name_they_belong_to_the_collection_of_that_name(
    store: Store, other: Store, file: Path
) -> None:
    await export(store, file)
    await bring(other, file, "novels")
    assert set(kept(other)) == {name.replace("books", "novels") for name in OF_BOOKS}
    assert kept(other)["vector_store/novels"][0].fields["name"] == "novels"


async def test_for_another_tenant_they_become_the_importers(store: Store, other: Store, file: Path) -> None:
    await export(store, file)
    await bring(other, file, tenant="beta")
    found = kept(other, "beta")
    assert set(found) == OF_BOOKS
    assert {item.stored_by for item, _ in found.values()} == {"operator"}
    assert found[f"file/{ONE}"][0].created_s == kept(store)[f"file/{ONE}"][0].created_s


async def test_they_may_be_left_behind_on_either_side(store: Store, other: Store, file: Path) -> None:
    await export(store, file)
    assert await bring(other, file, with_items=False) == Transferred("books", 2, 2, 2)
    assert not kept(other)
    assert await export(store, file, with_items=False) == Transferred("books", 2, 2, 2)
    with tarfile.open(file) as archive:
        assert not [name for name in archive.getnames() if name.startswith("items/")]


async def test_an_interrupted_export_goes_on_after_its_last_whole_item(
    store: Store, other: Store, file: Path
) -> None:
    for fail_after, items, chunks in ((2, 4, 2), (6, 0, 2), (7, 0, 1)):
        store.fail_after = fail_after
        with pytest.raises(Unavailable):
            await export(store, file)
        store.fail_after = 10**9
        assert await export(store, file) == Transferred("books", 2, 2, chunks, 6, items)
    await bring(other, file)
    assert set(kept(other)) == OF_BOOKS


async def test_a_part_of_other_items_is_not_continued(store: Store, file: Path) -> None:
    store.fail_after = 3
    with pytest.raises(Unavailable):
        await export(store, file)
    store.items.put(ANNA, dataclasses.replace(NOTES[2], fields={"name": "other"}), b"", Expected.THERE)
    store.fail_after = 10**9
    assert (await export(store, file)).num_items_sent == 6


async def test_an_interrupted_import_sends_only_what_is_not_there(
    store: Store, other: Store, file: Path
) -> None:
    await export(store, file)
    other.fail_after = 4
    with pytest.raises(Unavailable):
        await bring(other, file)
    assert not other.puts
    other.fail_after = 10**9
    assert await bring(other, file) == Transferred("books", 2, 2, 2, 6, 2)


@pytest.mark.parametrize("ending", [".json", ".data"])
async def test_a_damaged_item_stops_the_export_and_is_named(store: Store, file: Path, ending: str) -> None:
    name = f"kept/acme/file/{TWO}{ending}"
    store.blobs.put(name, b"".join(store.blobs.read(name)).replace(b"t", b"T"))
    for collection in ("books", ""):
        with pytest.raises(FailedPrecondition, match=f"file/{TWO} cannot be exported: .*--no-items"):
            await export(store, file, collection)
    await export(store, file, with_items=False)


async def test_an_item_that_changes_meanwhile_stops_the_export(store: Store, file: Path) -> None:
    class Changing(Store):
        async def get_item(
            self, ctx: RequestContext, kind: str, item_id: str, with_content: bool = False
        ) -> tuple[Item, bytes]:
            if with_content:
                self.items.remove(ctx.principal, kind, item_id)
            return await super().get_item(ctx, kind, item_id, with_content)

    store.__class__ = Changing
    with pytest.raises(FailedPrecondition, match="changed or deleted meanwhile; give the same command again"):
        await export(store, file)


async def test_another_item_of_the_same_name_is_told_before_anything_changes(
    store: Store, other: Store, file: Path
) -> None:
    await export(store, file)
    other.items.put(ANNA, file_item(THREE), b"other", Expected.NEW)
    before = kept(other)
    with pytest.raises(Conflict, match=f"file/{THREE}: .*--replace-items"):
        await bring(other, file)
    assert kept(other) == before
    assert await bring(other, file, replaces=True) == Transferred("books", 2, 2, 2, 6, 6)
    assert kept(other)[f"file/{THREE}"] == kept(store)[f"file/{THREE}"]


async def test_a_damaged_one_counts_as_another_one(store: Store, other: Store, file: Path) -> None:
    await export(store, file)
    await bring(other, file)
    other.blobs.put("kept/acme/vector_store/books.json", b"damaged")
    with pytest.raises(Conflict, match="vector_store/books"):
        await bring(other, file)
    assert (await bring(other, file, replaces=True)).num_items_sent == 1


async def test_no_single_flipped_byte_brings_a_wrong_item_in(
    store: Store, tmp_path: Path, file: Path
) -> None:
    await export(store, file)
    whole, wanted = file.read_bytes(), kept(store)
    with tarfile.open(file) as archive:
        end = next(member.offset for member in archive.getmembers() if member.name.startswith("chunks/"))
    for at in range(0, end, 41):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        target = Store(tmp_path / "target")
        try:
            await bring(target, file)
        except KvquiltError as error:
            assert isinstance(error, (CorruptData, InvalidRequest)), (at, error)  # noqa: PT017
        assert all(wanted[name] == one for name, one in kept(target).items())
        shutil.rmtree(target.directory)


def test_a_member_holds_the_item_that_it_is_named_after() -> None:
    item = dataclasses.replace(file_item(ONE), digest="")
    assert decode_item(encode_item(item), item.name) == (item, b"")
    for name, data in (("file/other", encode_item(item)), (item.name, encode_item(item, b"more"))):
        with pytest.raises(CorruptData, match="of the archive is damaged"):
            decode_item(data, name)


@pytest.mark.parametrize("limit", ["tenant", "principal"])
async def test_quotas_hold_for_what_is_imported(store: Store, tmp_path: Path, file: Path, limit: str) -> None:
    store.manifests.clear()
    await export(store, file)
    quotas = QuotaConfig(1200 if limit == "tenant" else 0)
    own = {"acme/key/anna": OwnAllowance(stored_bytes=1200)} if limit == "principal" else {}
    limits = RequestLimits(per_principal=PrincipalLimits(of=own))
    agent = agent_on(tmp_path / "agent", "home", KnownNodes(), quotas=quotas, limits=limits)
    with pytest.raises(StorageFull, match=r"quota of 1200|key/anna of tenant 'acme'"):
        await import_collection(QUIET, agent, ctx(), MODEL, file)
    brought = (await agent.item_page(ctx(), "")).items
    assert 0 < len(brought) < 6
    assert {item.stored_by for item in brought} == {"key/anna"}
    await agent.close()
