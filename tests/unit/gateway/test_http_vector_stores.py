"""Vector stores over HTTP, asked for by OpenAI's own client without a socket, over a real store of one
node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest

from shared.errors import InternalError, Unavailable
from shared.kv_types import Manifest
from shared.principals.principal import Principal, Role
from shared.search import Filter, FilterOp, SearchMode
from tests.unit.gateway.kept_world import CTX, World, near
from tests.unit.gateway.test_http_routes import client

AGAIN = {"x-stainless-retry-count": "1"}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World.on(tmp_path)
    yield made
    await made.close()


async def upload(world: World, name: str = "note.txt", content: bytes = b"text", **more: Any) -> str:
    file = await client(world.app).files.create(file=(name, content), purpose="assistants", **more)
    return str(file.id)


async def store_named(world: World, name: str = "handbook") -> Any:
    return await client(world.app).vector_stores.create(name=name)


async def attached(world: World, *names: str, **more: Any) -> list[str]:
    """In the store `handbook`, whatever became of it."""
    stores = client(world.app).vector_stores
    ids = [await upload(world, name) for name in names]
    for file_id in ids:
        await stores.files.create("handbook", file_id=file_id, **more)
    await world.attaching.settled()
    return ids


async def put_document(world: World, document_id: str, collection: str = "handbook", **metadata: str) -> None:
    await world.store.put_manifest(CTX, Manifest("default", collection, document_id, metadata=metadata))


async def documents(world: World, collection: str = "handbook") -> list[str]:
    page = await world.store.manifest_page(CTX, collection)
    return [manifest.document_id for manifest in page.manifests]


# ---- stores


async def test_a_store_is_a_collection_that_may_be_empty(world: World) -> None:
    made = await client(world.app).vector_stores.create(
        name="handbook", description="For all.", metadata={"team": "ops"}
    )
    assert (made.id, made.name, made.object, made.status) == (
        "handbook",
        "handbook",
        "vector_store",
        "completed",
    )
    assert (made.metadata, made.description) == ({"team": "ops"}, "For all.")  # type: ignore[attr-defined]
    assert made.file_counts.total == 0
    assert made.created_at > 1.7e9
    assert await client(world.app).vector_stores.retrieve("handbook") == made


async def test_a_collection_that_was_ingested_is_a_store(world: World) -> None:
    await put_document(world, "a/b.txt")
    stores = client(world.app).vector_stores
    found = await stores.retrieve("handbook")
    assert (found.name, found.created_at, found.file_counts.completed) == ("handbook", 0, 1)
    assert [store.id async for store in stores.list()] == ["handbook"]


async def test_a_name_that_no_collection_can_have_is_kept_beside_an_id(world: World) -> None:
    first, second = await store_named(world, "Our Handbook!"), await store_named(world, "Our Handbook!")
    assert first.name == second.name == "Our Handbook!"
    assert first.id != second.id
    assert first.id.startswith("vs_")
    unnamed = await client(world.app).vector_stores.create()
    assert unnamed.id.startswith("vs_")


async def test_a_name_is_taken_once_unless_the_same_is_sent_again(world: World) -> None:
    made = await store_named(world)
    assert await client(world.app).vector_stores.create(name="handbook", extra_headers=AGAIN) == made
    for more in ({}, {"metadata": {"other": "x"}, "extra_headers": AGAIN}):
        with pytest.raises(openai.ConflictError, match="retrieve it, or choose another") as raised:
            await client(world.app).vector_stores.create(name="handbook", **more)  # type: ignore[arg-type]
        assert raised.value.response.headers["x-should-retry"] == "false"
    await put_document(world, "a.txt", collection="ingested")
    with pytest.raises(openai.ConflictError):
        await store_named(world, "ingested")


async def test_a_store_is_renamed_and_keeps_its_id_its_age_and_what_is_not_named(world: World) -> None:
    stores = client(world.app).vector_stores
    made = await stores.create(name="handbook", description="of works", metadata={"team": "works"})
    renamed = await stores.update(made.id, name="The handbook")
    assert (renamed.id, renamed.name, renamed.metadata) == ("handbook", "The handbook", {"team": "works"})
    assert renamed.created_at == made.created_at
    emptied = await stores.update(made.id, metadata={})
    assert (emptied.name, emptied.metadata) == ("The handbook", {})
    assert (await stores.retrieve(made.id)).name == "The handbook"


async def test_a_collection_that_was_ingested_can_be_given_a_name(world: World) -> None:
    await world.store.put_manifest(CTX, Manifest("default", "towns", "a.txt"))
    stores = client(world.app).vector_stores
    named = await stores.update("towns", name="Towns", metadata={"k": "v"})
    assert (named.id, named.name, named.file_counts.completed) == ("towns", "Towns", 1)


async def test_a_change_that_cannot_be_is_refused_by_name(world: World) -> None:
    stores = client(world.app).vector_stores
    await stores.create(name="handbook")
    with pytest.raises(openai.BadRequestError, match="name: has more than 256 characters"):
        await stores.update("handbook", name="x" * 257)
    with pytest.raises(openai.BadRequestError, match="expires_after: is not supported"):
        await stores.update("handbook", expires_after={"anchor": "last_active_at", "days": 1})
    with pytest.raises(openai.NotFoundError):
        await stores.update("unknown", name="x")
    assert (await stores.retrieve("handbook")).name == "handbook"


async def test_stores_are_listed_page_by_page_the_newest_first(world: World) -> None:
    await put_document(world, "a.txt", collection="ingested")
    for name in ("one", "two", "three"):
        await store_named(world, name)
    stores = client(world.app).vector_stores
    assert [store.id async for store in stores.list(limit=2)] == ["three", "two", "one", "ingested"]
    assert [store.id async for store in stores.list(order="asc")] == ["ingested", "one", "two", "three"]
    with pytest.raises(openai.BadRequestError, match="after"):
        await stores.list(after="four")


async def test_a_deleted_store_is_gone_with_its_documents_and_files_stay(world: World) -> None:
    await store_named(world)
    (file_id,) = await attached(world, "note.txt")
    await put_document(world, "other.txt")
    stores = client(world.app).vector_stores
    deleted = await stores.delete("handbook")
    assert (deleted.id, deleted.deleted, deleted.object) == ("handbook", True, "vector_store.deleted")
    assert await documents(world) == []
    for gone in (stores.retrieve, stores.delete, stores.files.list):
        with pytest.raises(openai.NotFoundError, match="handbook"):
            await gone("handbook")
    assert (await client(world.app).files.retrieve(file_id)).id == file_id
    assert [store.id async for store in stores.list()] == []


async def test_a_store_of_files_is_made_in_one_call(world: World) -> None:
    ids = [await upload(world, f"{i}.txt") for i in range(2)]
    world.ingestion.gate = asyncio.Event()
    made = await client(world.app).vector_stores.create(name="handbook", file_ids=ids)
    assert (made.file_counts.in_progress, made.status) == (2, "in_progress")
    world.ingestion.gate.set()
    await world.attaching.settled()
    found = await client(world.app).vector_stores.retrieve("handbook")
    assert (found.file_counts.completed, found.file_counts.total, found.status) == (2, 2, "completed")


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"expires_after": {"anchor": "last_active_at", "days": 1}}, "expires_after"),
        ({"chunking_strategy": {"type": "static"}}, "chunking_strategy"),
        ({"name": "x" * 257}, "name"),
        ({"metadata": {"k" * 65: "v"}}, "metadata"),
        ({"metadata": {"k": "v" * 513}}, "metadata"),
        ({"metadata": {str(i): "v" for i in range(17)}}, "metadata"),
        ({"metadata": {"k": 1}}, "metadata.k"),
        ({"extra_body": {"foo": 1}}, "foo"),
    ],
)
async def test_what_a_store_cannot_be_is_refused_by_name(world: World, asked: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        await client(world.app).vector_stores.create(**asked)
    assert raised.value.param == param
    assert [store.id async for store in client(world.app).vector_stores.list()] == []


@pytest.mark.parametrize("store_id", ["nothing", ".", "a b", "ü", "x" * 65])
async def test_unknown_stores_are_not_found(world: World, store_id: str) -> None:
    stores = client(world.app).vector_stores
    file_id = await upload(world)
    calls = [
        lambda: stores.retrieve(store_id),
        lambda: stores.delete(store_id),
        lambda: stores.search(store_id, query="bridge"),
        lambda: stores.files.list(store_id),
        lambda: stores.files.create(store_id, file_id=file_id),
        lambda: stores.files.retrieve(file_id, vector_store_id=store_id),
        lambda: stores.files.delete(file_id, vector_store_id=store_id),
        lambda: stores.file_batches.create(store_id, file_ids=[file_id]),
        lambda: stores.file_batches.retrieve("vsfb_" + "0" * 24, vector_store_id=store_id),
    ]
    for call in calls:
        with pytest.raises((openai.NotFoundError, ValueError)):  # the client itself refuses dots
            await call()
    assert world.ingestion.asked == []


async def test_tenants_have_their_own(world: World) -> None:
    await store_named(world)
    (file_id,) = await attached(world, "note.txt")
    others = client(world.app, default_headers={"x-kvquilt-tenant": "others"})
    assert [store.id async for store in others.vector_stores.list()] == []
    with pytest.raises(openai.NotFoundError):
        await others.vector_stores.files.retrieve(file_id, vector_store_id="handbook")
    mine = await others.vector_stores.create(name="handbook")
    with pytest.raises(openai.NotFoundError, match=file_id):
        await others.vector_stores.files.create(mine.id, file_id=file_id)


# ---- their files


async def test_a_file_that_is_attached_becomes_a_document(world: World) -> None:
    world.ingestion.gate = asyncio.Event()
    await store_named(world)
    file_id = await upload(world, "note.txt", b"Orla Venn", extra_body={"readers": ["ops"]})
    files = client(world.app).vector_stores.files
    attributes: Any = {"year": 2024, "draft": True, "by": "Orla"}
    made = await files.create("handbook", file_id=file_id, attributes=attributes)
    assert (made.id, made.object, made.status, made.vector_store_id) == (
        file_id,
        "vector_store.file",
        "in_progress",
        "handbook",
    )
    assert made.attributes == attributes
    assert await files.retrieve(file_id, vector_store_id="handbook") == made
    world.ingestion.gate.set()
    await world.attaching.settled()
    done = await files.retrieve(file_id, vector_store_id="handbook")
    assert (done.status, done.last_error) == ("completed", None)
    assert done.attributes == made.attributes
    (source,) = world.ingestion.asked
    assert source.document_id == done.document_id == f"{file_id}/note.txt"  # type: ignore[attr-defined]
    assert (source.content, source.readers) == (b"Orla Venn", ("ops",))
    assert source.metadata["year"] == "2024"
    assert source.metadata["draft"] == "true"


async def test_a_file_that_cannot_be_read_says_why(world: World) -> None:
    await store_named(world)
    file_id = await upload(world, "note.xyz", b"unreadable")
    files = client(world.app).vector_stores.files
    await files.create("handbook", file_id=file_id)
    await world.attaching.settled()
    failed = await files.retrieve(file_id, vector_store_id="handbook")
    assert failed.status == "failed"
    assert failed.last_error is not None
    assert (failed.last_error.code, failed.last_error.message) == ("unsupported_file", "no parser for .xyz")
    counts = (await client(world.app).vector_stores.retrieve("handbook")).file_counts
    assert (counts.failed, counts.completed, counts.total) == (1, 0, 1)
    assert (await files.delete(file_id, vector_store_id="handbook")).deleted
    assert (await client(world.app).vector_stores.retrieve("handbook")).file_counts.total == 0


async def test_a_service_that_is_away_is_waited_for_longer_and_longer(world: World) -> None:
    world.ingestion.errors = [Unavailable("away"), Unavailable("away"), None]
    await store_named(world)
    (file_id,) = await attached(world, "note.txt")
    assert world.pauses == [1.0, 5.0]
    assert await documents(world) == [f"{file_id}/note.txt"]


async def test_what_stays_away_is_left_until_somebody_asks_for_it(world: World) -> None:
    world.ingestion.errors = [Unavailable("away")] * 5
    await store_named(world)
    (file_id,) = await attached(world, "note.txt")
    files = client(world.app).vector_stores.files
    assert len(world.ingestion.asked) == 5
    assert (await files.retrieve(file_id, vector_store_id="handbook")).status == "in_progress"
    await world.attaching.settled()
    assert (await files.retrieve(file_id, vector_store_id="handbook")).status == "completed"


async def test_a_bug_is_told_as_one_without_its_text(world: World) -> None:
    world.ingestion.errors = [InternalError("it failed; the log has the reason")]
    await store_named(world)
    (file_id,) = await attached(world, "note.txt")
    files = client(world.app).vector_stores.files
    failed = await files.retrieve(file_id, vector_store_id="handbook")
    assert failed.last_error is not None
    assert failed.last_error.code == "server_error"


async def test_what_was_under_way_when_the_gateway_died_goes_on_when_it_is_asked_for(world: World) -> None:
    world.ingestion.gate = asyncio.Event()
    await store_named(world)
    file_id = await upload(world)
    await client(world.app).vector_stores.files.create("handbook", file_id=file_id)
    await asyncio.sleep(0)
    await world.attaching.close()
    world.ingestion.gate = None
    after = world.restarted()
    files = client(after.app).vector_stores.files
    assert (await files.retrieve(file_id, vector_store_id="handbook")).status == "in_progress"
    await after.attaching.settled()
    assert (await files.retrieve(file_id, vector_store_id="handbook")).status == "completed"
    await after.attaching.close()


async def test_who_only_reads_moves_nothing_on(world: World) -> None:
    world.ingestion.errors = [Unavailable("away")] * 5
    await store_named(world)
    (file_id,) = await attached(world, "note.txt")
    reader = replace(CTX, principal=Principal("key/r", "default", frozenset({Role.READER}), frozenset("*")))
    told = await world.kept.members.get(reader, "handbook", file_id)
    await world.attaching.settled()
    assert told.status == "in_progress"
    assert len(world.ingestion.asked) == 5


async def test_a_file_that_is_attached_again_has_the_newer_attributes(world: World) -> None:
    world.ingestion.gate = asyncio.Event()
    await store_named(world)
    file_id = await upload(world)
    files = client(world.app).vector_stores.files
    await files.create("handbook", file_id=file_id, attributes={"v": "1"})
    await asyncio.sleep(0)
    await files.create("handbook", file_id=file_id, attributes={"v": "2"})
    world.ingestion.gate.set()
    await world.attaching.settled()
    done = await files.retrieve(file_id, vector_store_id="handbook")
    assert (done.status, done.attributes) == ("completed", {"v": "2"})


async def test_attributes_of_a_file_are_changed(world: World) -> None:
    await store_named(world)
    (file_id,) = await attached(world, "note.txt")
    files = client(world.app).vector_stores.files
    changed = await files.update(file_id, vector_store_id="handbook", attributes={"year": 2024})
    await world.attaching.settled()
    assert changed.id == file_id
    done = await files.retrieve(file_id, vector_store_id="handbook")
    assert (done.status, done.attributes) == ("completed", {"year": 2024})
    other = await upload(world)
    with pytest.raises(openai.NotFoundError):
        await files.update(other, vector_store_id="handbook", attributes={})
    with pytest.raises(openai.BadRequestError, match="attributes: is required"):
        await client(world.app).post(f"/vector_stores/handbook/files/{file_id}", body={}, cast_to=object)


async def test_a_file_whose_bytes_were_deleted_meanwhile_is_told_as_invalid(world: World) -> None:
    world.ingestion.errors = [Unavailable("away")] * 5
    await store_named(world)
    (file_id,) = await attached(world, "note.txt")
    await client(world.app).files.delete(file_id)
    files = client(world.app).vector_stores.files
    await files.retrieve(file_id, vector_store_id="handbook")
    await world.attaching.settled()
    failed = await files.retrieve(file_id, vector_store_id="handbook")
    assert failed.last_error is not None
    assert "not there any more" in failed.last_error.message


async def test_a_detached_file_takes_its_document_along_and_stays_itself(world: World) -> None:
    await store_named(world)
    file_id, other = await attached(world, "note.txt", "other.txt")
    files = client(world.app).vector_stores.files
    deleted = await files.delete(file_id, vector_store_id="handbook")
    assert (deleted.id, deleted.deleted, deleted.object) == (file_id, True, "vector_store.file.deleted")
    assert await documents(world) == [f"{other}/other.txt"]
    for gone in (files.retrieve, files.delete):
        with pytest.raises(openai.NotFoundError, match=file_id):
            await gone(file_id, vector_store_id="handbook")
    assert (await client(world.app).files.content(file_id)).read() == b"text"


async def test_a_file_that_is_detached_on_its_way_never_arrives(world: World) -> None:
    world.ingestion.gate = asyncio.Event()
    await store_named(world)
    file_id = await upload(world)
    files = client(world.app).vector_stores.files
    await files.create("handbook", file_id=file_id)
    await asyncio.sleep(0)
    await files.delete(file_id, vector_store_id="handbook")
    world.ingestion.gate.set()
    await world.attaching.settled()
    assert await documents(world) == []
    with pytest.raises(openai.NotFoundError):
        await files.retrieve(file_id, vector_store_id="handbook")


async def test_documents_that_no_file_became_are_files_as_well(world: World) -> None:
    await put_document(world, "guides/ü b.md", source="docs")
    files = client(world.app).vector_stores.files
    (listed,) = [file async for file in files.list("handbook")]
    assert listed.document_id == "guides/ü b.md"  # type: ignore[attr-defined]
    assert (listed.status, listed.attributes) == ("completed", {"source": "docs"})
    assert await files.retrieve(listed.id, vector_store_id="handbook") == listed
    await put_document(world, "guides/ü b.mda")
    assert (await files.delete(listed.id, vector_store_id="handbook")).deleted
    assert await documents(world) == ["guides/ü b.mda"]


async def test_files_are_listed_page_by_page_with_those_on_their_way(world: World) -> None:
    await store_named(world)
    await put_document(world, "a.txt")
    await put_document(world, "z.txt")
    ids = await attached(world, *(f"{i}.txt" for i in range(3)))
    bad = await upload(world, "bad.txt", b"unreadable")
    files = client(world.app).vector_stores.files
    await files.create("handbook", file_id=bad)
    await world.attaching.settled()
    for limit in (1, 2, 3, 100):
        found = [file.id async for file in files.list("handbook", limit=limit)]
        assert found[1:-1] == [bad, *reversed(ids)], limit
        assert [file.id async for file in files.list("handbook", limit=limit, order="asc")] == found[::-1]
    assert [file.id async for file in files.list("handbook", filter="failed", limit=1)] == [bad]
    assert bad not in [file.id async for file in files.list("handbook", filter="completed", limit=1)]
    assert [file async for file in files.list("handbook", filter="in_progress")] == []
    with pytest.raises(openai.BadRequestError, match="filter"):
        await files.list("handbook", extra_query={"filter": "lost"})
    with pytest.raises(openai.NotFoundError, match="nothing"):
        await files.list("handbook", after="nothing")


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"attributes": {"title": "x"}}, "metadata"),
        ({"attributes": {"k" * 65: "x"}}, "attributes"),
        ({"attributes": {"k": "x" * 513}}, "attributes.k"),
        ({"attributes": {"k": ["x"]}}, "attributes.k"),
        ({"attributes": {str(i): "x" for i in range(17)}}, "attributes"),
        ({"chunking_strategy": {"type": "static", "static": {}}}, "chunking_strategy"),
    ],
)
async def test_what_cannot_be_attached_is_refused_by_name(world: World, asked: Any, param: str) -> None:
    await store_named(world)
    file_id = await upload(world)
    with pytest.raises(openai.BadRequestError) as raised:
        await client(world.app).vector_stores.files.create("handbook", file_id=file_id, **asked)
    assert raised.value.param == param
    assert world.ingestion.asked == []


async def test_an_unknown_file_is_not_attached(world: World) -> None:
    await store_named(world)
    for file_id in ("file-1", "file-" + "0" * 24):
        with pytest.raises(openai.NotFoundError, match=file_id):
            await client(world.app).vector_stores.files.create("handbook", file_id=file_id)


# ---- searches


async def test_a_search_tells_chunks_with_the_files_they_are_of(world: World) -> None:
    file_id = f"file-{'0' * 24}"
    world.index.found["bridge"] = [
        near(
            "a",
            "Orla Venn built it",
            f"{file_id}/note.txt",
            0.75,
            year="2024",
            attribute_types='{"year": "number"}',
        ),
        near("b", "In 1874", "guides/b.md", 0.25),
    ]
    page = await client(world.app).vector_stores.search("handbook", query="bridge", max_num_results=5)
    assert (page.object, page.has_more) == ("vector_store.search_results.page", False)  # type: ignore[attr-defined]
    first, second = page.data
    assert (first.file_id, first.filename, first.score) == (file_id, "note.txt", 0.75)
    assert (first.attributes, first.content[0].text) == ({"year": 2024}, "Orla Venn built it")
    assert (second.filename, second.file_id[:4]) == ("guides/b.md", "doc-")
    assert world.index.asked == [("handbook", ("bridge",), 5, SearchMode.AUTO, ())]


async def test_several_queries_are_one_ranking(world: World) -> None:
    a, b = near("a", "one", "a.txt", 0.9), near("b", "two", "b.txt", 0.8)
    world.index.found |= {"x": [a, b], "y": [b]}
    page = await client(world.app).vector_stores.search("handbook", query=["x", "y"])
    assert [found.content[0].text for found in page.data] == ["two", "one"]
    assert page.search_query == ["x", "y"]  # type: ignore[attr-defined]


async def test_what_is_less_near_than_asked_for_is_left_out(world: World) -> None:
    world.index.found["x"] = [near("a", "one", "a.txt", 0.5), near("b", "two", "b.txt", 0.4)]
    options = {"ranker": "auto", "score_threshold": 0.45}
    page = await client(world.app).vector_stores.search("handbook", query="x", ranking_options=options)  # type: ignore[arg-type]
    assert [found.score for found in page.data] == [0.5]


async def test_a_store_without_documents_finds_nothing(world: World) -> None:
    await store_named(world)
    assert (await client(world.app).vector_stores.search("handbook", query="x")).data == []


EQ = {"type": "eq", "key": "year", "value": 2024}


@pytest.mark.parametrize(
    ("filters", "conditions"),
    [
        (EQ, [Filter("year", FilterOp.EQ, ("2024",))]),
        (EQ | {"value": 2024.0}, [Filter("year", FilterOp.EQ, ("2024",))]),
        (EQ | {"value": True}, [Filter("year", FilterOp.EQ, ("true",))]),
        (EQ | {"type": "ne"}, [Filter("year", FilterOp.NE, ("2024",))]),
        (EQ | {"type": "in", "value": ["a", 1.5]}, [Filter("year", FilterOp.IN, ("a", "1.5"))]),
        (
            EQ | {"type": "nin", "value": ["a", "b"]},
            [Filter("year", FilterOp.NE, ("a",)), Filter("year", FilterOp.NE, ("b",))],
        ),
        (
            {"type": "and", "filters": [EQ, {"type": "and", "filters": [EQ | {"key": "by"}]}]},
            [Filter("year", FilterOp.EQ, ("2024",)), Filter("by", FilterOp.EQ, ("2024",))],
        ),
        (
            {"type": "or", "filters": [EQ, EQ | {"value": 2025}]},
            [Filter("year", FilterOp.IN, ("2024", "2025"))],
        ),
    ],
)
async def test_filters_become_conditions(world: World, filters: Any, conditions: list[Filter]) -> None:
    world.index.found["x"] = []
    await client(world.app).vector_stores.search("handbook", query="x", filters=filters)
    assert world.index.asked[0][4] == tuple(conditions)


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"filters": EQ | {"type": "gt"}}, "filters.type"),
        ({"filters": EQ | {"type": "like"}}, "filters.type"),
        ({"filters": {"type": "or", "filters": [EQ, EQ | {"key": "by"}]}}, "filters.type"),
        ({"filters": {"type": "and", "filters": []}}, "filters.filters"),
        ({"filters": {"type": "and", "filters": [EQ, {"type": "lte"}]}}, "filters.filters[1].type"),
        ({"filters": EQ | {"key": ""}}, "filters.key"),
        ({"filters": EQ | {"value": None}}, "filters.value"),
        ({"filters": EQ | {"type": "in"}}, "filters.value"),
        ({"filters": EQ | {"more": 1}}, "filters.more"),
        ({"rewrite_query": True}, "rewrite_query"),
        ({"ranking_options": {"ranker": "none"}}, "ranking_options.ranker"),
        ({"ranking_options": {"score_threshold": 2}}, "ranking_options.score_threshold"),
        ({"ranking_options": {"hybrid_search": {"text_weight": 1}}}, "ranking_options.hybrid_search"),
        ({"max_num_results": 51}, "max_num_results"),
        ({"max_num_results": 0}, "max_num_results"),
        ({"query": ["x"] * 1025}, "query"),
        ({"query": "x" * 70_000}, "query"),
        ({"extra_body": {"foo": 1}}, "foo"),
    ],
)
async def test_searches_that_cannot_be_are_refused_by_name(world: World, asked: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        await client(world.app).vector_stores.search("handbook", **{"query": "x"} | asked)
    assert raised.value.param == param
    assert world.index.asked == []


# ---- batches


async def test_a_batch_tells_what_became_of_its_files(world: World) -> None:
    world.ingestion.gate = asyncio.Event()
    await store_named(world)
    ids = [await upload(world, f"{i}.txt") for i in range(2)]
    bad = await upload(world, "bad.txt", b"unreadable")
    batches = client(world.app).vector_stores.file_batches
    made = await batches.create("handbook", file_ids=[*ids, bad], attributes={"set": "one"})
    assert (made.object, made.status, made.vector_store_id) == (
        "vector_store.files_batch",
        "in_progress",
        "handbook",
    )
    assert (made.file_counts.in_progress, made.file_counts.total) == (3, 3)
    world.ingestion.gate.set()
    await world.attaching.settled()
    done = await batches.retrieve(made.id, vector_store_id="handbook")
    assert (done.status, done.file_counts.completed, done.file_counts.failed) == ("completed", 2, 1)
    assert {source.metadata["set"] for source in world.ingestion.asked} == {"one"}


async def test_the_files_of_a_batch_may_have_attributes_of_their_own(world: World) -> None:
    await store_named(world)
    ids = [await upload(world, f"{i}.txt") for i in range(2)]
    files: Any = [{"file_id": ids[0], "attributes": {"v": 1}}, {"file_id": ids[1]}]
    await client(world.app).vector_stores.file_batches.create("handbook", files=files)
    await world.attaching.settled()
    given = {source.metadata.get("v") for source in world.ingestion.asked}
    assert (len(world.ingestion.asked), given) == (2, {"1", None})


async def test_a_batch_that_is_cancelled_makes_no_more_documents(world: World) -> None:
    world.ingestion.gate = asyncio.Event()
    await store_named(world)
    ids = [await upload(world, f"{i}.txt") for i in range(6)]
    batches = client(world.app).vector_stores.file_batches
    made = await batches.create("handbook", file_ids=ids)
    cancelled = await batches.cancel(made.id, vector_store_id="handbook")
    world.ingestion.gate.set()
    await world.attaching.settled()
    assert (cancelled.status, cancelled.file_counts.cancelled) == ("cancelled", 6)
    assert await documents(world) == []
    files = client(world.app).vector_stores.files
    assert (await files.retrieve(ids[0], vector_store_id="handbook")).status == "cancelled"
    await files.create("handbook", file_id=ids[0])
    await world.attaching.settled()
    assert await documents(world) == [f"{ids[0]}/0.txt"], "it may be attached again"


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({}, "file_ids"),
        ({"file_ids": []}, "file_ids"),
        ({"file_ids": ["file-1"] * 2}, "file_ids"),
        ({"file_ids": ["a"], "files": [{"file_id": "a"}]}, "files"),
        ({"files": [{"file_id": "a"}], "attributes": {"a": "b"}}, "attributes"),
        ({"files": [{"file_id": "a", "foo": 1}]}, "files[0].foo"),
    ],
)
async def test_batches_that_cannot_be_are_refused_by_name(world: World, asked: Any, param: str) -> None:
    await store_named(world)
    with pytest.raises(openai.BadRequestError) as raised:
        await client(world.app).vector_stores.file_batches.create("handbook", **asked)
    assert raised.value.param == param


async def test_an_unknown_file_keeps_its_whole_batch_out(world: World) -> None:
    await store_named(world)
    ids = [await upload(world), "file-" + "0" * 24]
    batches = client(world.app).vector_stores.file_batches
    with pytest.raises(openai.NotFoundError):
        await batches.create("handbook", file_ids=ids)
    await world.attaching.settled()
    assert world.ingestion.asked == []
    for batch_id in ("vsfb_1", "vsfb_" + "0" * 24):
        for asked in (batches.retrieve, batches.cancel):
            with pytest.raises(openai.NotFoundError, match=batch_id):
                await asked(batch_id, vector_store_id="handbook")
