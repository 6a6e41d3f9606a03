"""Client of one node's agent: its own files, and what the nodes tell each other."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

import grpc

from protos.kvquilt.v1 import kv_store_node_pb2 as pb
from protos.kvquilt.v1 import kv_store_pb2
from shared.clients.grpc_transport import GrpcTransport
from shared.clients.kv_store import APPLICATION, KvStoreClient
from shared.clients.kv_store import SERVICE as STORE_SERVICE
from shared.clients.service import ServiceClient
from shared.clients.transport import Transport
from shared.kv_types import Chain, ChunkPage, DeletedChunks, OpenedChunk, Origin, PeerCopy
from shared.pinned import PinnedChunks
from shared.principals.credentials import Credentials, no_credentials
from shared.request import RequestContext
from shared.wire.kv_store import CHAIN, CHUNK_PAGE, DELETED, OPENED, PEER_COPY

SERVICE = "kvquilt.v1.NodeStore"


class NodeFilesClient:
    """``shared.kv_stores.NodeFiles`` of an agent or, by its Serve handle, of the front. Every method raises
    ``shared.errors``."""

    def __init__(self, transport: Transport) -> None:
        self._node = ServiceClient(transport)

    async def open(
        self, ctx: RequestContext, chunk_ids: Sequence[str], node_id: str = "", direct: bool = False
    ) -> list[OpenedChunk]:
        """Says where the chunks' files can be read on node ``node_id`` (empty: on the one that is asked), in
        the order asked for.

        ``direct``: a chunk that the node did not need lately may be answered with where the caller receives
        it from the object store itself, at the cost of one copy less. Asked again, the node brings it.

        A file may be deleted before it is read: ``NotFound`` from ``ChunkFile.open`` then means absent.
        """
        request = pb.OpenRequest(chunk_ids=chunk_ids, node_id=node_id, direct=direct)
        response = await self._node.ask(ctx, "Open", request, pb.OpenResponse)
        return [OPENED.of(chunk) for chunk in response.chunks]

    async def stage(self, ctx: RequestContext, node_id: str = "") -> str:
        """A directory on node ``node_id`` in which a file for ``adopt`` may be written."""
        request = pb.StageRequest(node_id=node_id)
        return (await self._node.ask(ctx, "Stage", request, pb.StageResponse)).directory

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
        """Gives the file at ``path``, in the staging directory of ``node_id``, to the store, which makes it
        durable.

        Returns whether the chunk was stored already (``replace`` then replaces it; otherwise the new file is
        dropped).
        ``write_back``: acknowledged once durable on that node's disk; it reaches the object store later.

        Raises:
            CorruptData: the file is not a whole chunk file, or of another chunk.
            InvalidRequest: ``path`` is not in the staging directory, or by ``origin`` the file is another
            chunk's, or another tenant's.
            StorageFull: no space left, or KV that questions left behind takes as much as it may.
        """
        request = pb.AdoptRequest(
            chunk_id=chunk_id,
            node_id=node_id,
            path=path,
            replace=replace,
            write_back=write_back,
            origin=None
            if origin is None or origin.stored
            else pb.ChunkOrigin(
                prefix_ids=origin.prefix_ids, parent_id=origin.parent_id, asked_by=origin.asked_by
            ),
        )
        return (await self._node.ask(ctx, "Adopt", request, kv_store_pb2.PutResponse)).existed

    async def chain(self, ctx: RequestContext, parent_id: str) -> Chain | None:
        """Finds the chain that a chunk with this parent is computed behind, by its document's manifest; None:
        no document has it."""
        response = await self._node.ask(ctx, "Chain", pb.ChainRequest(parent_id=parent_id), pb.ChainResponse)
        return CHAIN.of(response.chain) if response.HasField("chain") else None

    async def readable(self, ctx: RequestContext, chunk_ids: Sequence[str]) -> list[str]:
        """Those of documents that the caller may read. ``chunk_ids``: of chunks, of their auxiliary KV, or of
        what chunks are computed behind."""
        request = kv_store_pb2.ReadableRequest(chunk_ids=chunk_ids)
        return [*(await self._node.ask(ctx, "Readable", request, kv_store_pb2.ReadableResponse)).chunk_ids]

    async def prefetch(self, ctx: RequestContext, chunk_ids: Sequence[str], node_id: str = "") -> None:
        """Starts bringing chunks to ``node_id`` (empty: to every node that asked for chunks lately) and
        returns at once."""
        request = kv_store_pb2.PrefetchRequest(chunk_ids=chunk_ids, node_id=node_id)
        await self._node.ask(ctx, "Prefetch", request, kv_store_pb2.PrefetchResponse)


class AgentClient(NodeFilesClient, KvStoreClient):
    """``shared.kv_stores.NodeAgent``: both services of a node's agent."""

    def __init__(self, store: Transport, node: Transport) -> None:
        KvStoreClient.__init__(self, store)
        NodeFilesClient.__init__(self, node)

    @classmethod
    def of(cls, channel: grpc.aio.Channel, credentials: Credentials = no_credentials) -> AgentClient:
        store, node = (
            GrpcTransport(channel, service, APPLICATION, credentials=credentials)
            for service in (STORE_SERVICE, SERVICE)
        )
        return cls(store, node)

    async def list_page(self, ctx: RequestContext, start_after: str = "", limit: int = 0) -> ChunkPage:
        """Chunks of which the node has the truth; of home the object store's, too."""
        request = pb.ListChunksRequest(start_after=start_after, limit=limit)
        return CHUNK_PAGE.of(await self._node.ask(ctx, "ListChunks", request, pb.ListChunksResponse))

    async def delete(self, ctx: RequestContext, chunk_ids: Sequence[str]) -> DeletedChunks:
        """Removes chunks that no document refers to: from the node, by home everywhere."""
        request = pb.DeleteChunksRequest(chunk_ids=chunk_ids)
        return DELETED.of(await self._node.ask(ctx, "DeleteChunks", request, pb.DeleteChunksResponse))

    async def local_copies(self, ctx: RequestContext, chunk_ids: Sequence[str]) -> list[PeerCopy]:
        """Copies in the node's own tiers, evictable ones included."""
        request = pb.LocalCopiesRequest(chunk_ids=chunk_ids)
        response = await self._node.ask(ctx, "LocalCopies", request, pb.LocalCopiesResponse)
        return [PEER_COPY.of(copy) for copy in response.chunks]

    async def needed(self, ctx: RequestContext, chunk_ids: Sequence[str], grace_s: float) -> set[str]:
        """Returns those that must not be collected because of this node: too young, or being read."""
        request = pb.NeededRequest(chunk_ids=chunk_ids, grace_s=grace_s)
        response = await self._node.ask(ctx, "Needed", request, pb.NeededResponse)
        return set(response.chunk_ids)

    async def read_lately(self, ctx: RequestContext) -> bool:
        """Whether somebody opened chunks there within the last ten minutes."""
        request = pb.ReadersRequest()
        return (await self._node.ask(ctx, "Readers", request, pb.ReadersResponse)).lately

    async def list_pinned_chunks(self, ctx: RequestContext, known_version: str = "") -> PinnedChunks:
        """Over all tenants; without the ids where ``known_version`` is what holds."""
        request = pb.ListPinnedChunksRequest(known_version=known_version)
        version, chunk_ids = "", set[str]()
        responses = self._node.follow(
            ctx, "ListPinnedChunks", request, pb.ListPinnedChunksResponse, lambda response: response
        )
        async with aclosing(responses):
            async for response in responses:
                version = response.version
                chunk_ids.update(response.chunk_ids)
        return PinnedChunks(version, frozenset(chunk_ids))
