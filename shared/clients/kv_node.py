"""Client of one node's agent: its own files, and what the nodes tell each other."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

import grpc

from protos.kvquilt.v1 import kv_store_node_pb2 as pb
from protos.kvquilt.v1 import kv_store_pb2
from shared.clients.grpc_transport import GrpcTransport
from shared.clients.health import meta_of
from shared.clients.kv_store import APPLICATION, KvStoreClient
from shared.clients.kv_store import SERVICE as STORE_SERVICE
from shared.clients.transport import Transport
from shared.kv_types import OpenedChunk, PeerCopy, PinnedChunks
from shared.request import RequestContext

SERVICE = "kvquilt.v1.NodeStore"


class NodeFilesClient:
    """``shared.kv_stores.NodeFiles`` of an agent or, by its Serve handle, of the front. Every method raises
    ``shared.errors``."""

    def __init__(self, transport: Transport) -> None:
        self._node = transport

    async def open(
        self, ctx: RequestContext, chunk_ids: Sequence[str], node_id: str = ""
    ) -> list[OpenedChunk]:
        """Where the chunks' files can be read on node ``node_id`` (empty: on the one that is asked), in the
        order asked for.

        A file may be deleted before it is read: ``NotFound`` from ``ChunkFile.open`` then means absent.
        """
        request = pb.OpenRequest(meta=meta_of(ctx), chunk_ids=chunk_ids, node_id=node_id)
        response = await self._node.unary("Open", request, pb.OpenResponse, ctx.remaining_s)
        return [
            OpenedChunk(
                c.chunk_id,
                c.exists,
                c.path,
                c.size_bytes,
                tuple((r.offset, r.length) for r in c.layers),
                c.progress,
                c.tier,
            )
            for c in response.chunks
        ]

    async def stage(self, ctx: RequestContext, node_id: str = "") -> str:
        """A directory on node ``node_id`` in which a file for ``adopt`` may be written."""
        request = pb.StageRequest(meta=meta_of(ctx), node_id=node_id)
        return (await self._node.unary("Stage", request, pb.StageResponse, ctx.remaining_s)).directory

    async def adopt(
        self,
        ctx: RequestContext,
        chunk_id: str,
        node_id: str,
        path: str,
        replace: bool = False,
        write_back: bool = False,
    ) -> bool:
        """Gives the file at ``path``, in the staging directory of ``node_id``, to the store, which makes it
        durable.

        Returns whether the chunk was stored already (``replace`` then replaces it; otherwise the new file is
        dropped).
        ``write_back``: acknowledged once durable on that node's disk; it reaches the object store later.

        Raises:
            CorruptData: the file is not a whole chunk file, or of another chunk.
            InvalidRequest: ``path`` is not in the staging directory.
            StorageFull: no space left.
        """
        request = pb.AdoptRequest(
            meta=meta_of(ctx),
            chunk_id=chunk_id,
            node_id=node_id,
            path=path,
            replace=replace,
            write_back=write_back,
        )
        return (await self._node.unary("Adopt", request, kv_store_pb2.PutResponse, ctx.remaining_s)).existed

    async def prefetch(self, ctx: RequestContext, chunk_ids: Sequence[str], node_id: str = "") -> None:
        """Starts bringing chunks to ``node_id`` (empty: to every node that asked for chunks lately) and
        returns at once."""
        request = kv_store_pb2.PrefetchRequest(meta=meta_of(ctx), chunk_ids=chunk_ids, node_id=node_id)
        await self._node.unary("Prefetch", request, kv_store_pb2.PrefetchResponse, ctx.remaining_s)


class AgentClient(NodeFilesClient, KvStoreClient):
    """``shared.kv_stores.NodeAgent``: both services of a node's agent."""

    def __init__(self, store: Transport, node: Transport) -> None:
        KvStoreClient.__init__(self, store)
        NodeFilesClient.__init__(self, node)

    @classmethod
    def of(cls, channel: grpc.aio.Channel) -> AgentClient:
        return cls(
            GrpcTransport(channel, STORE_SERVICE, APPLICATION), GrpcTransport(channel, SERVICE, APPLICATION)
        )

    async def local_copies(self, ctx: RequestContext, chunk_ids: Sequence[str]) -> list[PeerCopy]:
        """Copies in the node's own tiers, evictable ones included."""
        request = pb.LocalCopiesRequest(meta=meta_of(ctx), chunk_ids=chunk_ids)
        response = await self._node.unary("LocalCopies", request, pb.LocalCopiesResponse, ctx.remaining_s)
        return [PeerCopy(c.chunk_id, c.size_bytes, c.location) for c in response.chunks]

    async def needed(self, ctx: RequestContext, chunk_ids: Sequence[str], grace_s: float) -> set[str]:
        """Which must not be collected because of this node: too young, or being read."""
        request = pb.NeededRequest(meta=meta_of(ctx), chunk_ids=chunk_ids, grace_s=grace_s)
        response = await self._node.unary("Needed", request, pb.NeededResponse, ctx.remaining_s)
        return set(response.chunk_ids)

    async def read_lately(self, ctx: RequestContext) -> bool:
        """Whether somebody opened chunks there within the last ten minutes."""
        request = pb.ReadersRequest(meta=meta_of(ctx))
        return (await self._node.unary("Readers", request, pb.ReadersResponse, ctx.remaining_s)).lately

    async def list_pinned_chunks(self, ctx: RequestContext, known_version: str = "") -> PinnedChunks:
        """Over all tenants; without the ids where ``known_version`` is what holds."""
        request = pb.ListPinnedChunksRequest(meta=meta_of(ctx), known_version=known_version)
        version, chunk_ids = "", set[str]()
        responses = self._node.stream(
            "ListPinnedChunks", request, pb.ListPinnedChunksResponse, ctx.remaining_s
        )
        async with aclosing(responses):
            async for response in responses:
                version = response.version
                chunk_ids.update(response.chunk_ids)
        return PinnedChunks(version, frozenset(chunk_ids))
