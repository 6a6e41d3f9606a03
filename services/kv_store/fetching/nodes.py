"""The nodes of the cluster as the store sees them, and how to ask some or all of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import merge
from typing import Protocol, TypeVar

from shared.errors import DeadlineExceeded, FailedPrecondition, NotFound, Unavailable
from shared.kv_stores import NodeAgent
from shared.kv_types import ChunkPage

log = logging.getLogger(__name__)
ResultT = TypeVar("ResultT")
Call = Callable[[NodeAgent], Awaitable[ResultT]]


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


async def on_node(nodes: Nodes, node_id: str, call: Call[ResultT]) -> ResultT:
    """``call`` of the agent on ``node_id``. Raises like ``Nodes.store`` and the call."""
    try:
        return await call(await nodes.store(node_id))
    except Unavailable:
        nodes.suspect(node_id)
        raise


def merged_page(pages: Sequence[ChunkPage], limit: int) -> ChunkPage:
    """Merges what several nodes list from the same place on, as one page of at most ``limit``. It ends where
    the first of them ends that has more."""
    ends = [p.chunks[-1].chunk_id for p in pages if p.truncated and p.chunks]
    chunks = {c.chunk_id: c for c in merge(*(p.chunks for p in pages), key=lambda c: c.chunk_id)}
    chosen = tuple(c for c in chunks.values() if not ends or c.chunk_id <= min(ends))[:limit]
    return ChunkPage(chosen, truncated=len(chosen) < len(chunks) or bool(ends))


async def ask(nodes: Nodes, node_ids: Iterable[str], call: Call[ResultT]) -> tuple[dict[str, ResultT], int]:
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


async def ask_all(nodes: Nodes, node_ids: Iterable[str], call: Call[ResultT]) -> dict[str, ResultT]:
    """
    Raises:
        Unavailable: not all of them can be reached.
    """
    answers, unreachable = await ask(nodes, node_ids, call)
    if unreachable:
        raise Unavailable(f"{unreachable} node(s) of the store do not answer; retry")
    return answers


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The other nodes of the cluster, as ``node_id`` sees them."""

    node_id: str
    nodes: Nodes

    @property
    def is_home(self) -> bool:
        return self.nodes.home() == self.node_id

    def check_home(self) -> None:
        """
        Raises:
            FailedPrecondition: this is not the home node.
        """
        if not self.is_home:
            raise FailedPrecondition("documents are kept by the agent of the home node only")

    @property
    def ids(self) -> list[str]:
        return [n for n in self.nodes.ids() if n != self.node_id]

    async def ask(self, call: Call[ResultT]) -> tuple[dict[str, ResultT], int]:
        """Like ``ask``, of all of them."""
        return await ask(self.nodes, self.ids, call)

    async def ask_all(self, call: Call[ResultT]) -> dict[str, ResultT]:
        return await ask_all(self.nodes, self.ids, call)
