"""What the KV store is told and what it answers: values, shared by the store and its clients."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from shared.clients.health import ServiceHealth
from shared.request import RequestContext

PIECE_BYTES = 1 << 20
"""How much of a chunk's file travels in one message: larger ones are slower."""


@dataclass(frozen=True, slots=True)
class ChunkStat:
    """``modified_s``: seconds since 1970."""

    chunk_id: str
    exists: bool
    size_bytes: int = 0
    modified_s: float = 0.0


@dataclass(frozen=True, slots=True)
class OpenedChunk:
    """``path`` is valid on the reader's node; ``layers`` are (offset, length) of the record batches in the file."""

    chunk_id: str
    exists: bool
    path: str = ""
    size_bytes: int = 0
    layers: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class ChunkPage:
    chunks: tuple[ChunkStat, ...]
    truncated: bool


@dataclass(frozen=True, slots=True)
class DeletedChunks:
    """``referenced`` ones were kept because a document needs them."""

    deleted: tuple[str, ...]
    referenced: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ManifestChunk:
    """``char_start``, ``char_end``: characters of the document's extracted text."""

    chunk_id: str
    token_ids: tuple[int, ...]
    char_start: int = 0
    char_end: int = 0
    text: str = ""
    heading: str = ""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a document is made of. ``source_hash`` covers the source and the settings of parser and chunker."""

    tenant: str
    collection: str
    document_id: str
    title: str = ""
    source_hash: str = ""
    model_fingerprint: str = ""
    prefix_ids: tuple[int, ...] = ()
    chunks: tuple[ManifestChunk, ...] = ()
    metadata: dict[str, str] = field(default_factory=dict)
    created_s: float = 0.0

    def cursor(self, collection: str) -> str:
        """``start_after`` for what follows this one in a listing of ``collection`` (empty: of all collections)."""
        return self.document_id if collection else f"{self.collection}/{self.document_id}"


@dataclass(frozen=True, slots=True)
class ManifestPage:
    manifests: tuple[Manifest, ...]
    truncated: bool


class KvStore(Protocol):
    """The store as its callers see it: one node's, the whole cluster's, or a client of either. All raise ``shared.errors``."""

    async def stat(self, ctx: RequestContext, chunk_ids: Sequence[str]) -> list[ChunkStat]: ...

    async def open(self, ctx: RequestContext, chunk_ids: Sequence[str], node_id: str = "") -> list[OpenedChunk]: ...

    async def stage(self, ctx: RequestContext, node_id: str = "") -> str: ...

    async def adopt(self, ctx: RequestContext, chunk_id: str, node_id: str, path: str, replace: bool = False) -> bool:
        """Whether the chunk was stored already. The file at ``path`` is gone afterwards, whatever happens."""
        ...

    async def put(self, ctx: RequestContext, chunk_id: str, size_bytes: int, pieces: AsyncIterator[bytes]) -> bool: ...

    def get(
        self, ctx: RequestContext, chunk_id: str, offset: int = 0, length: int | None = None
    ) -> AsyncGenerator[bytes, None]: ...

    async def delete(self, ctx: RequestContext, chunk_ids: Sequence[str]) -> DeletedChunks: ...

    async def list_page(self, ctx: RequestContext, start_after: str = "", limit: int = 0) -> ChunkPage: ...

    async def put_manifest(self, ctx: RequestContext, manifest: Manifest) -> list[str]:
        """Chunks of the manifest it replaces that nothing refers to any more: removed."""
        ...

    async def get_manifest(self, ctx: RequestContext, collection: str, document_id: str) -> Manifest: ...

    async def manifest_page(
        self, ctx: RequestContext, collection: str = "", start_after: str = "", limit: int = 0, summary: bool = False
    ) -> ManifestPage: ...

    async def delete_manifest(self, ctx: RequestContext, collection: str, document_id: str) -> list[str]: ...

    async def health(self, ctx: RequestContext) -> ServiceHealth: ...
