"""What every store keeps to about items: the domain object itself, an agent over gRPC, and a cluster of
agents behind its front."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from shared.errors import Conflict, InvalidRequest, NotFound
from shared.kv_items import Expected, Item
from shared.kv_stores import ItemStore
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
