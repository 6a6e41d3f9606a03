"""Who calls, over a real gRPC server: every kind of call, keys that change while it serves."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from protos.kvquilt.v1 import generation_pb2, generation_pb2_grpc
from services.generator.handlers import GenerationServicer
from services.kv_store.node.handlers import AgentHandlers
from shared.clients import generation
from shared.clients.grpc_transport import CHANNEL_OPTIONS, GrpcTransport
from shared.clients.kv_store import APPLICATION, SERVICE, KvStoreClient
from shared.errors import KvquiltError, Unauthenticated, Unavailable
from shared.kv_types import Manifest
from shared.principals.authentication import callers_of
from shared.principals.config import AuthConfig, AuthMode
from shared.principals.credentials import Credentials, ServiceIdentity, bearer, no_credentials
from shared.principals.keys import KeyKind, KeyRecord, hash_of, id_of, new_key, utc_now
from shared.principals.keys_file import changing
from shared.principals.principal import Role
from shared.principals.secret import make_secret, signer_of
from shared.request import RequestContext
from tests.kv_stores import KnownNodes, agent_on, in_pieces, public_server

SEEN_S = 1.0
"""Within which a change of the file counts."""
A = "a" * 40


class Door:
    """A store with keys, and its clients."""

    def __init__(self, directory: Path) -> None:
        self.address = ""
        self.auth = AuthConfig(AuthMode.REQUIRED, str(directory / "keys.json"), str(directory / "secret"))
        self._channels: list[grpc.aio.Channel] = []

    def key(self, name: str, role: Role, tenant: str = "acme") -> str:
        key = new_key()
        record = KeyRecord(id_of(key), name, KeyKind.KEY, tenant, frozenset({role}), hash=hash_of(key))
        with changing(Path(self.auth.keys_file)) as records:
            records.append(record)
        return key

    def revoke(self, key: str) -> None:
        with changing(Path(self.auth.keys_file)) as records:
            records[:] = [replace(r, revoked=utc_now()) if r.key_id == id_of(key) else r for r in records]

    def transport(self, credentials: Credentials, service: str = SERVICE) -> GrpcTransport:
        channel = grpc.aio.insecure_channel(self.address, options=CHANNEL_OPTIONS)
        self._channels.append(channel)
        return GrpcTransport(channel, service, APPLICATION, credentials=credentials)

    def store(self, credentials: Credentials = no_credentials) -> KvStoreClient:
        return KvStoreClient(self.transport(credentials))

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[Door]:
    door = Door(tmp_path)
    make_secret(Path(door.auth.secret_file))
    door.key("first", Role.READER)
    agent = agent_on(tmp_path / "store", "home", KnownNodes())
    handlers = AgentHandlers(agent)
    handlers.callers = callers_of(door.auth, "kv_store")
    async with public_server(handlers) as address:
        door.address = address
        yield door
        await door.close()
    await agent.close()


def ctx(tenant: str = "victim") -> RequestContext:
    """Names somebody else's tenant in the body."""
    return RequestContext.create(tenant=tenant, deadline_ms=20_000)


async def kinds(store: KvStoreClient) -> AsyncIterator[str]:
    """An error per kind of call: one answer, a stream of answers, a stream of requests."""
    for call in (
        store.stats(ctx()),
        anext(aiter(store.get(ctx(), A))),
        store.put(ctx(), A, 10, in_pieces(b"x" * 10)),
    ):
        try:
            await call
            yield "answered"
        except KvquiltError as error:
            yield type(error).__name__


async def test_every_kind_of_call_is_refused_to_strangers_and_to_those_without_the_role(door: Door) -> None:
    keys = {role: door.key(role.value, role) for role in (Role.READER, Role.ADMIN)}
    await asyncio.sleep(SEEN_S)
    assert [error async for error in kinds(door.store())] == ["Unauthenticated"] * 3
    assert [error async for error in kinds(door.store(bearer(keys[Role.READER])))] == ["PermissionDenied"] * 3
    admitted = [error async for error in kinds(door.store(bearer(keys[Role.ADMIN])))]
    assert not {"Unauthenticated", "PermissionDenied"} & set(admitted)


async def test_a_foreign_tenant_in_the_body_changes_nothing(door: Door) -> None:
    keys = {tenant: door.key("root", Role.ADMIN, tenant) for tenant in ("acme", "victim")}
    await asyncio.sleep(SEEN_S)
    acme, victim = (door.store(bearer(keys[tenant])) for tenant in ("acme", "victim"))
    await victim.put_manifest(ctx("victim"), Manifest("victim", "books", "theirs"))
    await acme.put_manifest(ctx("victim"), Manifest("acme", "books", "ours"))
    with pytest.raises(KvquiltError, match=r"manifest\.tenant"):
        await acme.put_manifest(ctx("victim"), Manifest("victim", "books", "forged"))
    listed = [manifest async for manifest in acme.list_manifests(ctx("victim"), "books")]
    assert [(m.tenant, m.document_id) for m in listed] == [("acme", "ours")]


async def test_keys_come_and_go_while_a_caller_is_never_refused(door: Door) -> None:
    """The new one is made, both count, the old one goes."""
    old = door.key("anna", Role.ADMIN)
    await asyncio.sleep(SEEN_S)
    current, stop = [old], asyncio.Event()
    store = door.store(lambda: bearer(current[0])())

    async def keep_asking() -> int:
        asked = 0
        while not stop.is_set():
            await store.stats(ctx())
            asked += 1
        return asked

    asking = [asyncio.create_task(keep_asking()) for _ in range(4)]
    for _ in range(3):
        new = door.key("anna", Role.ADMIN)
        await asyncio.sleep(SEEN_S)
        before, current[0] = current[0], new
        await asyncio.sleep(0.2)  # what was asked with the old one is answered
        door.revoke(before)
        await asyncio.sleep(SEEN_S)
        with pytest.raises(Unauthenticated):
            await door.store(bearer(before)).stats(ctx())
    stop.set()
    assert min(await asyncio.gather(*asking)) > 0


async def test_a_damaged_file_of_keys_refuses_nobody_who_had_one(door: Door) -> None:
    key = door.key("root", Role.ADMIN)
    store = door.store(bearer(key))
    await asyncio.sleep(SEEN_S)
    await store.stats(ctx())
    Path(door.auth.keys_file).write_text('{"version": 1, "ke')
    await asyncio.sleep(SEEN_S)
    await store.stats(ctx())
    assert "damaged" in (await store.health(ctx())).detail
    with pytest.raises(Unauthenticated):
        await door.store().stats(ctx())


async def test_strangers_learn_that_the_service_lives_and_no_more(door: Door) -> None:
    health = await door.store().health(ctx())
    assert (health.ready, health.detail, health.facts) == (True, "", {})


async def test_a_service_of_another_cluster_calls_by_the_secret_that_both_know(door: Door) -> None:
    signer = signer_of(Path(door.auth.secret_file))
    store = door.store(ServiceIdentity("gateway", signer).credentials("default"))
    await store.put_manifest(ctx("corp"), Manifest("corp", "books", "1"))
    assert [m.document_id async for m in store.list_manifests(ctx("corp"), "books")] == ["1"]
    assert [m async for m in store.list_manifests(ctx("acme"), "books")] == []


async def test_a_stream_both_ways_is_refused_with_its_reason(door: Door) -> None:
    servicer = GenerationServicer(Unavailable("no model"))
    servicer.callers = callers_of(door.auth, "generator")
    server = grpc.aio.server()
    generation_pb2_grpc.add_GenerationServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()

    door.address = f"127.0.0.1:{port}"
    try:
        for credentials in (no_credentials, bearer(new_key())):
            transport = door.transport(credentials, generation.SERVICE)
            stream = transport.both_streams("Explore", opened(), generation_pb2.ExploreResponse, 20)
            with pytest.raises(Unauthenticated):
                await anext(aiter(stream))
    finally:
        await server.stop(None)


async def opened() -> AsyncIterator[generation_pb2.ExploreRequest]:
    yield generation_pb2.ExploreRequest(open=generation_pb2.ForestOpen())


def own_address() -> str:
    """Of this machine, by which others reach it; empty: it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return ""
        address: str = probe.getsockname()[0]
        return "" if address.startswith("127.") else address


async def test_without_keys_callers_of_this_machine_are_operators_and_others_are_refused(
    tmp_path: Path,
) -> None:
    make_secret(tmp_path / "secret")
    auth = AuthConfig(AuthMode.LOCAL, str(tmp_path / "keys.json"), str(tmp_path / "secret"))
    agent = agent_on(tmp_path / "store", "home", KnownNodes())
    handlers = AgentHandlers(agent)
    handlers.callers = callers_of(auth, "kv_store")
    door = Door(tmp_path)
    async with public_server(handlers, "0.0.0.0") as address:
        door.address = address
        await door.store().put_manifest(ctx("acme"), Manifest("acme", "books", "1"))
        if host := own_address():
            door.address = f"{host}:{address.rpartition(':')[2]}"
            for call in (door.store().stats(ctx()), door.store().health(ctx())):
                with pytest.raises(Unauthenticated, match="kvquilt key create"):
                    await call
        await door.close()
    await agent.close()
