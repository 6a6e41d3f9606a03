"""The internal NodeStore service on the wire, and the server of one node's agent, which alone has it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc

from protos.kvquilt.v1 import kv_store_node_pb2 as pb
from protos.kvquilt.v1 import kv_store_node_pb2_grpc, kv_store_pb2, kv_store_pb2_grpc
from services.kv_store.handlers import StoreHandlers
from shared.clients.grpc_transport import CHANNEL_OPTIONS
from shared.doorkeeper import Doorkeeper
from shared.kv_stores import NodeAgent, NodeFiles
from shared.kv_types import Origin
from shared.limits import DEFAULT_LIMITS, RequestLimits
from shared.metrics.recorder import Metrics
from shared.principals.callers import ServiceCallers
from shared.principals.credentials import ServiceIdentity
from shared.request import RequestContext
from shared.rpc import server_stream, unary
from shared.slow_readers import SlowGrpcReaders
from shared.wire.kv_store import CHAIN, CHUNK_PAGE, DELETED, OPENED, PEER_COPY

_IDS_PER_MESSAGE = 10_000


class FileHandlers:
    """RPCs that readers and writers on a node call. The front has these too, for those whose agent does not
    answer: by its Serve handle, which is no way in from outside."""

    def __init__(self, files: NodeFiles) -> None:
        self._files = files

    @unary
    async def Open(self, request: pb.OpenRequest, ctx: RequestContext) -> pb.OpenResponse:
        opened = await self._files.open(ctx, request.chunk_ids, request.node_id, request.direct)
        return pb.OpenResponse(chunks=map(OPENED.to_pb, opened))

    @unary
    async def Stage(self, request: pb.StageRequest, ctx: RequestContext) -> pb.StageResponse:
        return pb.StageResponse(directory=await self._files.stage(ctx, request.node_id))

    @unary
    async def Adopt(self, request: pb.AdoptRequest, ctx: RequestContext) -> kv_store_pb2.PutResponse:
        origin = Origin(stored=True)
        if request.HasField("origin"):
            made = request.origin
            origin = Origin(tuple(made.prefix_ids), made.parent_id, asked_by=made.asked_by)
        existed = await self._files.adopt(
            ctx, request.chunk_id, request.node_id, request.path, request.replace, request.write_back, origin
        )
        return kv_store_pb2.PutResponse(chunk_id=request.chunk_id, existed=existed)

    @unary
    async def Chain(self, request: pb.ChainRequest, ctx: RequestContext) -> pb.ChainResponse:
        chain = await self._files.chain(ctx, request.parent_id)
        return pb.ChainResponse(chain=None if chain is None else CHAIN.to_pb(chain))


class AgentHandlers(StoreHandlers, FileHandlers):
    """Both services of one node."""

    def __init__(self, agent: NodeAgent) -> None:
        StoreHandlers.__init__(self, agent)
        FileHandlers.__init__(self, agent)
        self._agent = agent

    @unary
    async def ListChunks(self, request: pb.ListChunksRequest, ctx: RequestContext) -> pb.ListChunksResponse:
        return CHUNK_PAGE.to_pb(await self._agent.list_page(ctx, request.start_after, request.limit))

    @unary
    async def DeleteChunks(
        self, request: pb.DeleteChunksRequest, ctx: RequestContext
    ) -> pb.DeleteChunksResponse:
        return DELETED.to_pb(await self._agent.delete(ctx, request.chunk_ids))

    @unary
    async def LocalCopies(
        self, request: pb.LocalCopiesRequest, ctx: RequestContext
    ) -> pb.LocalCopiesResponse:
        copies = await self._agent.local_copies(ctx, request.chunk_ids)
        return pb.LocalCopiesResponse(chunks=map(PEER_COPY.to_pb, copies))

    @unary
    async def Needed(self, request: pb.NeededRequest, ctx: RequestContext) -> pb.NeededResponse:
        return pb.NeededResponse(chunk_ids=await self._agent.needed(ctx, request.chunk_ids, request.grace_s))

    @unary
    async def Readers(self, request: pb.ReadersRequest, ctx: RequestContext) -> pb.ReadersResponse:
        return pb.ReadersResponse(lately=await self._agent.read_lately(ctx))

    @server_stream
    async def ListPinnedChunks(
        self, request: pb.ListPinnedChunksRequest, ctx: RequestContext
    ) -> AsyncIterator[pb.ListPinnedChunksResponse]:
        pinned = await self._agent.list_pinned_chunks(ctx, request.known_version)
        yield pb.ListPinnedChunksResponse(version=pinned.version)
        ids = list(pinned.chunk_ids)
        for begin in range(0, len(ids), _IDS_PER_MESSAGE):
            yield pb.ListPinnedChunksResponse(
                version=pinned.version, chunk_ids=ids[begin : begin + _IDS_PER_MESSAGE]
            )


async def start_server(
    agent: NodeAgent,
    host: str,
    port: int = 0,
    interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    limits: RequestLimits = DEFAULT_LIMITS,
    identity: ServiceIdentity | None = None,
    metrics: Metrics | None = None,
) -> tuple[grpc.aio.Server, str]:
    """A running gRPC server with both services, and its address; port 0: one that is free. Keep the server,
    or it stops. ``identity``: of the agent; the services that it believes are answered, and nobody else.
    None: everybody is.

    Raises:
        RuntimeError: the port is taken.
    """
    largest = ("grpc.max_receive_message_length", limits.largest_bytes)
    doorkeepers = () if identity is None else (Doorkeeper(identity),)
    guards = (*doorkeepers, *interceptors, SlowGrpcReaders(limits.stall_s))
    server = grpc.aio.server(options=(*CHANNEL_OPTIONS, largest), interceptors=guards)
    handlers = AgentHandlers(agent)
    handlers.limits, handlers.metrics = limits, metrics
    handlers.callers = None if identity is None else ServiceCallers(identity)
    add_store: Any = kv_store_pb2_grpc.add_KvStoreServicer_to_server
    add_node: Any = kv_store_node_pb2_grpc.add_NodeStoreServicer_to_server
    for add in (add_store, add_node):
        add(handlers, server)
    bracketed = f"[{host}]" if ":" in host else host
    bound = server.add_insecure_port(f"{bracketed}:{port}")
    await server.start()
    return server, f"{bracketed}:{bound}"
