"""The nodes of the cluster as the store sees them, and how to ask some or all of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from heapq import merge
from typing import Protocol, TypeVar

from shared.errors import DeadlineExceeded, NotFound, Unavailable
from shared.kv_stores import NodeAgent
from shared.kv_types import ChunkPage

log = logging.getLogger(__name__)
ResultT = TypeVar("ResultT")


class Nodes(Protocol):
    """The nodes of the cluster and the agents on them."""

    def home(self) -> str:
        """Node that keeps the documents: the same answer everywhere."""
        ...

    def ids(self) -> Sequence[str]: ...

    async def store(self, node_id: str) -> NodeAgent:
        """
        Raises:
            NotFound: no such node.
            Unavailable: its agent cannot be reached now.
        """
        ...

    def suspect(self, node_id: str) -> None:
        """Its agent did not answer: ask anew where it is."""
        ...


async def on_node(nodes: Nodes, node_id: str, call: Callable[[NodeAgent], Awaitable[ResultT]]) -> ResultT:
    """``call`` of the agent on ``node_id``. Raises like ``Nodes.store`` and the call."""
    try:
        return await call(await nodes.store(node_id))
    except Unavailable:
        nodes.suspect(node_id)
        raise


def merged_page(pages: Sequence[ChunkPage], limit: int) -> ChunkPage:
    """What several nodes list from the same place on, as one page of at most ``limit``. It ends where the
    first of them ends that has more."""
    ends = [p.chunks[-1].chunk_id for p in pages if p.truncated and p.chunks]
    chunks = {c.chunk_id: c for c in merge(*(p.chunks for p in pages), key=lambda c: c.chunk_id)}
    chosen = tuple(c for c in chunks.values() if not ends or c.chunk_id <= min(ends))[:limit]
    return ChunkPage(chosen, truncated=len(chosen) < len(chunks) or bool(ends))


async def ask(
    nodes: Nodes, node_ids: Iterable[str], call: Callable[[NodeAgent], Awaitable[ResultT]]
) -> tuple[dict[str, ResultT], int]:
    """The answers of these nodes, and how many of them cannot be reached. Other errors are raised."""
    asked = list(node_ids)
    results = await asyncio.gather(*(on_node(nodes, n, call) for n in asked), return_exceptions=True)
    answers: dict[str, ResultT] = {}
    for node_id, result in zip(asked, results, strict=True):
        if isinstance(result, (Unavailable, DeadlineExceeded, NotFound)):
            log.warning("node %s does not answer: %s", node_id, result.detail)
        elif isinstance(result, BaseException):
            raise result
        else:
            answers[node_id] = result
    return answers, len(asked) - len(answers)
