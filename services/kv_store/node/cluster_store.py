"""The store of the whole cluster: every call sent to the nodes that can answer it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, Concatenate, ParamSpec, TypeVar

from services.kv_store.fetching.nodes import Call, Nodes, ask, on_node
from services.kv_store.node.agent import SERVICE
from services.kv_store.tiers.chunk_names import check_chunk_ids
from shared.clients.health import ServiceHealth
from shared.errors import NotFound, Unavailable
from shared.kv_reports import StoreStats, VerifyProgress
from shared.kv_stores import NodeAgent
from shared.kv_types import ChunkStat, OpenedChunk, Origin
from shared.principals.principal import Role
from shared.request import RequestContext

Params = ParamSpec("Params")
ResultT = TypeVar("ResultT")


def _by_home(
    method: Callable[Concatenate[Any, Params], Coroutine[Any, Any, ResultT]],
) -> Callable[Concatenate[ClusterStore, Params], Coroutine[Any, Any, ResultT]]:
    """``method``, as the home node's agent answers it."""

    async def call(self: ClusterStore, /, *args: Params.args, **kwargs: Params.kwargs) -> ResultT:
        return await self._at("", lambda home: getattr(home, method.__name__)(*args, **kwargs))

    return call


class ClusterStore:
    """A ``shared.kv_stores.Store`` and ``NodeFiles``. An empty node id means the home node."""

    put_manifest = _by_home(NodeAgent.put_manifest)
    check_quota = _by_home(NodeAgent.check_quota)
    get_manifest = _by_home(NodeAgent.get_manifest)
    manifest_page = _by_home(NodeAgent.manifest_page)
    delete_manifest = _by_home(NodeAgent.delete_manifest)
    count_documents = _by_home(NodeAgent.count_documents)
    put_item = _by_home(NodeAgent.put_item)
    get_item = _by_home(NodeAgent.get_item)
    item_page = _by_home(NodeAgent.item_page)
    delete_item = _by_home(NodeAgent.delete_item)
    chain = _by_home(NodeAgent.chain)
    readable = _by_home(NodeAgent.readable)
    collect_garbage = _by_home(NodeAgent.collect_garbage)
    pin = _by_home(NodeAgent.pin)
    list_pins = _by_home(NodeAgent.list_pins)

    def __init__(self, nodes: Nodes, own_node_id: str) -> None:
        """Chunks that arrive as streams are kept on ``own_node_id``."""
        self._nodes, self._own_node_id = nodes, own_node_id
        self._readers: set[str] = set()  # nodes on which chunks were opened lately, as their agents say

    async def stat(self, ctx: RequestContext, chunk_ids: Sequence[str]) -> list[ChunkStat]:
        """
        Raises:
            Unavailable: a chunk was not found, but may lie on a node that does not answer.
        """
        told = await self._told(ctx, chunk_ids)
        found, unreachable = await self._find(ctx, told)
        if unreachable and any(c not in found for c in told):
            raise Unavailable(f"{unreachable} node(s) of the store do not answer; retry")
        return [found[c][1] if c in found else ChunkStat(c, exists=False) for c in chunk_ids]

    async def open(
        self, ctx: RequestContext, chunk_ids: Sequence[str], node_id: str = "", direct: bool = False
    ) -> list[OpenedChunk]:
        return await self._at(node_id, lambda store: store.open(ctx, chunk_ids, direct=direct))

    async def stage(self, ctx: RequestContext, node_id: str = "") -> str:
        return await self._at(node_id, lambda store: store.stage(ctx))

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
        return await self._at(
            node_id, lambda store: store.adopt(ctx, chunk_id, "", path, replace, write_back, origin)
        )

    async def put(
        self,
        ctx: RequestContext,
        chunk_id: str,
        size_bytes: int,
        pieces: AsyncIterator[bytes],
        origin: Origin | None = None,
    ) -> bool:
        # of a file that he is not told of nobody learns by sending another one under its name
        if (await self._find(ctx, await self._told(ctx, [chunk_id])))[0]:
            return True
        existed = await self._at(
            self._own_node_id, lambda store: store.put(ctx, chunk_id, size_bytes, pieces, origin)
        )
        return existed and bool(await self._told(ctx, [chunk_id]))

    async def get(
        self, ctx: RequestContext, chunk_id: str, offset: int = 0, length: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        found, unreachable = await self._find(ctx, await self._told(ctx, [chunk_id]))
        if chunk_id not in found:
            raise (
                Unavailable("a node of the store does not answer; retry")
                if unreachable
                else NotFound(f"chunk {chunk_id}: not stored")
            )
        store = await self._nodes.store(found[chunk_id][0])
        async with aclosing(store.get(ctx, chunk_id, offset, length)) as pieces:
            async for piece in pieces:
                yield piece

    async def prefetch(self, ctx: RequestContext, chunk_ids: Sequence[str], node_id: str = "") -> None:
        nodes = [node_id] if node_id else [n for n in self._nodes.ids() if n in self._readers]
        await ask(self._nodes, nodes, lambda store: store.prefetch(ctx, chunk_ids, node_id))

    async def follow_readers(self, ctx: RequestContext) -> None:
        """Learns from the agents on which nodes chunks are read."""
        answers, _ = await self._ask(lambda node: node.read_lately(ctx))
        self._readers = {node_id for node_id, lately in answers.items() if lately}

    async def stats(self, ctx: RequestContext) -> StoreStats:
        """The object store and the tenants are the home node's to know."""
        answers, unreachable = await self._ask(lambda store: store.stats(ctx))
        nodes = tuple(node for stats in answers.values() for node in stats.nodes)
        home = answers.get(self._nodes.home(), StoreStats(()))
        return StoreStats(nodes, home.objects, home.tenants, unreachable, home.objects_detail)

    async def verify(
        self, ctx: RequestContext, repair: bool = False, seal: bool = False
    ) -> AsyncGenerator[VerifyProgress, None]:
        store = await self._nodes.store(self._nodes.home())
        async with aclosing(store.verify(ctx, repair, seal)) as updates:
            async for update in updates:
                yield update

    async def health(self, ctx: RequestContext) -> ServiceHealth:
        """Chunks and bytes are summed over the nodes, where these tell the caller; a chunk on two nodes
        counts twice."""
        answers, unreachable = await self._ask(lambda store: store.health(ctx))
        facts = {
            name: str(sum(int(a.facts[name]) for a in answers.values()))
            for name in ("chunks", "bytes", "documents")
            if all(name in answer.facts for answer in answers.values())
        }
        home = answers.get(self._nodes.home())
        details = (
            [f"{unreachable} of {len(answers) + unreachable} nodes do not answer"] if unreachable else []
        )
        if home is not None and home.detail:
            details.append(home.detail)
        ready = home is not None and home.ready
        return ServiceHealth(SERVICE, ready, "; ".join(details), {**facts, "nodes": str(len(answers))})

    async def _told(self, ctx: RequestContext, chunk_ids: Sequence[str]) -> Sequence[str]:
        """Those that the caller is told of: of documents of its tenant that it may read."""
        return chunk_ids if ctx.principal.may(Role.INTERNAL) else await self.readable(ctx, chunk_ids)

    async def _find(
        self, ctx: RequestContext, chunk_ids: Sequence[str]
    ) -> tuple[dict[str, tuple[str, ChunkStat]], int]:
        """Node and facts of the stored ones, and how many nodes did not answer."""
        ids = check_chunk_ids(chunk_ids)
        answers, unreachable = await self._ask(lambda store: store.stat(ctx, ids))
        if unreachable:
            ctx.check_deadline("asking the nodes of the store")
        return {
            s.chunk_id: (node, s) for node, stats in answers.items() for s in stats if s.exists
        }, unreachable

    async def _at(self, node_id: str, call: Call[ResultT]) -> ResultT:
        return await on_node(self._nodes, node_id or self._nodes.home(), call)

    async def _ask(self, call: Call[ResultT]) -> tuple[dict[str, ResultT], int]:
        return await ask(self._nodes, self._nodes.ids(), call)
