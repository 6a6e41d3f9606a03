"""What the KV store is told and what it answers: values, shared by the store and its clients."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from shared.clients.health import ServiceHealth
from shared.request import RequestContext

PIECE_BYTES = 1 << 20
"""How much of a chunk's file travels in one message: larger ones are slower."""


@dataclass(frozen=True, slots=True)
class ChunkStat:
    """``modified_s``: seconds since 1970. ``location``: where the node that answers streams the file from by
    Arrow Flight; empty: by ``get`` only."""

    chunk_id: str
    exists: bool
    size_bytes: int = 0
    modified_s: float = 0.0
    location: str = ""


@dataclass(frozen=True, slots=True)
class OpenedChunk:
    """``path`` is valid on the reader's node; ``layers`` are (offset, length) of the record batches in the
    file.

    ``progress`` not empty: the file is still arriving; that file beside it says which layers are there
    (``shared.kv_format.progress``). ``tier``: where it is read from, "memory" or "disk".
    """

    chunk_id: str
    exists: bool
    path: str = ""
    size_bytes: int = 0
    layers: tuple[tuple[int, int], ...] = ()
    progress: str = ""
    tier: str = ""


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
    """``char_start``, ``char_end``: characters of the document's extracted text. ``auxiliary_id``: identity
    of the chunk's KV by the auxiliary model that selects tokens; empty: it has none, or is computed when it
    is asked for."""

    chunk_id: str
    token_ids: tuple[int, ...]
    char_start: int = 0
    char_end: int = 0
    text: str = ""
    heading: str = ""
    auxiliary_id: str = ""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a document is made of. ``source_hash`` covers the source and the settings of parser and chunker;
    ``auxiliary``: identity of the auxiliary model that all its chunks were encoded with, if any."""

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
    auxiliary: str = ""

    @property
    def kv_ids(self) -> tuple[str, ...]:
        """Each chunk of KV that it refers to, the auxiliary's included, once."""
        auxiliaries = (c.auxiliary_id for c in self.chunks if c.auxiliary_id)
        return tuple(dict.fromkeys((*(c.chunk_id for c in self.chunks), *auxiliaries)))

    def without_auxiliary(self) -> Manifest:
        return replace(self, auxiliary="", chunks=tuple(replace(c, auxiliary_id="") for c in self.chunks))

    def cursor(self, collection: str) -> str:
        """``start_after`` for what follows this one in a listing of ``collection`` (empty: of all
        collections)."""
        return self.document_id if collection else f"{self.collection}/{self.document_id}"


@dataclass(frozen=True, slots=True)
class ManifestPage:
    manifests: tuple[Manifest, ...]
    truncated: bool


@dataclass(frozen=True, slots=True)
class TierStats:
    """``tier``: memory, disk, pending (durable here, not yet in the object store) or objects.
    ``capacity_bytes`` 0: no limit."""

    tier: str
    num_chunks: int
    num_bytes: int
    capacity_bytes: int = 0
    pinned_bytes: int = 0


@dataclass(frozen=True, slots=True)
class NodeStats:
    """``counters``: since the agent started."""

    node_id: str
    home: bool
    tiers: tuple[TierStats, ...]
    counters: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TenantStats:
    """``num_bytes`` of the distinct chunks that its documents refer to; ``quota_bytes`` 0: no limit."""

    tenant: str
    num_documents: int
    num_bytes: int
    quota_bytes: int = 0


@dataclass(frozen=True, slots=True)
class StoreStats:
    """``objects`` None: no object store is configured, or it did not answer. ``num_unreachable``: nodes that
    did not answer, and the object store if it did not."""

    nodes: tuple[NodeStats, ...]
    objects: TierStats | None = None
    tenants: tuple[TenantStats, ...] = ()
    num_unreachable: int = 0


@dataclass(frozen=True, slots=True)
class DamagedCopy:
    """A copy that is not what was stored. ``restored``: a good one took its place."""

    chunk_id: str
    node_id: str
    tier: str
    reason: str
    restored: bool = False


@dataclass(frozen=True, slots=True)
class VerifyProgress:
    """Copies and bytes verified so far, damage found since the last message. ``missing``, in the last one:
    chunks that documents refer to and of which no good copy is left."""

    num_copies: int
    num_bytes: int
    damaged: tuple[DamagedCopy, ...] = ()
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CollectedGarbage:
    """``num_kept``: unreferenced ones that are too young, or being read; ``kept``: which, in answer to a
    question about some."""

    num_chunks: int
    num_bytes: int
    num_kept: int
    kept: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PinnedDocuments:
    """``document_id`` empty: the whole collection."""

    collection: str
    document_id: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class PinnedChunks:
    """``version`` is equal for equal sets; a set whose version the asker knew comes without its ids."""

    version: str
    chunk_ids: frozenset[str] = frozenset()


class KvStore(Protocol):
    """The store as its callers see it: one node's, the whole cluster's, or a client of either. All raise
    ``shared.errors``."""

    async def stat(
        self, ctx: RequestContext, chunk_ids: Sequence[str], held: bool = False
    ) -> list[ChunkStat]:
        """``held``, to one node's store: only copies that this node holds itself, evictable ones included."""
        ...

    async def open(
        self, ctx: RequestContext, chunk_ids: Sequence[str], node_id: str = ""
    ) -> list[OpenedChunk]: ...

    async def stage(self, ctx: RequestContext, node_id: str = "") -> str: ...

    async def adopt(
        self,
        ctx: RequestContext,
        chunk_id: str,
        node_id: str,
        path: str,
        replace: bool = False,
        behind: bool = False,
    ) -> bool:
        """Whether the chunk was stored already. The file at ``path`` is gone afterwards, whatever happens.

        ``behind``: acknowledged once durable on this node's disk; it reaches the object store later."""
        ...

    async def put(
        self,
        ctx: RequestContext,
        chunk_id: str,
        size_bytes: int,
        pieces: AsyncIterator[bytes],
        replace: bool = False,
    ) -> bool: ...

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
        self,
        ctx: RequestContext,
        collection: str = "",
        start_after: str = "",
        limit: int = 0,
        summary: bool = False,
    ) -> ManifestPage: ...

    async def delete_manifest(self, ctx: RequestContext, collection: str, document_id: str) -> list[str]: ...

    async def prefetch(self, ctx: RequestContext, chunk_ids: Sequence[str], node_id: str = "") -> None:
        """Starts bringing chunks to ``node_id`` (empty: to every node that asked for chunks lately) and
        returns at once."""
        ...

    async def stats(self, ctx: RequestContext) -> StoreStats: ...

    def verify(self, ctx: RequestContext, repair: bool = False) -> AsyncGenerator[VerifyProgress, None]:
        """Reads every copy in every tier. ``repair``: damaged ones are removed and restored from good
        ones."""
        ...

    async def collect_garbage(
        self, ctx: RequestContext, grace_s: float, dry_run: bool = False, chunk_ids: Sequence[str] = ()
    ) -> CollectedGarbage:
        """Removes chunks that no document refers to, that nobody reads, and that were stored at least
        ``grace_s`` ago.

        ``chunk_ids``, to one node's store: nothing is removed; ``kept`` are those that must stay because of
        this node."""
        ...

    async def pin(
        self, ctx: RequestContext, collection: str, document_id: str = "", unpin: bool = False
    ) -> int:
        """Keeps the documents in the nodes' tiers; ``document_id`` empty: the whole collection, later
        documents included.

        Returns the bytes that are pinned now, over all tenants."""
        ...

    async def list_pins(self, ctx: RequestContext) -> list[PinnedDocuments]: ...

    async def list_pinned_chunks(self, ctx: RequestContext, known_version: str = "") -> PinnedChunks:
        """Over all tenants: for the other nodes."""
        ...

    async def health(self, ctx: RequestContext) -> ServiceHealth: ...
