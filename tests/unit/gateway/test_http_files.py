"""Files over HTTP, kept and given back to OpenAI's own client without a socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from shared.admission.settings import PrincipalLimits
from shared.limits import RequestLimits
from tests.unit.gateway.kept_world import CTX, World
from tests.unit.gateway.test_http_routes import client

NOTE = ("note.txt", b"Orla Venn built the bridge.")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World.on(tmp_path)
    yield made
    await made.close()


async def upload(world: World, file: Any = NOTE, purpose: Any = "assistants", **more: Any) -> Any:
    return await client(world.app).files.create(file=file, purpose=purpose, **more)


async def raw(world: World, body: Any, content_type: str, **headers: str) -> httpx2.Response:
    transport = httpx2.ASGITransport(world.app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://gateway") as http:
        sent = {"content-type": content_type} | headers
        return await http.post("/v1/files", content=body, headers=sent)


def form(*parts: tuple[str, str]) -> bytes:
    body = "".join(f"--b\r\ncontent-disposition: form-data; {head}\r\n\r\n{text}\r\n" for head, text in parts)
    return (body + "--b--\r\n").encode()


async def kept(world: World) -> list[str]:
    return [item.id for item in (await world.store.item_page(CTX, "file")).items]


async def test_a_file_is_kept_told_and_given_back(world: World) -> None:
    file = await upload(world)
    assert (file.object, file.filename, file.purpose, file.status) == (
        "file",
        "note.txt",
        "assistants",
        "processed",
    )
    assert (file.bytes, file.readers) == (len(NOTE[1]), [])
    assert file.created_at > 1.7e9
    files = client(world.app).files
    assert await files.retrieve(file.id) == file
    content = await files.content(file.id)
    assert content.read() == NOTE[1]
    assert content.response.headers["content-disposition"] == "attachment; filename*=UTF-8''note.txt"
    assert content.response.headers["x-content-type-options"] == "nosniff"


async def test_a_deleted_file_is_gone_with_its_bytes(world: World) -> None:
    file, files = await upload(world), client(world.app).files
    deleted = await files.delete(file.id)
    assert (deleted.id, deleted.deleted, deleted.object) == (file.id, True, "file")
    for gone in (files.retrieve, files.content, files.delete):
        with pytest.raises(openai.NotFoundError, match=file.id):
            await gone(file.id)
    assert await kept(world) == []


async def test_files_are_listed_page_by_page_the_newest_first(world: World) -> None:
    ids = [(await upload(world, (f"{i}.txt", b"text"))).id for i in range(5)]
    other = await upload(world, purpose="user_data")
    files = client(world.app).files
    assert [file.id async for file in files.list(limit=2)] == [other.id, *reversed(ids)]
    assert [file.id async for file in files.list(limit=2, order="asc")] == [*ids, other.id]
    assert [file.id async for file in files.list(purpose="assistants", limit=3)] == [*reversed(ids)]
    page = await files.list(limit=2, after=ids[3])
    assert ([file.id for file in page.data], page.has_more) == ([ids[2], ids[1]], True)
    assert not (await files.list(limit=2, after=ids[2])).has_more
    assert (page.first_id, page.last_id) == (ids[2], ids[1])  # type: ignore[attr-defined]


async def test_tenants_have_their_own(world: World) -> None:
    file = await upload(world)
    others = client(world.app, default_headers={"x-kvquilt-tenant": "others"}).files
    assert (await others.list()).data == []
    with pytest.raises(openai.NotFoundError):
        await others.content(file.id)


async def test_who_may_read_it_is_kept_with_it(world: World) -> None:
    file = await upload(world, extra_body={"readers": ["sales", "legal", "sales"]})
    assert file.readers == ["legal", "sales"]
    (item,) = (await world.store.item_page(CTX, "file")).items
    assert item.readers == ("legal", "sales")


async def test_an_upload_that_is_sent_again_after_no_answer_came_is_kept_once(world: World) -> None:
    again = {"extra_headers": {"x-stainless-retry-count": "1"}}
    first = await upload(world)
    assert await upload(world, **again) == first
    assert (await upload(world)).id != first.id, "sent on purpose"
    assert (await upload(world, ("other.txt", NOTE[1]), **again)).id != first.id
    assert (await upload(world, ("note.txt", b"other"), **again)).id != first.id
    assert len(await kept(world)) == 4


@pytest.mark.parametrize(
    ("more", "param", "says"),
    [
        ({"purpose": "fine-tune"}, "purpose", "'fine-tune' is not supported; assistants and user_data are"),
        ({"file": ("note.txt", b"")}, "file", "is empty"),
        ({"file": ("..", b"text")}, "file", "no file name"),
        ({"file": ("a" * 256, b"text")}, "file", "no file name"),
        ({"expires_after": {"anchor": "created_at", "seconds": 3600}}, "expires_after", "not supported"),
        ({"extra_body": {"readers": ["two words"]}}, "readers[0]", "visible ASCII"),
    ],
)
async def test_what_cannot_be_is_refused_by_name(world: World, more: Any, param: str, says: str) -> None:
    with pytest.raises(openai.BadRequestError, match=says) as raised:
        await upload(world, **more)
    assert raised.value.param == param
    assert await kept(world) == []


async def test_folders_in_front_of_a_name_are_left_out(world: World) -> None:
    response = await raw(
        world,
        form(('name="purpose"', "user_data"), ('name="file"; filename="C:/a/../note.txt"', "text")),
        "multipart/form-data; boundary=b",
    )
    assert response.json()["filename"] == "note.txt"


@pytest.mark.parametrize(
    ("body", "content_type", "param"),
    [
        (b"{}", "application/json", "file"),
        (b"", "multipart/form-data; boundary=b", "file"),
        (b"no parts at all", "multipart/form-data; boundary=b", "file"),
        (b"--b\r\nbroken", "multipart/form-data; boundary=b", "file"),
        (form(('name="purpose"', "assistants")), "multipart/form-data", "file"),
        (form(('name="purpose"', "assistants")), "multipart/form-data; boundary=b", "file"),
        (form(('name="file"', "no file name")), "multipart/form-data; boundary=b", "file"),
        (form(('name="file"; filename="a.txt"', "x")), "multipart/form-data; boundary=b", "purpose"),
        (form(*[('name="file"; filename="a.txt"', "x")] * 2), "multipart/form-data; boundary=b", "file"),
        (form(('name="purpose"', "x" * 10_000)), "multipart/form-data; boundary=b", "file"),
        (form(*[(f'name="f{i}"', "x") for i in range(400)]), "multipart/form-data; boundary=b", "file"),
    ],
)
async def test_what_is_no_upload_is_told_what_one_is(
    world: World, body: bytes, content_type: str, param: str
) -> None:
    response = await raw(world, body, content_type)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert await kept(world) == []


async def test_a_body_that_is_too_large_is_refused_before_it_is_read(world: World) -> None:
    read = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal read
        head = 'name="file"; filename="a.txt"'
        yield f"--b\r\ncontent-disposition: form-data; {head}\r\n\r\n".encode()
        for _ in range(1000):
            read += 100_000
            yield b"x" * 100_000

    said = await raw(world, endless(), "multipart/form-data; boundary=b", **{"content-length": "100000000"})
    assert said.status_code == 413
    assert said.json()["error"]["code"] == "request_entity_too_large"
    assert read == 0
    unsaid = await raw(world, endless(), "multipart/form-data; boundary=b")
    assert unsaid.status_code == 413
    assert read < 1_000_000
    with pytest.raises(openai.APIStatusError) as raised:
        await client(world.app).vector_stores.create(name="a" * 2_000_000)
    assert raised.value.status_code == 413, "the limit of uploads is theirs alone"
    assert await kept(world) == []


async def test_an_upload_that_stops_half_way_leaves_nothing(world: World) -> None:
    sent: list[Any] = []
    start = form(('name="purpose"', "assistants"), ('name="file"; filename="a.txt"', "x" * 90_000))[:50_000]
    messages = [
        {"type": "http.request", "body": start, "more_body": True},
        {"type": "http.disconnect"},
    ]

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "method": "POST",
        "path": "/v1/files",
        "raw_path": b"/v1/files",
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "headers": [(b"content-type", b"multipart/form-data; boundary=b")],
        "client": ("127.0.0.1", 1),
        "server": ("gateway", 80),
    }
    await world.app(scope, receive, send)
    assert b"half-way" in sent[-1]["body"]
    assert await kept(world) == []


async def test_bytes_count_towards_what_a_principal_may_store(tmp_path: Path) -> None:
    world = World.on(tmp_path, RequestLimits(per_principal=PrincipalLimits(stored_bytes=3000)))
    file = await upload(world, ("a.txt", b"x" * 2000))
    with pytest.raises(openai.RateLimitError, match=r"limits\.per_principal\.stored_bytes") as raised:
        await upload(world, ("b.txt", b"x" * 2000))
    assert raised.value.response.headers["x-should-retry"] == "false"
    await client(world.app).files.delete(file.id)
    await upload(world, ("b.txt", b"x" * 2000))
    await world.close()


@pytest.mark.parametrize("file_id", ["file-1", "..", "file-" + "g" * 24, "file-" + "0" * 24, "a%2Fb"])
async def test_unknown_ids_are_not_found(world: World, file_id: str) -> None:
    files = client(world.app).files
    for asked in (files.retrieve, files.content, files.delete):
        with pytest.raises((openai.NotFoundError, ValueError)):
            await asked(file_id)


@pytest.mark.parametrize(
    ("query", "param"), [({"limit": 0}, "limit"), ({"limit": 101}, "limit"), ({"order": "up"}, "order")]
)
async def test_pages_that_cannot_be_are_refused_by_name(world: World, query: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        await client(world.app).files.list(extra_query=query)
    assert raised.value.param == param
    with pytest.raises(openai.BadRequestError, match="before"):
        await client(world.app).files.list(extra_query={"before": "file-1"})


async def test_another_method_is_told_all_that_are_possible_there(world: World) -> None:
    transport = httpx2.ASGITransport(world.app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://gateway") as http:
        allowed = [
            (await http.request("PATCH", path)).headers["allow"] for path in ("/v1/files", "/v1/files/f")
        ]
    assert allowed == ["GET, POST", "DELETE, GET"]


async def test_the_document_says_that_extras_must_be_empty_and_hides_what_is_refused(world: World) -> None:
    told = world.app.openapi()
    schema = told["components"]["schemas"]["ChatRequest"]
    assert schema["additionalProperties"] == {"enum": [None, "", [], {}]}
    parameters = told["paths"]["/v1/files"]["get"]["parameters"]
    assert {one["name"] for one in parameters} >= {"after", "limit"}
    assert "before" not in {one["name"] for one in parameters}
