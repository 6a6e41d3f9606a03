"""A kv_store in a directory, for tests of those who use one: same files, same answers, no service."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from shared.errors import KvquiltError
from shared.kv_format import inspect_chunk, verify_chunk
from shared.kv_types import Chain, OpenedChunk, Origin
from shared.request import RequestContext


class DirectoryStore:
    """``failure`` is raised by every method while it is set. ``calls`` are their names; ``adopted`` are
    (chunk id, replaced), ``write_back`` says of each whether it was written back after an answer, ``origins``
    by chunk for whom it was adopted and what its identity was said to be made of."""

    def __init__(self, root: Path) -> None:
        self._chunks, self._staging = root / "chunks", root / "staging"
        self._chunks.mkdir(parents=True)
        self._staging.mkdir()
        self.failure: KvquiltError | None = None
        self.calls: list[str] = []
        self.prefetched: list[str] = []
        self.asked_for: list[tuple[str, str]] = []  # tenant and chunk
        self.chains: dict[str, Chain] = {}
        self.readable_ids: set[str] = set()
        self.adopted: list[tuple[str, bool]] = []
        self.write_back: list[bool] = []
        self.origins: dict[str, tuple[str, Origin | None]] = {}

    def path_of(self, chunk_id: str) -> Path:
        return self._chunks / f"{chunk_id}.arrow"

    def chunk_ids(self) -> set[str]:
        return {path.stem for path in self._chunks.iterdir()}

    def staged(self) -> list[Path]:
        return list(self._staging.iterdir())

    async def open(
        self, ctx: RequestContext, chunk_ids: Sequence[str], node_id: str = "", direct: bool = False
    ) -> list[OpenedChunk]:
        await self._called("open")
        self.asked_for += [(ctx.tenant, chunk_id) for chunk_id in chunk_ids]
        return [self._opened(chunk_id) for chunk_id in chunk_ids]

    async def prefetch(self, ctx: RequestContext, chunk_ids: Sequence[str], node_id: str = "") -> None:
        await self._called("prefetch")
        self.asked_for += [(ctx.tenant, chunk_id) for chunk_id in chunk_ids]
        self.prefetched += chunk_ids

    async def chain(self, ctx: RequestContext, parent_id: str) -> Chain | None:
        await self._called("chain")
        return self.chains.get(parent_id)

    async def readable(self, ctx: RequestContext, chunk_ids: Sequence[str]) -> list[str]:
        await self._called("readable")
        return [chunk_id for chunk_id in chunk_ids if chunk_id in self.readable_ids]

    async def stage(self, ctx: RequestContext, node_id: str = "") -> str:
        await self._called("stage")
        return str(self._staging)

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
        await self._called("adopt")
        self.origins[chunk_id] = (ctx.tenant, origin)
        assert verify_chunk(path).header.chunk_id == chunk_id
        existed = self.path_of(chunk_id).exists()
        if not existed or replace:
            os.replace(path, self.path_of(chunk_id))
            self.adopted.append((chunk_id, replace))
            self.write_back.append(write_back)
        return existed

    async def _called(self, name: str) -> None:
        self.calls.append(name)
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure

    def _opened(self, chunk_id: str) -> OpenedChunk:
        path = self.path_of(chunk_id)
        if not path.exists():
            return OpenedChunk(chunk_id, exists=False)
        try:
            layers = inspect_chunk(path).layers
        except KvquiltError:
            layers = ()  # the store does not read a file to name it
        return OpenedChunk(chunk_id, True, str(path), path.stat().st_size, layers)
