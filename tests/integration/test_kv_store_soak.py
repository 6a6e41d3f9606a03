"""A short soak, and that a soak would notice a store that breaks its promises."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from load_tests.benchmark import Violation
from load_tests.kv_store_soak.__main__ import soak
from load_tests.kv_store_soak.clients import SoakClient
from load_tests.servers.s3 import S3Server
from shared.errors import NotFound, Unavailable
from shared.kv_types import DeletedChunks, Manifest, OpenedChunk, Origin
from shared.request import RequestContext


async def test_eight_clients_and_a_service_that_is_killed_lose_nothing(tmp_path: Path) -> None:
    counts = await soak(tmp_path, seconds=15, num_clients=8, server=None, seed=1)
    assert counts["kills"] > 1
    assert counts["evicted"] > 0
    assert counts["chunks acknowledged at the end"] > 8
    assert counts["check_invariants() held"] == 1


async def test_nothing_is_lost_with_an_object_store_behind_small_tiers(tmp_path: Path) -> None:
    with closing(S3Server(tmp_path / "s3")) as server:
        print(f"object store: {server.program.origin}")
        counts = await soak(tmp_path, seconds=15, num_clients=8, server=server, seed=2)
    assert counts["kills"] > 1
    assert counts["evicted"] > 0
    assert counts["check_invariants() held"] == 1


class LyingStore:
    """Keeps chunks in memory; ``lie`` may change what it keeps after every acknowledgement."""

    def __init__(self, directory: Path, lie: Callable[[LyingStore], None]) -> None:
        self._directory, self._lie = directory, lie
        self.chunks: dict[str, bytes] = {}
        self.documents: dict[str, Manifest] = {}
        self.fail_next = False

    async def put(
        self,
        ctx: RequestContext,
        chunk_id: str,
        size_bytes: int,
        pieces: AsyncIterator[bytes],
        replace: bool = False,
    ) -> bool:
        data = b"".join([piece async for piece in pieces])
        if self.fail_next:
            self.fail_next = False
            raise Unavailable("killed before anything was stored")
        if replace or chunk_id not in self.chunks:
            self.chunks[chunk_id] = data
        self._lie(self)
        return False

    async def stage(self, ctx: RequestContext, node_id: str = "") -> str:
        return str(self._directory)

    async def adopt(
        self,
        ctx: RequestContext,
        chunk_id: str,
        node_id: str,
        path: str,
        replace: bool = False,
        write_back: bool = False,
        origin: Origin | None = None,
    ) -> bool:
        self.chunks[chunk_id] = Path(path).read_bytes()
        self._lie(self)
        return False

    async def get(self, ctx: RequestContext, chunk_id: str) -> AsyncGenerator[bytes, None]:
        await asyncio.sleep(0)
        if chunk_id not in self.chunks:
            raise NotFound("absent")
        yield self.chunks[chunk_id]

    async def open(self, ctx: RequestContext, chunk_ids: Sequence[str]) -> list[OpenedChunk]:
        opened = []
        for chunk_id in chunk_ids:
            path = self._directory / f"{chunk_id}.opened"
            if chunk_id in self.chunks:
                path.write_bytes(self.chunks[chunk_id])
            opened.append(OpenedChunk(chunk_id, chunk_id in self.chunks, str(path), tier="disk"))
        return opened

    async def delete(self, ctx: RequestContext, chunk_ids: Sequence[str]) -> DeletedChunks:
        needed = {c.chunk_id for m in self.documents.values() for c in m.chunks}
        referenced = tuple(c for c in chunk_ids if c in needed)
        deleted = tuple(c for c in chunk_ids if c not in needed and self.chunks.pop(c, None))
        return DeletedChunks(deleted, referenced)

    async def put_manifest(self, ctx: RequestContext, manifest: Manifest) -> list[str]:
        self.documents[manifest.document_id] = manifest
        self._lie(self)
        return []

    async def get_manifest(self, ctx: RequestContext, collection: str, document_id: str) -> Manifest:
        if document_id not in self.documents:
            raise NotFound("no such document")
        return self.documents[document_id]

    async def delete_manifest(self, ctx: RequestContext, collection: str, document_id: str) -> list[str]:
        gone = await self.get_manifest(ctx, collection, document_id)
        del self.documents[document_id]
        for chunk in gone.chunks:
            self.chunks.pop(chunk.chunk_id, None)
        return []


def client_of(store: LyingStore, directory: Path) -> SoakClient:
    return SoakClient(0, lambda: store, directory, Counter(), random.Random(3))  # type: ignore[arg-type, return-value]


def steps(num: int) -> Callable[[], bool]:
    left = iter(range(num))
    return lambda: next(left, None) is None


def honest(store: LyingStore) -> None: ...


def loses_the_oldest(store: LyingStore) -> None:
    if len(store.chunks) > 5:
        del store.chunks[next(iter(store.chunks))]


def flips_a_bit(store: LyingStore) -> None:
    if len(store.chunks) == 5:
        chunk_id = next(iter(store.chunks))
        data = store.chunks[chunk_id]
        store.chunks[chunk_id] = data[:100] + bytes([data[100] ^ 1]) + data[101:]


def forgets_documents(store: LyingStore) -> None:
    if len(store.documents) > 2:
        del store.documents[next(iter(store.documents))]


async def test_an_honest_store_passes_even_when_calls_fail(tmp_path: Path) -> None:
    store = LyingStore(tmp_path, honest)
    client = client_of(store, tmp_path)
    for _ in range(20):
        await client.run(steps(10))
        store.fail_next = True
    num_chunks, num_documents = await client.check_everything()
    assert num_chunks > 3
    assert num_documents > 1
    assert client.counts["put failed: UNAVAILABLE"] + client.counts["replace failed: UNAVAILABLE"] > 3


@pytest.mark.parametrize("lie", [loses_the_oldest, flips_a_bit, forgets_documents])
async def test_a_store_that_lies_is_found_out(tmp_path: Path, lie: Callable[[LyingStore], None]) -> None:
    client = client_of(LyingStore(tmp_path, lie), tmp_path)

    async def work() -> None:
        await client.run(steps(200))
        await client.check_everything()

    with pytest.raises(Violation):
        await work()
