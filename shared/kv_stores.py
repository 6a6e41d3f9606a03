"""The KV store's two interfaces as their callers see them. All methods raise ``shared.errors``.

``Store`` is public: documents, statistics, upkeep, and whole chunks for export and import. ``NodeStore`` is
what one node says of its own tiers, to the generators and selectors on it (``NodeFiles``) and to the other
nodes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Protocol

from shared.clients.health import ServiceHealth
from shared.kv_items import Expected, Item, ItemPage
from shared.kv_reports import CollectedGarbage, StoreStats, VerifyProgress
from shared.kv_types import (
    AlikeDocuments,
    Chain,
    ChunkPage,
    ChunkStat,
    DeletedChunks,
    Manifest,
    ManifestPage,
    OpenedChunk,
    Origin,
    PeerCopy,
)
from shared.pinned import PinnedChunks, PinnedDocuments
from shared.request import RequestContext


class ReadableChunks(Protocol):
    """The part of a ``ManifestStore``, or of ``NodeFiles``, that says what a caller may know."""

    async def readable(self, ctx: RequestContext, chunk_ids: Sequence[str]) -> list[str]:
        """Those of documents that the caller may read. ``chunk_ids``: of chunks, of their auxiliary KV, or of
        what chunks are computed behind."""
        ...


class ManifestStore(ReadableChunks, Protocol):
    """The documents of a ``Store``."""

    async def put_manifest(self, ctx: RequestContext, manifest: Manifest) -> list[str]:
        """Chunks of the manifest it replaces that nothing refers to any more: removed.

        ``FailedPrecondition``: a chunk of KV that it names is not stored. ``StorageFull``: see
        ``check_quota``."""
        ...

    async def check_quota(self, ctx: RequestContext, manifest: Manifest, bytes_per_token: int) -> None:
        """``StorageFull``: with this document its tenant, or the principal whose it would be, would have more
        than it may. Its chunks need not be stored; those that are not take ``bytes_per_token`` at least."""
        ...

    async def get_manifest(self, ctx: RequestContext, collection: str, document_id: str) -> Manifest: ...
    async def manifest_page(
        self,
        ctx: RequestContext,
        collection: str = "",
        start_after: str = "",
        limit: int = 0,
        summary: bool = False,
        descending: bool = False,
    ) -> ManifestPage: ...
    async def delete_manifest(self, ctx: RequestContext, collection: str, document_id: str) -> list[str]: ...
    async def count_documents(self, ctx: RequestContext) -> list[AlikeDocuments]:
        """The tenant's, by collection and by what they were made for."""
        ...


class ItemStore(Protocol):
    """Keeps what a front door has beside documents (``shared.kv_items``)."""

    async def put_item(
        self, ctx: RequestContext, item: Item, content: bytes = b"", expected: Expected = Expected.EITHER
    ) -> Item:
        """As it is stored: durable.

        ``Conflict``: there is one, and it was to be new. ``NotFound``: it was to be there. ``StorageFull``:
        the caller (of a restored one: whose it is), or its tenant, would have more than it may.
        ``CorruptData``: it was to be restored, and has another content than its digest says."""
        ...

    async def get_item(
        self, ctx: RequestContext, kind: str, item_id: str, with_content: bool = False
    ) -> tuple[Item, bytes]:
        """``NotFound``: there is none that the caller may read."""
        ...

    async def item_page(
        self,
        ctx: RequestContext,
        kind: str,
        prefix: str = "",
        start_after: str = "",
        limit: int = 0,
        descending: bool = False,
    ) -> ItemPage:
        """By id; ``kind`` empty: of all kinds, by name. ``prefix``, ``start_after``: of ids, or names."""
        ...

    async def delete_item(self, ctx: RequestContext, kind: str, item_id: str) -> None:
        """Raises like ``get_item``."""
        ...


class Store(ManifestStore, ItemStore, Protocol):
    """The whole cluster's, one node's part of it, or a client of either."""

    async def stat(self, ctx: RequestContext, chunk_ids: Sequence[str]) -> list[ChunkStat]: ...

    async def put(
        self,
        ctx: RequestContext,
        chunk_id: str,
        size_bytes: int,
        pieces: AsyncIterator[bytes],
        origin: Origin | None = None,
    ) -> bool:
        """Whether it was stored already. ``InvalidRequest``: by ``origin`` the file is another chunk's, or
        another tenant's. None: the caller made the identity itself; a client cannot say so."""
        ...

    def get(
        self, ctx: RequestContext, chunk_id: str, offset: int = 0, length: int | None = None
    ) -> AsyncGenerator[bytes, None]: ...
    async def prefetch(self, ctx: RequestContext, chunk_ids: Sequence[str], node_id: str = "") -> None:
        """Starts bringing chunks to ``node_id`` (empty: to every node on which chunks were opened
        lately, but those that its readers will receive from the object store themselves) and returns at
        once."""
        ...

    async def stats(self, ctx: RequestContext) -> StoreStats: ...
    def verify(
        self, ctx: RequestContext, repair: bool = False, seal: bool = False
    ) -> AsyncGenerator[VerifyProgress, None]:
        """Reads every copy in every tier. ``repair``: damaged ones are removed and restored from good ones.
        ``seal``: those without a seal of the current key are given one."""
        ...

    async def collect_garbage(
        self, ctx: RequestContext, grace_s: float, dry_run: bool = False
    ) -> CollectedGarbage:
        """Removes chunks that no document refers to, that nobody reads, and that were stored at least
        ``grace_s`` ago."""
        ...

    async def pin(
        self, ctx: RequestContext, collection: str, document_id: str = "", unpin: bool = False
    ) -> int:
        """Keeps the documents in the nodes' tiers; ``document_id`` empty: the whole collection, later
        documents included.

        Returns the bytes that are pinned now, over all tenants."""
        ...

    async def list_pins(self, ctx: RequestContext) -> list[PinnedDocuments]: ...
    async def health(self, ctx: RequestContext) -> ServiceHealth: ...


class NodeFiles(ReadableChunks, Protocol):
    """Files of node ``node_id``; empty: the node that is asked, and of the cluster's front the home node."""

    async def open(
        self, ctx: RequestContext, chunk_ids: Sequence[str], node_id: str = "", direct: bool = False
    ) -> list[OpenedChunk]: ...
    async def prefetch(self, ctx: RequestContext, chunk_ids: Sequence[str], node_id: str = "") -> None:
        """Starts bringing chunks to the node and returns at once."""
        ...

    async def stage(self, ctx: RequestContext, node_id: str = "") -> str: ...
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
        """Whether the chunk was stored already. The file at ``path`` is gone afterwards, whatever happens.

        ``write_back``: acknowledged once durable on this node's disk; it reaches the object store later.
        ``origin``: as of ``put``. A client that names none may only replace a chunk by the same one in
        another encoding."""
        ...

    async def chain(self, ctx: RequestContext, parent_id: str) -> Chain | None:
        """Finds the chain that a chunk with this parent is computed behind, by its document's manifest; None:
        no document has it. Every node answers for all."""
        ...


class NodeStore(NodeFiles, Protocol):
    """One node's, or a client of it."""

    async def list_page(self, ctx: RequestContext, start_after: str = "", limit: int = 0) -> ChunkPage:
        """Chunks of which this node has the truth; of home the object store's, too."""
        ...

    async def delete(self, ctx: RequestContext, chunk_ids: Sequence[str]) -> DeletedChunks:
        """Removes chunks that no document refers to: from this node, by home everywhere."""
        ...

    async def local_copies(self, ctx: RequestContext, chunk_ids: Sequence[str]) -> list[PeerCopy]:
        """Copies in this node's own tiers, evictable ones included."""
        ...

    async def needed(self, ctx: RequestContext, chunk_ids: Sequence[str], grace_s: float) -> set[str]:
        """Finds those that must not be collected because of this node: too young, or being read."""
        ...

    async def list_pinned_chunks(self, ctx: RequestContext, known_version: str = "") -> PinnedChunks:
        """Over all tenants: for the other nodes."""
        ...

    async def read_lately(self, ctx: RequestContext) -> bool:
        """Whether somebody opened chunks here within the last ten minutes."""
        ...


class NodeAgent(Store, NodeStore, Protocol):
    """The agent that stands on every node: ``Store`` about its own part, and ``NodeStore``."""
