"""What every store keeps to about items: the domain object itself, an agent over gRPC, and a cluster of
agents behind its front."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from shared.errors import Conflict, CorruptData, InvalidRequest, NotFound
from shared.kv_items import Expected, Item
from shared.kv_stores import ItemStore
from shared.principals.principal import Principal, Role
from shared.request import RequestContext
from tests.contract.test_kv_store import objects_of
from tests.kv_stores import KnownNodes, agent_on, cluster, over_grpc

CTX = RequestContext.create(tenant="acme", deadline_ms=36_000_000)
OTHERS = RequestContext.create(tenant="others", deadline_ms=36_000_000)
NOTE = Item("file", "file-1", {"name": "ü.txt", "purpose": "assistants"})
WHOLE = bytes(range(256)) * 10_000


@pytest.fixture(
    params=["disk only", "object store", "S3 server", "disk only, over gRPC", "object store, a cluster"]
)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ItemStore]:
    objects = objects_of(request)
    if "cluster" in request.param:
        async with cluster(tmp_path, ["home", "other"], objects) as (front, _, _):
            yield front
        return
    agent = agent_on(tmp_path, "home", KnownNodes(), objects=objects)
    async with over_grpc(agent) as client:
        yield client if "gRPC" in request.param else agent
    await agent.close()


async def ids(store: ItemStore, ctx: RequestContext = CTX, kind: str = "file", **asked: object) -> list[str]:
    page = await store.item_page(ctx, kind, **asked)  # type: ignore[arg-type]
    return [item.id for item in page.items]


async def test_an_item_comes_back_as_it_was_put_with_what_the_store_says_of_it(store: ItemStore) -> None:
    stored = await store.put_item(CTX, NOTE, WHOLE)
    assert (stored.size_bytes, len(stored.digest), stored.stored_by) == (len(WHOLE), 64, "operator")
    assert stored.created_s > 1.7e9
    assert replace(stored, size_bytes=0, digest="", created_s=0.0, stored_by="") == NOTE
    assert await store.get_item(CTX, "file", "file-1") == (stored, b"")
    assert await store.get_item(CTX, "file", "file-1", with_content=True) == (stored, WHOLE)


async def test_what_is_put_again_keeps_its_content_and_its_age(store: ItemStore) -> None:
    first = await store.put_item(CTX, NOTE, WHOLE)
    second = await store.put_item(CTX, replace(NOTE, fields={"name": "other"}), expected=Expected.THERE)
    assert second == replace(first, fields={"name": "other"})
    assert await store.get_item(CTX, "file", "file-1", with_content=True) == (second, WHOLE)
    with pytest.raises(InvalidRequest, match="content"):
        await store.put_item(CTX, NOTE, b"other", Expected.THERE)


async def test_whether_there_is_one_already_may_matter(store: ItemStore) -> None:
    with pytest.raises(NotFound, match="file-1"):
        await store.put_item(CTX, NOTE, expected=Expected.THERE)
    await store.put_item(CTX, NOTE, expected=Expected.NEW)
    with pytest.raises(Conflict, match="file-1"):
        await store.put_item(CTX, NOTE, expected=Expected.NEW)


async def test_what_is_deleted_is_gone_with_its_content(store: ItemStore) -> None:
    await store.put_item(CTX, NOTE, WHOLE)
    await store.delete_item(CTX, "file", "file-1")
    for gone in (store.get_item, store.delete_item):
        with pytest.raises(NotFound, match="file-1"):
            await gone(CTX, "file", "file-1")
    assert (await store.put_item(CTX, NOTE)).digest == ""
    assert await ids(store) == ["file-1"]


async def test_items_are_listed_by_id_page_by_page_in_both_directions(store: ItemStore) -> None:
    for item_id in ("a", "a-b", "a.c", "b/1", "b/2", "c"):
        await store.put_item(CTX, Item("at", item_id))
    assert await ids(store, kind="at") == ["a", "a-b", "a.c", "b/1", "b/2", "c"]
    assert await ids(store, kind="at", descending=True) == ["c", "b/2", "b/1", "a.c", "a-b", "a"]
    assert await ids(store, kind="at", prefix="b/") == ["b/1", "b/2"]
    assert await ids(store, kind="at", start_after="a-b", limit=2) == ["a.c", "b/1"]
    assert await ids(store, kind="at", start_after="b/2", limit=2, descending=True) == ["b/1", "a.c"]
    assert (await store.item_page(CTX, "at", limit=5)).truncated
    assert not (await store.item_page(CTX, "at", limit=6)).truncated
    assert await ids(store, kind="other") == []


async def test_items_of_all_kinds_are_listed_by_name(store: ItemStore) -> None:
    for kind, item_id in (("b", "1"), ("a_b", "2"), ("a", "z/1"), ("a", "1")):
        await store.put_item(CTX, Item(kind, item_id))
    names = ["a/1", "a/z/1", "a_b/2", "b/1"]
    assert [item.name for item in (await store.item_page(CTX, "")).items] == names
    assert [item.name for item in (await store.item_page(CTX, "", descending=True)).items] == names[::-1]
    page = await store.item_page(CTX, "", limit=2)
    assert page.truncated
    assert await ids(store, kind="", start_after=page.items[-1].cursor("")) == ["2", "1"]
    assert await ids(store, kind="", prefix="a/") == ["1", "z/1"]
    assert page.items[-1].cursor("a") == "z/1"


async def test_what_is_restored_is_as_old_as_it_was_and_whose_it_was(store: ItemStore) -> None:
    anna = RequestContext.create(principal=Principal("key/anna", "acme", frozenset({Role.INTERNAL})))
    told = await store.put_item(anna, NOTE, WHOLE)
    await store.delete_item(CTX, "file", "file-1")
    old = replace(told, created_s=5.25)
    assert await store.put_item(CTX, old, WHOLE, Expected.RESTORED) == old
    assert await store.get_item(CTX, "file", "file-1", with_content=True) == (old, WHOLE)
    with pytest.raises(Conflict, match="file-1"):
        await store.put_item(CTX, old, WHOLE, Expected.RESTORED)
    for content in (b"", WHOLE[1:]):
        with pytest.raises(CorruptData, match="its content is not the one that it was kept with"):
            await store.put_item(CTX, replace(old, id="file-2"), content, Expected.RESTORED)
    nobodys = replace(NOTE, id="file-2", created_s=5.25)
    stored = await store.put_item(CTX, nobodys, expected=Expected.RESTORED)
    assert stored == replace(nobodys, stored_by="operator")


async def test_a_page_ends_before_it_is_too_large_for_a_message(store: ItemStore) -> None:
    for i in range(30):
        await store.put_item(CTX, Item("at", f"{i:02}", {"all": "x" * 60_000}))
    page = await store.item_page(CTX, "at")
    assert page.truncated
    assert 17 <= len(page.items) < 30
    assert len(await ids(store, kind="at", start_after=page.items[-1].id)) == 30 - len(page.items)


async def test_tenants_have_their_own(store: ItemStore) -> None:
    await store.put_item(CTX, NOTE, b"ours")
    assert await ids(store, OTHERS) == []
    with pytest.raises(NotFound):
        await store.get_item(OTHERS, "file", "file-1")
    await store.put_item(OTHERS, NOTE, b"theirs")
    await store.delete_item(OTHERS, "file", "file-1")
    assert (await store.get_item(CTX, "file", "file-1", with_content=True))[1] == b"ours"


@pytest.mark.parametrize(
    ("kind", "item_id", "says"),
    [
        ("", "a", "kind"),
        ("File", "a", "kind"),
        ("../x", "a", "kind"),
        ("file", "", "id"),
        ("file", ".a", "id"),
        ("file", "../../x", "id"),
        ("file", "a/b/c", "id"),
        ("file", "a" * 129, "id"),
        ("file", "a\n", "id"),
    ],
)
async def test_names_that_are_none_are_refused(store: ItemStore, kind: str, item_id: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        await store.put_item(CTX, Item(kind, item_id))
    with pytest.raises(InvalidRequest, match=says):
        await store.get_item(CTX, kind, item_id)
    with pytest.raises(InvalidRequest, match=says):
        await store.delete_item(CTX, kind, item_id)
