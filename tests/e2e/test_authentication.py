"""A stack whose callers have keys: who may call what, for whom, and keys that change under load."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import openai
import pytest
from google.protobuf.descriptor import MethodDescriptor

from cluster.compose import SERVICERS
from cluster.local import launcher
from protos.kvquilt.v1 import common_pb2
from shared.answer import Inquiry, RetrievalOptions, Retrieved
from shared.clients.doors import generation_client, ingest_client, rag_client, retrieval_client
from shared.clients.rag import RagClient
from shared.documents import SourceDocument, Stage
from shared.errors import KvquiltError, NotFound, PermissionDenied, Unauthenticated
from shared.generation.asked import SamplingParams
from shared.generation.orders import GenerationOrder
from shared.generation.pieces import Conditioned
from shared.principals.credentials import bearer, no_credentials
from shared.principals.principal import Role
from shared.principals.roles import ROLES
from shared.request import RequestContext
from tests.e2e import stack as stacks
from tests.e2e.stack import Stack

pytestmark = pytest.mark.e2e
COLLECTION = "towns"
QUESTION = "Which day is market day in Tambach?"
APPLICATION_OF = {
    "Rag": "gateway",
    "Admin": "gateway",
    "Ingest": "ingestion",
    "Retrieval": "retrieval",
    "Generation": "generator",
    "KvStore": "kv_store",
}
REFUSED = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}
SOON_S = 60.0


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, documents: Path) -> Iterator[Stack]:
    """Has a key before it starts; its owner, who has none, ingests for the tenant acme."""
    data_dir = tmp_path_factory.mktemp("guarded") / "data"
    created(data_dir, "first")
    bounded = {"per_principal": {"of": {"acme/key/bounded": {"stored_bytes": 1}}}}
    running = stacks.start(data_dir, ingestion={"chunk_tokens": 96}, limits=bounded)
    try:
        ingested = running.cli("--tenant", "acme", "ingest", str(documents), "-c", COLLECTION)
        assert ingested.returncode == 0, ingested.stdout + ingested.stderr
        yield running
    finally:
        launcher.stop(data_dir)


@pytest.fixture(scope="module")
def keys(guarded: Stack) -> dict[Role, str]:
    """Of the tenant acme, one of each role; the admin's reads everything, or it could not move items."""
    groups = {Role.READER: (), Role.WRITER: (), Role.ADMIN: ("--group", "*")}
    made = {
        role: created(guarded.data_dir, role.value, "--role", role.value, *group)
        for role, group in groups.items()
    }
    asyncio.run(everywhere(guarded, made[Role.ADMIN]))
    return made


def created(data_dir: Path, name: str, *args: str, tenant: str = "acme") -> str:
    made = stacks.cli(data_dir, "key", "create", name, "--tenant", tenant, *args)
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


def revoke(data_dir: Path, key: str) -> None:
    taken = stacks.cli(data_dir, "key", "revoke", key.split("_")[1])
    assert taken.returncode == 0, taken.stderr


async def everywhere(guarded: Stack, key: str) -> None:
    """Every application knows the key."""

    async def known(service: str) -> bool:
        return await status(guarded, f"{service}.Health", key) is grpc.StatusCode.OK

    for service in APPLICATION_OF:
        if service != "Admin":
            await until(lambda service=service: known(service))  # type: ignore[misc]


async def until(there: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(SOON_S):
        while not await there():
            await asyncio.sleep(0.1)


def methods() -> dict[str, MethodDescriptor]:
    found = {}
    for module, services in SERVICERS.items():
        described = importlib.import_module(f"protos.kvquilt.v1.{module}_pb2").DESCRIPTOR.services_by_name
        for service in set(services) & APPLICATION_OF.keys():
            found |= {f"{service}.{method.name}": method for method in described[service].methods}
    return found


METHODS = methods()


async def status(guarded: Stack, rpc: str, key: str = "") -> grpc.StatusCode:
    """What becomes of an empty request."""
    service = rpc.partition(".")[0]
    metadata = [("application", APPLICATION_OF[service])]
    metadata += [("authorization", f"Bearer {key}")] if key else []
    method = METHODS[rpc]
    async with grpc.aio.insecure_channel(guarded.target) as channel:
        kind = channel.stream_stream if method.client_streaming else channel.unary_stream

        async def messages() -> Any:
            yield b""

        request = messages() if method.client_streaming else b""
        call = kind(f"/kvquilt.v1.{rpc.replace('.', '/')}")(request, metadata=metadata, timeout=60)
        try:
            _ = [message async for message in call]
            return grpc.StatusCode.OK
        except grpc.aio.AioRpcError as error:
            return error.code()
        finally:
            call.cancel()


@pytest.mark.parametrize("rpc", sorted(METHODS))
async def test_every_rpc_is_for_those_who_have_its_role(
    guarded: Stack, keys: dict[Role, str], rpc: str
) -> None:
    needed = ROLES[rpc]
    stranger = await status(guarded, rpc)
    hidden = stranger is grpc.StatusCode.UNIMPLEMENTED
    if needed is None:
        assert stranger is grpc.StatusCode.OK
    elif needed is Role.INTERNAL and hidden:
        return
    else:
        assert stranger is grpc.StatusCode.UNAUTHENTICATED
        assert await status(guarded, rpc, "kvq_nonsense") is grpc.StatusCode.UNAUTHENTICATED
    for role, key in keys.items():
        answered = await status(guarded, rpc, key)
        if needed is None or role.includes(needed):
            assert answered not in REFUSED
        else:
            assert answered is grpc.StatusCode.PERMISSION_DENIED


def inquiry() -> Inquiry:
    sampling = SamplingParams(max_tokens=2, ignore_eos=True)
    return Inquiry(COLLECTION, (QUESTION,), sampling=sampling, retrieval=RetrievalOptions(k=1))


async def ask(client: RagClient, tenant: str = "") -> int:
    """How many passages were found."""
    events = [e async for e in client.answer(RequestContext.create(tenant=tenant), inquiry())]
    (retrieved,) = [e for e in events if isinstance(e, Retrieved)]
    return len(retrieved.hits)


async def test_a_foreign_tenant_in_the_body_changes_nothing(guarded: Stack, keys: dict[Role, str]) -> None:
    other = created(guarded.data_dir, "other", "--role", "admin", tenant="other")
    await everywhere(guarded, other)
    for key, sees in ((keys[Role.READER], True), (other, False)):
        credentials = bearer(key)
        async with (
            rag_client(guarded.target, credentials) as rag,
            ingest_client(guarded.target, credentials) as ingest,
            retrieval_client(guarded.target, credentials) as retrieval,
        ):
            for tenant in ("", "acme", "other", "default"):
                ctx = RequestContext.create(tenant=tenant)
                names = [one.name for one in await retrieval.list_collections(ctx)]
                assert names == ([COLLECTION] if sees else [])
                if sees:
                    assert await ask(rag, tenant) == 1
                    assert (await ingest.list_page(ctx, COLLECTION)).documents
                    continue
                with pytest.raises(NotFound):
                    await ask(rag, tenant)
                with pytest.raises(NotFound):
                    await ingest.list_page(ctx, COLLECTION)
    async with ingest_client(guarded.target, bearer(other)) as ingest:
        with pytest.raises(NotFound):
            await ingest.delete(RequestContext.create(tenant="acme"), COLLECTION, everything=True)


async def test_a_principal_that_a_caller_makes_up_changes_nothing(
    guarded: Stack, keys: dict[Role, str]
) -> None:
    meta = common_pb2.RequestMeta(tenant="other", principal="kvp1.e30.AAAA")
    method = METHODS["Retrieval.ListCollections"]
    module = importlib.import_module("protos.kvquilt.v1.retrieval_pb2")
    request = module.ListCollectionsRequest(meta=meta).SerializeToString()
    async with grpc.aio.insecure_channel(guarded.target) as channel:
        call = channel.unary_unary(f"/kvquilt.v1.Retrieval/{method.name}")
        metadata = [("application", "retrieval"), ("authorization", f"Bearer {keys[Role.READER]}")]
        answer = module.ListCollectionsResponse.FromString(await call(request, metadata=metadata))
        assert [one.name for one in answer.collections] == [COLLECTION]
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(request, metadata=[*metadata[:1], ("kvquilt-principal", "kvp1.e30.AAAA")])
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def http(guarded: Stack, key: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{guarded.state.http}/v1", api_key=key, max_retries=0)


async def over_http(client: openai.AsyncOpenAI) -> None:
    await client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": QUESTION}],
        max_tokens=2,
        extra_body={"collection": COLLECTION, "tenant": "other", "top_k": 1},
    )


async def test_over_http_it_is_the_same(guarded: Stack, keys: dict[Role, str]) -> None:
    await over_http(http(guarded, keys[Role.READER]))
    for key in ("none", "kvq_x", keys[Role.READER][:-1]):
        with pytest.raises(openai.AuthenticationError):
            await over_http(http(guarded, key))
        with pytest.raises(openai.AuthenticationError):
            await http(guarded, key).models.list()


async def test_files_and_vector_stores_follow_keys_roles_tenants_and_limits(
    guarded: Stack, keys: dict[Role, str]
) -> None:
    bounded = created(guarded.data_dir, "bounded", "--role", "writer")
    stranger = created(guarded.data_dir, "stranger", "--role", "writer", tenant="others")
    await everywhere(guarded, stranger)
    writer, reader, other = (http(guarded, key) for key in (keys[Role.WRITER], keys[Role.READER], stranger))
    note: Any = {"file": ("note.md", b"# Note\n\nThe bridge is closed on Monday."), "purpose": "assistants"}
    file = await writer.files.create(**note, extra_headers={"x-kvquilt-tenant": "others"})
    store = await writer.vector_stores.create(name="kept")
    done = await writer.vector_stores.files.create_and_poll(
        file.id, vector_store_id=store.id, poll_interval_ms=200
    )
    assert (done.status, done.last_error) == ("completed", None)
    (hit,) = (await reader.vector_stores.search(store.id, query="When is the bridge closed?")).data
    assert (hit.file_id, hit.filename) == (file.id, "note.md")
    assert len((await reader.embeddings.create(model="minilm", input="bridge")).data) == 1
    with pytest.raises(openai.PermissionDeniedError, match="writer"):
        await reader.files.create(**note)
    assert (await other.files.list()).data == []
    with pytest.raises(openai.NotFoundError):
        await other.vector_stores.retrieve(store.id)
    with pytest.raises(openai.RateLimitError, match="stored_bytes"):
        await http(guarded, bounded).files.create(**note)
    await writer.vector_stores.delete(store.id)
    await writer.files.delete(file.id)


async def test_a_key_is_told_of_what_its_groups_may_read(guarded: Stack, tmp_path: Path) -> None:
    (tmp_path / "pay.md").write_text("# Pay\n\nAda of Tambach earns ten coins on every market day.")
    ingested = guarded.cli("--tenant", "acme", "ingest", str(tmp_path), "-c", "pay", "--readers", "hr")
    assert ingested.returncode == 0, ingested.stdout + ingested.stderr
    hr, staff = (created(guarded.data_dir, group, "--group", group) for group in ("hr", "staff"))
    await everywhere(guarded, staff)
    ctx = RequestContext.create()
    parents: set[str] = set()
    for key, sees in ((hr, True), (staff, False)):
        async with (
            ingest_client(guarded.target, bearer(key)) as ingest,
            retrieval_client(guarded.target, bearer(key)) as retrieval,
            generation_client(guarded.target, bearer(key)) as generator,
        ):
            assert ("pay" in [one.name for one in await retrieval.list_collections(ctx)]) == sees
            if sees:
                (hits,) = (await retrieval.search(ctx, "pay", [QUESTION])).rankings
                parents = {hit.chunk.parent_id for hit in hits} - {""}
                assert [d.readers for d in (await ingest.list_page(ctx, "pay")).documents] == [("hr",)]
            else:
                with pytest.raises(NotFound, match="'pay' does not exist"):
                    await retrieval.search(ctx, "pay", [QUESTION])
                with pytest.raises(NotFound, match="'pay' does not exist"):
                    await ingest.list_page(ctx, "pay")
            for parent_id in parents:
                chunk = Conditioned("Ada earns", parent_id=parent_id)
                order = GenerationOrder((chunk,), (QUESTION,), sampling=SamplingParams(max_tokens=2))
                events = generator.generate(ctx, order)
                if sees:
                    assert [event async for event in events]
                else:
                    with pytest.raises(NotFound, match=r"chunks\[0\]\.parent_id"):
                        _ = [event async for event in events]
    assert parents


async def test_keys_are_replaced_and_end_under_load_and_no_call_of_their_owner_fails(
    guarded: Stack,
) -> None:
    """He makes a new key, uses it as soon as it is known, and takes the old one back; one ends by its
    time."""
    key, stop = [created(guarded.data_dir, "owner")], asyncio.Event()

    async def accepted(key: str) -> bool:
        async with rag_client(guarded.target, bearer(key)) as client:
            try:
                await ask(client)
            except Unauthenticated:
                return False
            return True

    async def refused(key: str) -> bool:
        return not await accepted(key)

    async def by_grpc() -> int:
        asked = 0
        async with rag_client(guarded.target, lambda: bearer(key[0])()) as client:
            while not stop.is_set():
                assert await ask(client) == 1
                asked += 1
        return asked

    async def by_http() -> int:
        asked = 0
        while not stop.is_set():
            await over_http(http(guarded, key[0]))
            asked += 1
        return asked

    await until(lambda: accepted(key[0]))
    owner = [asyncio.create_task(work()) for work in (by_grpc, by_grpc, by_http)]
    ending = created(guarded.data_dir, "ending", "--expires", "6s")
    for _ in range(2):
        new = await asyncio.to_thread(created, guarded.data_dir, "owner")
        await until(lambda new=new: accepted(new))  # type: ignore[misc]
        old, key[0] = key[0], new
        await asyncio.sleep(0.5)
        await asyncio.to_thread(revoke, guarded.data_dir, old)
        await until(lambda old=old: refused(old))  # type: ignore[misc]
    await until(lambda: refused(ending))
    stop.set()
    assert min(await asyncio.gather(*owner)) > 0


async def test_a_damaged_file_of_keys_refuses_nobody_and_is_told_to_operators(
    guarded: Stack, keys: dict[Role, str]
) -> None:
    path = guarded.data_dir / "auth" / "keys.json"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    try:
        shown = await asyncio.to_thread(guarded.cli, "status")
        assert "damaged" in shown.stdout
        async with rag_client(guarded.target, bearer(keys[Role.READER])) as client:
            assert await ask(client) == 1
        async with rag_client(guarded.target, no_credentials) as client:
            with pytest.raises(Unauthenticated):
                await ask(client)
    finally:
        path.write_bytes(whole)


def test_commands_of_the_owner_need_no_key_and_those_of_others_do(
    guarded: Stack, keys: dict[Role, str], tmp_path: Path
) -> None:
    assert guarded.cli("store", "stats", "--json").returncode == 0
    there = ("--target", guarded.target)
    elsewhere = tmp_path / "elsewhere"
    assert "kvquilt key create" in stacks.cli(elsewhere, *there, "documents", "-c", COLLECTION).stderr
    (tmp_path / "key").write_text(keys[Role.READER])
    by_file = stacks.cli(
        elsewhere, *there, "--key-file", str(tmp_path / "key"), "documents", "-c", COLLECTION
    )
    assert by_file.returncode == 0, by_file.stderr
    denied = stacks.cli(elsewhere, *there, "--key", keys[Role.READER], "store", "stats")
    assert "needs the role admin" in denied.stderr


def test_nothing_of_a_key_is_in_any_file_or_log(guarded: Stack, keys: dict[Role, str]) -> None:
    secrets = [key.encode() for key in keys.values()]
    for path in guarded.data_dir.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert not [s for s in secrets if s in content], path
    assert json.loads((guarded.data_dir / "auth" / "keys.json").read_text())["version"] == 1


async def test_a_key_stores_no_more_than_it_may_and_others_of_its_tenant_do(
    guarded: Stack, keys: dict[Role, str]
) -> None:
    bounded = created(guarded.data_dir, "bounded", "--role", "writer")
    await everywhere(guarded, bounded)
    document = SourceDocument("note.md", b"# Note\n\nThe bridge is closed on Monday.")
    for key, stage in ((bounded, Stage.FAILED), (keys[Role.WRITER], Stage.STORED)):
        async with ingest_client(guarded.target, bearer(key)) as client:
            *before, last = [e async for e in client.upsert(RequestContext.create(), "notes", [document])]
        assert last.stage is stage, last.error
        assert (Stage.PREFILLED in {event.stage for event in before}) == (stage is Stage.STORED)
        if stage is Stage.FAILED:
            assert last.error_code == "STORAGE_FULL"
            assert "key/bounded of tenant 'acme' stored have 0 bytes" in last.error
            assert "more than the 1 that limits.per_principal.stored_bytes allows" in last.error


async def test_a_role_that_is_missing_is_named(guarded: Stack, keys: dict[Role, str]) -> None:
    async with ingest_client(guarded.target, bearer(keys[Role.READER])) as client:
        with pytest.raises(PermissionDenied, match="needs the role writer") as denied:
            await client.delete(RequestContext.create(), COLLECTION, everything=True)
    assert isinstance(denied.value, KvquiltError)
