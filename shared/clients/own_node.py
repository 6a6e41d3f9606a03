"""The store as its readers and writers see it: files of their own node, one gRPC call away from them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import grpc

from shared.clients.grpc_transport import CHANNEL_OPTIONS, GrpcTransport
from shared.clients.kv_node import SERVICE, NodeFilesClient
from shared.clients.kv_store import APPLICATION
from shared.errors import FailedPrecondition, Unauthenticated, Unavailable
from shared.kv_stores import NodeFiles
from shared.kv_types import Chain, OpenedChunk, Origin
from shared.principals.credentials import Credentials, no_credentials
from shared.request import RequestContext

ResultT = TypeVar("ResultT")
_PAUSE_S = 2.0
_GRACE_S = 60.0


class Connection(NodeFiles, Protocol):
    """To one agent."""

    async def close(self) -> None:
        """Lets calls that others are in the middle of end first."""
        ...


class AgentConnection(NodeFilesClient):
    def __init__(self, address: str, credentials: Credentials = no_credentials) -> None:
        self._channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        super().__init__(GrpcTransport(self._channel, SERVICE, APPLICATION, credentials=credentials))

    async def close(self) -> None:
        await self._channel.close(grace=_GRACE_S)


class OwnNode:
    """``shared.kv_stores.NodeFiles`` of the caller's node. A call goes straight to the node's agent; if that
    does not answer, to where it is by now; then through the front. What still fails then is the caller's to
    do without.

    ``find`` says where the agent listens, or raises ``Unavailable``, and is then left alone for ``pause_s``.
    """

    def __init__(
        self,
        find: Callable[[], Awaitable[str]],
        front: NodeFiles,
        connect: Callable[[str], Connection] = AgentConnection,
        pause_s: float = _PAUSE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._find, self._front, self._connect = find, front, connect
        self._pause_s, self._clock, self._find_again_s = pause_s, clock, clock()
        self._connection: Connection | None = None
        self._finding = asyncio.Lock()
        self._closing: set[asyncio.Task[None]] = set()

    async def open(
        self, ctx: RequestContext, chunk_ids: Sequence[str], node_id: str = "", direct: bool = False
    ) -> list[OpenedChunk]:
        return await self._call(lambda node: node.open(ctx, chunk_ids, node_id, direct))

    async def prefetch(self, ctx: RequestContext, chunk_ids: Sequence[str], node_id: str = "") -> None:
        await self._call(lambda node: node.prefetch(ctx, chunk_ids, node_id))

    async def chain(self, ctx: RequestContext, parent_id: str) -> Chain | None:
        return await self._call(lambda node: node.chain(ctx, parent_id))

    async def readable(self, ctx: RequestContext, chunk_ids: Sequence[str]) -> list[str]:
        return await self._call(lambda node: node.readable(ctx, chunk_ids))

    async def stage(self, ctx: RequestContext, node_id: str = "") -> str:
        return await self._call(lambda node: node.stage(ctx, node_id))

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
        """Not repeated once the agent has taken the file: it may have stored it, and died before it said
        so."""
        return await self._call(
            lambda node: node.adopt(ctx, chunk_id, node_id, path, replace, write_back, origin),
            may_repeat=partial(asyncio.to_thread, Path(path).exists),
        )

    async def _call(
        self,
        call: Callable[[NodeFiles], Awaitable[ResultT]],
        may_repeat: Callable[[], Awaitable[bool]] | None = None,
    ) -> ResultT:
        for _ in ("where it was", "where it is by now"):
            if (connection := await self._connected()) is None:
                break
            try:
                return await call(connection)
            # gone, or another node's agent is where it was, or somebody else's
            except (Unavailable, FailedPrecondition, Unauthenticated):
                self._drop(connection)
                if may_repeat is not None and not await may_repeat():
                    raise
        return await call(self._front)

    async def _connected(self) -> Connection | None:
        async with self._finding:
            if self._connection is None and self._clock() >= self._find_again_s:
                try:
                    self._connection = self._connect(await self._find())
                except Unavailable:
                    self._find_again_s = self._clock() + self._pause_s
            return self._connection

    def _drop(self, connection: Connection) -> None:
        if connection is self._connection:
            self._connection = None
            task = asyncio.ensure_future(connection.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
