"""Has the clients of a soak: each works on chunks of its own, and keeps account of what the store may answer
about each of them."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from load_tests.benchmark import Violation
from load_tests.kv_store.stored_chunks import ChunkShape, random_chunk_id, write_random_chunk
from shared.clients.kv_node import AgentClient
from shared.errors import CorruptData, InternalError, KvquiltError, NotFound
from shared.kv_types import PIECE_BYTES, Manifest, ManifestChunk, Origin
from shared.request import RequestContext

COLLECTION = "soak"
_MOST_CHUNKS = 24
_ABSENT = ""


@dataclass(slots=True)
class ExpectedChunk:
    """``allowed``: digests of what the store may answer; empty for absent. More than one after a call whose
    end is not known."""

    chunk_id: str
    shape: ChunkShape
    seed: int
    allowed: set[str] = field(default_factory=lambda: {_ABSENT})
    document: str = ""

    @property
    def must_be_there(self) -> bool:
        return _ABSENT not in self.allowed


@dataclass(slots=True)
class SoakClient:
    """``connect``: a client of the store as it runs now; while it is being started, of none that answers."""

    number: int
    connect: Callable[[], AgentClient]
    scratch: Path
    counts: Counter[str]
    rng: random.Random
    chunks: dict[str, ExpectedChunk] = field(default_factory=dict)
    documents: dict[str, set[str]] = field(default_factory=dict)
    """Acknowledged ones, and the chunks of each."""
    gone_documents: set[str] = field(default_factory=set)
    _made: int = 0

    async def run(self, until: Callable[[], bool]) -> None:
        steps: list[tuple[Callable[[], Awaitable[None]], int]] = [
            (self.put, 5),
            (self.replace, 1),
            (self.adopt, 3),
            (self.get, 5),
            (self.open, 6),
            (self.delete, 3),
            (self.put_document, 2),
            (self.delete_document, 1),
        ]
        kinds, weights = zip(*steps, strict=True)
        while not until():
            step = self.put if not self.chunks else self.rng.choices(kinds, weights)[0]
            try:
                await step()
                self.counts[step.__name__] += 1
            except (CorruptData, InternalError) as error:
                raise Violation(f"{step.__name__}: {error.code}: {error.detail}") from None
            except KvquiltError as error:
                self.counts[f"{step.__name__} failed: {error.code}"] += 1
                await asyncio.sleep(0.02)

    # ---- what a client does; the account is changed before a call, for the call may end without an answer

    async def put(self) -> None:
        chunk = self._new()
        data = await self._promised(chunk)
        await self.connect().put(_ctx(), chunk.chunk_id, len(data), _pieces(data), Origin())
        chunk.allowed = {_digest(data)}

    async def replace(self) -> None:
        await self._adopted(self._any(), replace=True)

    async def adopt(self) -> None:
        await self._adopted(self._new(), write_back=self.rng.random() < 0.5)

    async def _adopted(self, chunk: ExpectedChunk, replace: bool = False, write_back: bool = False) -> None:
        store = self.connect()
        path = Path(await store.stage(_ctx())) / f"client-{self.number}-{self.rng.randrange(10**9)}"
        data = await self._promised(chunk)
        await asyncio.to_thread(path.write_bytes, data)
        await store.adopt(_ctx(), chunk.chunk_id, "", str(path), replace, write_back, Origin())
        chunk.allowed = {_digest(data)}

    async def get(self) -> None:
        self._check(chunk := self._any(), await _read(self.connect(), chunk.chunk_id))

    async def open(self) -> None:
        """Several at once, as a request does, and reads the files."""
        chosen = self.rng.sample(sorted(self.chunks), min(4, len(self.chunks)))
        for opened in await self.connect().open(_ctx(), chosen):
            if opened.exists and not opened.progress:
                try:
                    data = await asyncio.to_thread(Path(opened.path).read_bytes)
                except FileNotFoundError:  # the service was killed and its tiers came up elsewhere
                    continue
                self._check(self.chunks[opened.chunk_id], _digest(data))
                self.counts[f"opened in {opened.tier}"] += 1

    async def delete(self) -> None:
        chunk = self._any()
        before = set(chunk.allowed)
        chunk.allowed.add(_ABSENT)
        answer = await self.connect().delete(_ctx(), [chunk.chunk_id])
        if answer.referenced:
            chunk.allowed = before
            return
        if chunk.document in self.documents:
            raise Violation(f"{chunk.chunk_id} was deleted although document {chunk.document} refers to it")
        chunk.allowed = {_ABSENT}
        self._retire()

    async def put_document(self) -> None:
        free = [c for c in self.chunks.values() if c.must_be_there and not c.document]
        if not free:
            return
        document_id = f"{self.number}-{self._made}-{self.rng.randrange(10**9)}"
        chosen = self.rng.sample(free, min(3, len(free)))
        for chunk in chosen:
            chunk.document = document_id
        chunks = tuple(ManifestChunk(c.chunk_id, (1,)) for c in chosen)
        await self.connect().put_manifest(
            _ctx(), Manifest(_ctx().tenant, COLLECTION, document_id, chunks=chunks)
        )
        self.documents[document_id] = {c.chunk_id for c in chosen}

    async def delete_document(self) -> None:
        if not self.documents:
            return
        document_id = self.rng.choice(sorted(self.documents))
        # they go with it, now or when the store recovers: nobody uses them again
        for chunk_id in self.documents.pop(document_id):
            self.chunks.pop(chunk_id)
        try:
            await self.connect().delete_manifest(_ctx(), COLLECTION, document_id)
        except NotFound:
            raise _lost(document_id) from None
        self.gone_documents.add(document_id)

    # ---- afterwards

    async def check_everything(self) -> tuple[int, int]:
        """Reads whatever must be there; how many chunks and documents that were.

        Raises:
            Violation: something is not as was acknowledged.
        """
        store = self.connect()
        for chunk in self.chunks.values():
            self._check(chunk, await _read(store, chunk.chunk_id))
        for document_id, chunk_ids in self.documents.items():
            try:
                manifest = await store.get_manifest(_ctx(), COLLECTION, document_id)
            except NotFound:
                raise _lost(document_id) from None
            if {c.chunk_id for c in manifest.chunks} != chunk_ids:
                raise Violation(f"document {document_id} names other chunks than were acknowledged")
        for document_id in self.gone_documents:
            try:
                await store.get_manifest(_ctx(), COLLECTION, document_id)
            except NotFound:
                continue
            raise Violation(f"document {document_id} was deleted, and is there again")
        return sum(c.must_be_there for c in self.chunks.values()), len(self.documents)

    # ----

    def _check(self, chunk: ExpectedChunk, found: str) -> None:
        """``found`` is a digest, or empty for absent."""
        if found not in chunk.allowed:
            raise Violation(f"{chunk.chunk_id} is {'absent' if not found else 'not what was put there'}")
        if len(chunk.allowed) > 1 and not chunk.document:
            self.counts["unknown ends settled"] += 1

    def _any(self) -> ExpectedChunk:
        return self.chunks[self.rng.choice(sorted(self.chunks))]

    def _new(self) -> ExpectedChunk:
        if len(self.chunks) >= _MOST_CHUNKS:
            self._retire(force=True)
        self._made += 1
        shape = ChunkShape(layers=2, kv_heads=2, head_dim=32, tokens=self.rng.randrange(120, 500))
        seed = self.rng.randrange(2**32)
        chunk_id = random_chunk_id(shape, seed, _ctx().tenant)
        chunk = self.chunks[chunk_id] = ExpectedChunk(chunk_id, shape, seed)
        return chunk

    async def _promised(self, chunk: ExpectedChunk) -> bytes:
        """A file of 60 to 250 KB that the store may answer with from now on."""
        of = (self.scratch, chunk.shape, chunk.seed, chunk.chunk_id, self.rng.randrange(2**32))
        _, path = await asyncio.to_thread(write_random_chunk, *of)
        data = await asyncio.to_thread(path.read_bytes)
        path.unlink()
        chunk.allowed.add(_digest(data))
        return data

    def _retire(self, force: bool = False) -> None:
        """Forgets what is known to be absent; ``force``: and something else that no document holds, which the
        store may keep."""
        for chunk_id in [
            c.chunk_id for c in self.chunks.values() if c.allowed == {_ABSENT} and not c.document
        ]:
            del self.chunks[chunk_id]
        free = [c.chunk_id for c in self.chunks.values() if not c.document]
        if force and free and len(self.chunks) >= _MOST_CHUNKS:
            del self.chunks[self.rng.choice(free)]


def _lost(document_id: str) -> Violation:
    return Violation(f"document {document_id} was acknowledged, and is not there")


async def _read(store: AgentClient, chunk_id: str) -> str:
    digest = hashlib.blake2b(digest_size=16)
    try:
        async for piece in store.get(_ctx(), chunk_id):
            digest.update(piece)
    except NotFound:
        return _ABSENT
    return digest.hexdigest()


async def _pieces(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), PIECE_BYTES // 16):
        yield data[start : start + PIECE_BYTES // 16]


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _ctx() -> RequestContext:
    return RequestContext.create(deadline_ms=20_000)
