"""Who may keep, attach, search and delete over HTTP, what of it is on record, and what it may take."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import openai
import pytest

from shared.admission.settings import PrincipalLimits
from shared.audit import AuditConfig, AuditLog, read_lines
from shared.audited import Recorder
from shared.limits import RequestLimits
from shared.principals.principal import Role
from tests.unit.gateway.kept_world import World
from tests.unit.gateway.test_http_callers import client
from tests.unit.gateway.test_http_files import NOTE
from tests.unit.principals.test_callers import StaticKeys
from tests.unit.principals.test_callers import World as Callers

READS: list[Callable[[Any], Any]] = [
    lambda asking: asking.files.list(),
    lambda asking: asking.vector_stores.list(),
    lambda asking: asking.vector_stores.retrieve("handbook"),
    lambda asking: asking.vector_stores.files.list("handbook"),
    lambda asking: asking.vector_stores.search("handbook", query="x"),
]
WRITES: list[Callable[[Any], Any]] = [
    lambda asking: asking.files.create(file=NOTE, purpose="assistants"),
    lambda asking: asking.files.delete("file-" + "0" * 24),
    lambda asking: asking.vector_stores.create(name="other"),
    lambda asking: asking.vector_stores.update("handbook", name="other"),
    lambda asking: asking.vector_stores.delete("handbook"),
    lambda asking: asking.vector_stores.files.create("handbook", file_id="file-" + "0" * 24),
    lambda asking: asking.vector_stores.files.delete("file-" + "0" * 24, vector_store_id="handbook"),
    lambda asking: asking.vector_stores.file_batches.create("handbook", file_ids=["file-" + "0" * 24]),
    lambda asking: asking.vector_stores.file_batches.cancel("vsfb_" + "0" * 24, vector_store_id="handbook"),
]


@pytest.fixture
def callers() -> Callers:
    return Callers(StaticKeys([]))


@pytest.fixture
async def world(tmp_path: Path, callers: Callers) -> AsyncIterator[World]:
    recorder = Recorder(AuditLog("gateway", AuditConfig(str(tmp_path / "audit"))), clock=lambda: 0.0)
    made = World.on(tmp_path, callers=callers.callers, recorder=recorder)
    yield made
    await made.close()
    recorder.close()


async def test_readers_look_and_search_and_change_nothing(world: World, callers: Callers) -> None:
    writer = client(world.app, callers.key("w", Role.WRITER))
    await writer.vector_stores.create(name="handbook")
    reader = client(world.app, callers.key("r", Role.READER))
    for reads in READS:
        await reads(reader)
    for writes in WRITES:
        with pytest.raises(openai.PermissionDeniedError, match="writer"):
            await writes(reader)
    assert (await reader.vector_stores.retrieve("handbook")).name == "handbook"


async def test_strangers_do_nothing_at_all(world: World, callers: Callers) -> None:
    stranger = client(world.app, "none")
    for call in (*READS, *WRITES):
        with pytest.raises(openai.AuthenticationError):
            await call(stranger)


async def test_the_tenant_follows_from_the_key(world: World, callers: Callers) -> None:
    writer = client(world.app, callers.key("w", Role.WRITER))
    made = await writer.files.create(
        file=NOTE, purpose="assistants", extra_headers={"x-kvquilt-tenant": "victim"}
    )
    (tenant,) = (path.name for path in (Path(world.store_directory) / "items" / "kept").iterdir())
    assert tenant == "acme"
    assert (await writer.files.retrieve(made.id)).id == made.id


async def test_who_is_in_none_of_its_groups_is_told_that_there_is_none(
    world: World, callers: Callers
) -> None:
    staff = client(world.app, callers.key("w", Role.WRITER))  # of the group staff
    mine = await staff.files.create(file=NOTE, purpose="assistants", extra_body={"readers": ["staff"]})
    theirs = await staff.files.create(file=NOTE, purpose="assistants", extra_body={"readers": ["board"]})
    assert [file.id async for file in staff.files.list()] == [mine.id]
    with pytest.raises(openai.NotFoundError):
        await staff.files.content(theirs.id)
    await staff.vector_stores.create(name="handbook")
    with pytest.raises(openai.NotFoundError):
        await staff.vector_stores.files.create("handbook", file_id=theirs.id)


async def test_changes_are_on_record_and_what_is_only_read_is_not(
    world: World, callers: Callers, tmp_path: Path
) -> None:
    asking = client(world.app, callers.key("anna", Role.WRITER))
    file = await asking.files.create(file=NOTE, purpose="assistants")
    await asking.vector_stores.create(name="handbook")
    await asking.vector_stores.files.create("handbook", file_id=file.id)
    await world.attaching.settled()
    await asking.vector_stores.files.list("handbook")
    await asking.vector_stores.files.delete(file.id, vector_store_id="handbook")
    await asking.vector_stores.delete("handbook")
    await asking.files.delete(file.id)
    with pytest.raises(openai.NotFoundError):
        await asking.files.delete(file.id)
    lines: list[Any] = [dict(line) for line in read_lines(tmp_path / "audit")]
    assert [(line["action"], line["outcome"]) for line in lines] == [
        ("keep", "OK"),
        ("ingest", "OK"),
        ("ingest", "OK"),
        ("delete", "OK"),
        ("delete", "OK"),
        ("delete kept", "OK"),
        ("delete kept", "NOT_FOUND"),
    ]
    assert {(line["principal"], line["tenant"]) for line in lines} == {("key/anna", "acme")}
    assert (lines[0]["kind"], lines[0]["id"]) == ("file", file.id)
    assert (lines[2]["collection"], lines[2]["document_ids"]) == ("handbook", [file.id])
    assert NOTE[1].decode() not in str(lines)


async def test_calls_count_towards_what_a_principal_may_ask(tmp_path: Path, callers: Callers) -> None:
    limits = RequestLimits(per_principal=PrincipalLimits(requests_per_s=0.001, burst_s=1.0))
    world = World.on(tmp_path, limits, callers=callers.callers)
    asking = client(world.app, callers.key("anna", Role.WRITER))
    await asking.files.list()
    with pytest.raises(openai.RateLimitError, match=r"limits\.per_principal\.requests_per_s"):
        await asking.files.create(file=NOTE, purpose="assistants")
    await world.close()


async def test_openapi_describes_all_of_it(world: World) -> None:
    paths = world.app.openapi()["paths"]
    one = "/v1/vector_stores/{store_id}"
    assert {(path, verb) for path, verbs in paths.items() for verb in verbs} >= {
        ("/v1/files", "get"),
        ("/v1/files", "post"),
        ("/v1/files/{file_id}", "get"),
        ("/v1/files/{file_id}", "delete"),
        ("/v1/files/{file_id}/content", "get"),
        ("/v1/vector_stores", "get"),
        ("/v1/vector_stores", "post"),
        (one, "get"),
        (one, "delete"),
        (f"{one}/search", "post"),
        (f"{one}/files", "get"),
        (f"{one}/files", "post"),
        (f"{one}/files/{{file_id}}", "get"),
        (f"{one}/files/{{file_id}}", "delete"),
        (f"{one}/file_batches", "post"),
        (f"{one}/file_batches/{{batch_id}}", "get"),
        (f"{one}/file_batches/{{batch_id}}/cancel", "post"),
    }
    form = paths["/v1/files"]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
    assert form["required"] == ["file", "purpose"]
