"""Items on a disk, whatever happens to it, and what of them counts."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from services.kv_store.blobs.directory import DirectoryBlobs
from services.kv_store.blobs.disk import Disk
from services.kv_store.blobs.staging import Staging
from services.kv_store.documents.items import Items
from services.kv_store.documents.quotas import QuotaConfig
from services.kv_store.documents.sealed_json import seal
from services.kv_store.node.agent import Agent
from shared.admission.settings import PrincipalLimits
from shared.errors import Conflict, CorruptData, NotFound, StorageFull, Unavailable
from shared.kv_format import SealKey, SealKeys
from shared.kv_items import Expected, Item
from shared.limits import RequestLimits
from shared.principals.principal import Principal, Role
from shared.request import RequestContext
from tests.dict_blobs import DictBlobs
from tests.faulty_blobs import FailingBlobs, HookedBlobs
from tests.kv_chunks import chunk_bytes, chunk_id_of
from tests.kv_stores import KnownNodes, agent_on, in_pieces
from tests.unit.kv_store.disks import Crash, DyingDisk, FullDisk, QuickDisk
from tests.unit.kv_store.test_principal_quotas import ANNA, BERT, document

WHO = Principal.operator("acme")
NOTE = Item("file", "file-1", {"name": "a.txt"})


def blobs_in(directory: Path, disk: Disk | None = None) -> DirectoryBlobs:
    disk = disk or QuickDisk()
    return DirectoryBlobs(directory / "items", Staging(directory / "staging", disk), disk)


def put(items: Items, item: Item = NOTE, content: bytes = b"text") -> Item:
    return items.put(WHO, item, content, Expected.EITHER)


def member(*groups: str) -> RequestContext:
    principal = Principal("key/anna", "acme", frozenset({Role.WRITER}), frozenset(groups))
    return RequestContext.create(principal=principal, deadline_ms=36_000_000)


def ids(items: Items) -> list[str]:
    return [item.id for item in items.page(WHO, "file", "", "", 0, False).items]


def test_a_crash_at_any_write_leaves_an_item_whole_or_not_there(tmp_path: Path) -> None:
    for dies_at in range(100):
        directory = tmp_path / str(dies_at)
        try:
            put(Items(blobs_in(directory, DyingDisk(dies_at))))
            break
        except Crash:
            items = Items(blobs_in(directory), clock=lambda: 2e10)
            try:
                assert items.content(WHO, "file", "file-1")[1] == b"text"
            except NotFound:
                items.tidy(3600)
                assert blobs_in(directory).list("kept/").blobs == ()
    assert 2 < dies_at < 99


def test_content_that_was_just_put_is_not_tidied_away(tmp_path: Path) -> None:
    blobs = blobs_in(tmp_path)
    items = Items(blobs)
    blobs.put("kept/acme/file/file-2.data", b"its item follows")
    put(items)
    assert items.tidy(3600) == 0
    assert Items(blobs, clock=lambda: 2e10).tidy(3600) == 1
    assert items.content(WHO, "file", "file-1")[1] == b"text"


def test_what_is_being_put_is_not_tidied_away_though_the_clock_jumps(tmp_path: Path) -> None:
    tidied: list[int] = []

    def hook(method: str, name: str) -> None:
        if method == "put" and name.endswith(".json"):  # its content is there by now
            tidied.append(items.tidy(3600))

    items = Items(HookedBlobs(blobs_in(tmp_path), hook), clock=lambda: 2e10)
    put(items)
    assert tidied == [0]
    assert items.content(WHO, "file", "file-1")[1] == b"text"


def test_a_full_disk_keeps_what_was_there(tmp_path: Path) -> None:
    put(Items(blobs_in(tmp_path)))
    for full_at in range(2):
        full = Items(blobs_in(tmp_path, FullDisk(full_at)))
        with pytest.raises(StorageFull):
            put(full, Item("file", "file-2"), b"more")
        assert ids(full) == ["file-1"]


@pytest.mark.parametrize("ending", [".json", ".data"])
def test_damage_is_told_left_out_of_lists_and_can_be_deleted(tmp_path: Path, ending: str) -> None:
    put(Items(blobs_in(tmp_path)))
    put(Items(blobs_in(tmp_path)), replace(NOTE, id="file-2"))
    path = tmp_path / "items" / "kept" / "acme" / "file" / f"file-1{ending}"
    path.write_bytes(path.read_bytes().replace(b"t", b"T"))
    items = Items(blobs_in(tmp_path))
    with pytest.raises(CorruptData):
        items.content(WHO, "file", "file-1")
    assert ids(items) == (["file-2"] if ending == ".json" else ["file-1", "file-2"])
    items.remove(WHO, "file", "file-1")
    with pytest.raises(NotFound):
        items.get(WHO, "file", "file-1")


def test_what_was_sealed_with_another_key_is_not_believed(tmp_path: Path) -> None:
    ours, others = SealKeys([SealKey(b"a" * 32)], required=True), SealKeys([SealKey(b"b" * 32)])
    put(Items(blobs_in(tmp_path), ours))
    assert ids(Items(blobs_in(tmp_path), ours)) == ["file-1"]
    assert ids(Items(blobs_in(tmp_path), others)) == []
    put(Items(blobs_in(tmp_path)), replace(NOTE, id="file-2"))
    with pytest.raises(CorruptData):
        Items(blobs_in(tmp_path), ours).get(WHO, "file", "file-2")


def test_what_was_kept_on_the_disk_moves_to_an_object_store(tmp_path: Path) -> None:
    local, objects = blobs_in(tmp_path), DictBlobs()
    put(Items(local))
    put(Items(local), replace(NOTE, id="file-2"), b"")
    items = Items(objects)
    assert items.take_over(local) == 3
    assert items.content(WHO, "file", "file-1")[1] == b"text"
    assert items.get(WHO, "file", "file-2").digest == ""
    assert local.list("kept/").blobs == ()


async def test_an_agent_moves_what_it_kept_once_it_has_an_object_store(tmp_path: Path) -> None:
    before = agent_on(tmp_path, "home", KnownNodes())
    await before.put_item(ANNA, NOTE, b"text")
    await before.close()
    after = agent_on(tmp_path, "home", KnownNodes(), objects=DictBlobs())
    await after.recover(ANNA)
    assert (await after.get_item(ANNA, "file", "file-1", with_content=True))[1] == b"text"
    await after.close()


@pytest.mark.parametrize("objects", [None, DictBlobs], ids=["disk only", "object store"])
async def test_files_and_documents_of_one_principal_count_together(
    tmp_path: Path, objects: type[DictBlobs] | None
) -> None:
    one, two = chunk_id_of(0), chunk_id_of(1)
    size = len(chunk_bytes(one))
    limits = RequestLimits(per_principal=PrincipalLimits(stored_bytes=2 * size))
    agent = agent_on(tmp_path, "home", KnownNodes(), objects=objects and objects(), limits=limits)
    for chunk in (one, two):
        await agent.put(ANNA, chunk, size, in_pieces(chunk_bytes(chunk)))
    await agent.put_manifest(ANNA, document("1", one))
    await agent.put_item(ANNA, NOTE, b"x" * (size // 2))
    with pytest.raises(StorageFull, match=r"limits\.per_principal\.stored_bytes"):
        await agent.put_item(ANNA, replace(NOTE, id="file-2"), b"x" * (size // 2))
    await agent.put_item(BERT, replace(NOTE, id="file-2"), b"x" * (size // 2))
    with pytest.raises(StorageFull, match=r"limits\.per_principal\.stored_bytes"):
        await agent.put_manifest(ANNA, document("2", two))
    await agent.delete_item(ANNA, "file", "file-1")
    await agent.put_manifest(ANNA, document("2", two))
    await agent.close()


async def test_who_is_in_none_of_its_groups_is_told_that_there_is_none(tmp_path: Path) -> None:
    store = agent_on(tmp_path, "home", KnownNodes())
    legal, sales = member("legal"), member("sales")
    await store.put_item(legal, replace(NOTE, readers=("legal",)), b"secret")
    assert [item.id for item in (await store.item_page(legal, "file")).items] == ["file-1"]
    assert (await store.item_page(sales, "file")).items == ()
    with pytest.raises(NotFound):
        await store.get_item(sales, "file", "file-1", with_content=True)
    with pytest.raises(NotFound):
        await store.delete_item(sales, "file", "file-1")
    with pytest.raises(NotFound):
        await store.put_item(sales, NOTE)
    with pytest.raises(Conflict):
        await store.put_item(sales, NOTE, expected=Expected.NEW)
    assert (await store.get_item(legal, "file", "file-1", with_content=True))[1] == b"secret"
    await store.close()


async def test_documents_are_listed_from_the_last_one_to_the_first(tmp_path: Path) -> None:
    agent = agent_on(tmp_path, "home", KnownNodes())
    for name in "abcd":
        await agent.put_manifest(ANNA, document(name))

    async def listed(start_after: str = "", limit: int = 0) -> list[str]:
        page = await agent.manifest_page(ANNA, "books", start_after, limit, True, descending=True)
        return [manifest.document_id for manifest in page.manifests]

    assert await listed() == ["d", "c", "b", "a"]
    assert await listed("c", 1) == ["b"]
    assert await listed("a") == []
    page = await agent.manifest_page(ANNA, "", "books/c", 0, True, descending=True)
    assert [manifest.document_id for manifest in page.manifests] == ["b", "a"]
    await agent.close()


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("told", "what is known of it is damaged"),
        ("content", "its bytes are damaged; upload it again"),
        ("gone", "its bytes are gone; upload it again"),
    ],
)
def test_verification_names_what_is_damaged_and_believes_nothing_that_it_read_before(
    tmp_path: Path, damage: str, told: str
) -> None:
    items = Items(blobs_in(tmp_path))
    for name in ("file-1", "file-2"):
        put(items, replace(NOTE, id=name))
    put(items, Item("vector_store", "vs-1"), b"")
    assert items.verify() == []
    folder = tmp_path / "items" / "kept" / "acme" / "file"
    path = folder / ("file-1.json" if damage == "told" else "file-1.data")
    if damage == "gone":
        path.unlink()
    else:
        old = path.stat()
        path.write_bytes(path.read_bytes().replace(b"t", b"T"))
        os.utime(path, ns=(old.st_atime_ns, old.st_mtime_ns))
    (found,) = items.verify()
    assert found.name == "acme/file/file-1"
    assert told in found.reason
    assert not found.restored


def test_what_a_later_version_kept_is_no_damage(tmp_path: Path) -> None:
    blobs = blobs_in(tmp_path)
    put(Items(blobs))
    blobs.put("kept/acme/file/file-1.json", seal({"version": 99, "item": {}}, None))
    assert Items(blobs).verify() == []


def test_usage_counts_what_the_caller_may_read(tmp_path: Path) -> None:
    items = Items(blobs_in(tmp_path))
    put(items)
    put(items, replace(NOTE, id="file-2", readers=("law",)), b"0123456789")
    items.put(Principal.operator("beta"), NOTE, b"", Expected.NEW)
    everything = items.usage(WHO)
    assert {tenant: num for tenant, (num, _) in everything.items()} == {"acme": 2, "beta": 1}
    assert everything["acme"][1] == items.num_bytes("acme")
    assert items.usage(member().principal)["acme"][0] == 1
    assert items.usage(member("law").principal)["acme"] == everything["acme"]


def test_usage_is_told_as_last_seen_while_the_blobs_cannot_be_reached() -> None:
    blobs = FailingBlobs(DictBlobs())
    items = Items(blobs)
    put(items)
    put(items, replace(NOTE, id="file-2", readers=("law",)), b"0123456789")
    before, of_member = items.usage(WHO), items.usage(member().principal)
    blobs.failure = Unavailable("down")
    assert items.usage(WHO) == before
    assert items.usage(member().principal) == of_member
    assert Items(blobs).usage(WHO) == {}


def test_lists_name_what_cannot_be_read_to_who_reads_everything(tmp_path: Path) -> None:
    blobs = blobs_in(tmp_path)
    put(Items(blobs))
    put(Items(blobs), replace(NOTE, id="file-2"))
    blobs.put("kept/acme/file/file-1.json", b"damaged")
    page = Items(blobs).page(WHO, "", "", "", 0, False)
    assert ([item.id for item in page.items], page.unreadable) == (["file-2"], ("file/file-1",))
    page = Items(blobs).page(member("law").principal, "file", "", "", 0, False)
    assert ([item.id for item in page.items], page.unreadable) == (["file-2"], ())


@pytest.mark.parametrize("later_version", [False, True])
def test_what_cannot_be_read_still_counts_for_its_tenant(tmp_path: Path, later_version: bool) -> None:
    blobs = blobs_in(tmp_path)
    put(Items(blobs), content=b"x" * 1000)
    put(Items(blobs), replace(NOTE, id="file-2"))
    whole = Items(blobs).num_bytes("acme")
    told = b"".join(blobs.read("kept/acme/file/file-1.json"))
    damaged = told.replace(b"a.txt", b"b.txt")
    blobs.put("kept/acme/file/file-1.json", seal({"version": 99}) if later_version else damaged)
    items = Items(blobs)
    assert items.num_bytes("acme") == whole - (len(told) - len(seal({"version": 99})) if later_version else 0)
    assert items.num_bytes("acme", WHO.name) < 1000  # nobody can tell whose it is
    assert items.usage(WHO) == {"acme": (2, items.num_bytes("acme"))}
    assert items.usage(member().principal)["acme"] == (1, items.num_bytes("acme", WHO.name))


async def test_damage_makes_no_room_within_a_tenants_quota(tmp_path: Path) -> None:
    def agent() -> Agent:
        return agent_on(tmp_path, "home", KnownNodes(), quotas=QuotaConfig(1500))

    store = agent()
    await store.put_item(ANNA, NOTE, b"x" * 1000)
    await store.close()
    (path,) = tmp_path.rglob("file-1.json")
    path.write_bytes(path.read_bytes().replace(b"a.txt", b"b.txt"))
    store = agent()
    with pytest.raises(StorageFull, match="quota of 1500"):
        await store.put_item(ANNA, replace(NOTE, id="file-2"), b"x" * 1000)
    await store.delete_item(ANNA, "file", "file-1")
    await store.put_item(ANNA, replace(NOTE, id="file-2"), b"x" * 1000)
    await store.close()


async def test_an_agents_statistics_and_verification_know_of_items(tmp_path: Path) -> None:
    agent = agent_on(tmp_path, "home", KnownNodes())
    ctx = RequestContext.create(tenant="acme", deadline_ms=36_000_000)
    await agent.put_item(ctx, NOTE, b"text")
    (tenant,) = (await agent.stats(ctx)).tenants
    assert (tenant.tenant, tenant.num_documents, tenant.num_items) == ("acme", 0, 1)
    assert tenant.item_bytes > len(b"text")
    (path,) = tmp_path.rglob("file-1.data")
    path.write_bytes(b"tixt")
    damaged = [record async for now in agent.verify(ctx) for record in now.damaged_records]
    assert [record.name for record in damaged] == ["acme/file/file-1"]
    await agent.close()
