"""An agent's own servers answer the services of its installation, and nobody else."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from pyarrow import flight

from protos.kvquilt.v1 import kv_store_node_pb2, kv_store_pb2
from services.kv_store.fetching.flight import FlightReader, FlightServer
from services.kv_store.node.handlers import start_server
from shared.clients.kv_node import SERVICE as NODE_SERVICE
from shared.clients.kv_node import AgentClient
from shared.clients.kv_store import SERVICE
from shared.clients.own_node import AgentConnection
from shared.errors import Unauthenticated, Unavailable
from shared.principals.credentials import Credentials, ServiceIdentity, no_credentials, signed
from shared.principals.principal import Principal, Role
from shared.principals.signing import Signer
from shared.request import RequestContext
from tests.kv_stores import KnownNodes, agent_on

OURS, NEW, THEIRS = b"o" * 32, b"n" * 32, b"t" * 32
SERVICE_ITSELF = Principal("service/kv_store", "default", frozenset({Role.INTERNAL}))
READER = Principal("anna", "default", frozenset({Role.READER}))
CTX = RequestContext.create(deadline_ms=36_000_000)
CHUNK = os.urandom(3 << 20)
RPCS = [
    (name, method.name)
    for name, module in ((NODE_SERVICE, kv_store_node_pb2), (SERVICE, kv_store_pb2))
    for method in module.DESCRIPTOR.services_by_name[name.rpartition(".")[2]].methods
]


def service(*secrets: bytes) -> Credentials:
    return signed(Signer(secrets), SERVICE_ITSELF)


REFUSED = {
    "nothing": no_credentials,
    "another installation's": service(THEIRS),
    "a reader's": signed(Signer([OURS]), READER),
}


@dataclass(frozen=True)
class Doors:
    """The agent's gRPC server; and where its Arrow Flight server answers."""

    address: str
    location: str


@pytest.fixture
async def doors(tmp_path: Path) -> AsyncIterator[Doors]:
    """Both believe two secrets."""
    identity = ServiceIdentity("kv_store", Signer([NEW, OURS]))
    agent = agent_on(tmp_path, "home", KnownNodes())
    server, address = await start_server(agent, "127.0.0.1", identity=identity)
    streaming = FlightServer("127.0.0.1", pieces, identity)
    yield Doors(address, streaming.location)
    streaming.close()
    await server.stop(None)
    await agent.close()


def pieces(chunk_id: str, start: int, length: int) -> Iterator[bytes]:
    yield CHUNK[start : start + length]


@pytest.mark.parametrize("credentials", REFUSED.values(), ids=REFUSED)
async def test_strangers_are_refused_whatever_they_call(doors: Doors, credentials: Credentials) -> None:
    async with grpc.aio.insecure_channel(doors.address) as channel:
        for service_name, method in RPCS:
            call: Any = channel.stream_stream(f"/{service_name}/{method}")(metadata=credentials())
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call.read()
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED, method
        with pytest.raises(Unauthenticated):
            await AgentClient.of(channel, credentials).list_page(CTX)
    reader = FlightReader(credentials)
    with pytest.raises(Unavailable) as cause:
        read(reader, doors.location)
    assert isinstance(cause.value.__cause__, flight.FlightUnauthenticatedError)
    reader.close()


@pytest.mark.parametrize("credentials", [service(OURS), service(NEW), service(OURS, NEW)])
async def test_services_are_answered_by_both_secrets_while_one_takes_the_others_place(
    doors: Doors, credentials: Credentials
) -> None:
    async with grpc.aio.insecure_channel(doors.address) as channel:
        assert (await AgentClient.of(channel, credentials).list_page(CTX)).chunks == ()
    own = AgentConnection(doors.address, credentials)
    assert not (await own.open(CTX, ["a" * 40]))[0].exists
    await own.close()
    reader = FlightReader(credentials)
    assert read(reader, doors.location) == CHUNK[:1000]
    reader.close()


def read(reader: FlightReader, location: str) -> bytes:
    received = bytearray()
    reader.read(location, "a" * 40, 0, 1000, lambda at, data: received.extend(data), timeout_s=20)
    return bytes(received)
