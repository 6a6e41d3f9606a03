"""Stored KV for the engine: kv_store names files on this node, this module reads and writes them.

KV bytes never pass through the store's RPCs: ``Open`` answers paths, and ``Adopt`` takes over a file written here. The engine calls
from its loader threads; the calls to the store run on the service's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import uuid
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch

from shared.engine import LoadedModel
from shared.engine.source import StoredSegment
from shared.errors import CorruptData, KvquiltError, NotFound, Unavailable
from shared.identity import ids_hash
from shared.kv_format import ChunkFile, ChunkHeader, write_chunk
from shared.kv_types import OpenedChunk
from shared.request import RequestContext

log = logging.getLogger(__name__)

Array = np.ndarray[Any, np.dtype[Any]]
ValueT = TypeVar("ValueT")
_OPEN_DEADLINE_MS = 30_000
_SAVE_DEADLINE_MS = 120_000
_BITS = {2: torch.int16, 4: torch.int32}  # numpy has no bfloat16: values travel as integers of their size


class ChunkStore(Protocol):
    """What of ``shared.clients.kv_store.KvStoreClient`` is used here."""

    async def open(self, ctx: RequestContext, chunk_ids: Sequence[str], node_id: str = "") -> list[OpenedChunk]: ...
    async def prefetch(self, ctx: RequestContext, chunk_ids: Sequence[str], node_id: str = "") -> None: ...
    async def stage(self, ctx: RequestContext, node_id: str = "") -> str: ...
    async def adopt(self, ctx: RequestContext, chunk_id: str, node_id: str, path: str, replace: bool = False) -> bool: ...


@dataclasses.dataclass(frozen=True, slots=True)
class KvShape:
    """What all chunks of one model have in common, in the words of ``ChunkHeader``."""

    model_fingerprint: str
    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    rope: str
    encoding: str = "exact"

    @classmethod
    def of_model(cls, model: LoadedModel) -> KvShape:
        spec = model.spec
        return cls(model.fingerprint, spec.num_layers, spec.num_kv_heads, spec.head_dim, spec.dtype_name, rope=str(spec.rope))

    def header(self, chunk_id: str, prefix_ids: Sequence[int], token_ids: Sequence[int]) -> ChunkHeader:
        return ChunkHeader(
            chunk_id=chunk_id,
            model_fingerprint=self.model_fingerprint,
            prefix_hash=ids_hash(prefix_ids),
            num_layers=self.num_layers,
            num_kv_heads=self.num_kv_heads,
            num_tokens=len(token_ids),
            head_dim=self.head_dim,
            dtype=self.dtype,
            encoding=self.encoding,
            rope=self.rope,
            ids_hash=ids_hash(token_ids),
            token_ids=tuple(token_ids),
        )

    def check(self, header: ChunkHeader, chunk_id: str, num_tokens: int) -> None:
        """The identity binds tenant, prefix and ids; what remains is that the file is the one that it is said to be.

        Raises:
            CorruptData: it is another chunk's, another model's, or of another shape.
        """
        ours = dataclasses.replace(self.header(chunk_id, (), header.token_ids), prefix_hash=header.prefix_hash)
        if header != ours or header.num_tokens != num_tokens:
            raise CorruptData(f"chunk {chunk_id}: its file was written for another chunk or model")


class StoreSegmentSource:
    """``shared.engine.source.SegmentSource`` over kv_store, on node ``node_id``. ``loop`` is the one that ``store`` lives on."""

    def __init__(self, store: ChunkStore, node_id: str, loop: asyncio.AbstractEventLoop, shape: KvShape) -> None:
        self._store = store
        self._node_id = node_id
        self._loop = loop
        self._shape = shape

    def open(self, chunk_lens: Mapping[str, int]) -> Mapping[str, StoredSegment]:
        """A file that cannot be read right is not absent: its segment raises when read, so that it will be replaced."""
        ctx = RequestContext.create(deadline_ms=_OPEN_DEADLINE_MS)
        try:
            opened = self._wait(self._store.open(ctx, list(chunk_lens), self._node_id), ctx)
        except KvquiltError as error:
            log.warning("kv_store does not answer, %d chunks are computed instead: %s", len(chunk_lens), error.detail)
            return {}
        segments: dict[str, StoredSegment] = {}
        for chunk in opened:
            if chunk.exists:
                with contextlib.suppress(NotFound):  # deleted since
                    segments[chunk.chunk_id] = self._segment(chunk, chunk_lens[chunk.chunk_id])
        return segments

    def prefetch(self, chunk_ids: Sequence[str]) -> None:
        """The store answers at once and brings them to this node meanwhile."""
        ctx = RequestContext.create(deadline_ms=_OPEN_DEADLINE_MS)
        try:
            self._wait(self._store.prefetch(ctx, chunk_ids, self._node_id), ctx)
        except KvquiltError as error:
            log.info("%d chunks cannot be fetched in advance: %s", len(chunk_ids), error.detail)

    def save(
        self,
        chunk_id: str,
        prefix_ids: Sequence[int],
        token_ids: Sequence[int],
        k_LHTD: Sequence[torch.Tensor],
        v_LHTD: Sequence[torch.Tensor],
        replace: bool,
    ) -> None:
        """Writes the file next to the store's own and hands it over, which moves it: one write, no copy."""
        ctx = RequestContext.create(deadline_ms=_SAVE_DEADLINE_MS)
        path = Path(self._wait(self._store.stage(ctx, self._node_id), ctx)) / f"{chunk_id}.{uuid.uuid4().hex}"
        header = self._shape.header(chunk_id, prefix_ids, token_ids)
        try:
            write_chunk(path, header, [_array_of(k) for k in k_LHTD], [_array_of(v) for v in v_LHTD])
            self._wait(self._store.adopt(ctx, chunk_id, self._node_id, str(path), replace), ctx)
        except OSError as error:
            log.exception("chunk %s cannot be written", chunk_id)
            raise Unavailable(f"chunk {chunk_id}: its KV cannot be written: {os.strerror(error.errno or 0)}") from None
        finally:
            path.unlink(missing_ok=True)

    def _segment(self, chunk: OpenedChunk, num_tokens: int) -> StoredSegment:
        """
        Raises:
            NotFound: the file was deleted meanwhile.
        """
        try:
            file = ChunkFile.open(chunk.path, chunk.layers)
        except CorruptData as error:
            return _BrokenSegment(error)
        try:
            self._shape.check(file.header, chunk.chunk_id, num_tokens)
        except CorruptData as error:
            file.close()
            return _BrokenSegment(error)
        return _FileSegment(file)

    def _wait(self, call: Coroutine[Any, Any, ValueT], ctx: RequestContext) -> ValueT:
        """The result of ``call``, run on the event loop while this thread waits.

        Raises:
            KvquiltError: what the store answered, or ``Unavailable`` when it did not in time.
        """
        try:
            future = asyncio.run_coroutine_threadsafe(call, self._loop)
        except RuntimeError:
            call.close()
            raise Unavailable("the service is shutting down") from None
        try:
            return future.result(ctx.remaining_s)
        except (TimeoutError, CancelledError):
            future.cancel()
            raise Unavailable("kv_store did not answer in time") from None


class _FileSegment:
    """KV of one chunk in an open file."""

    def __init__(self, file: ChunkFile) -> None:
        self._file = file

    def read_layer(self, layer: int, k_out_HTD: torch.Tensor, v_out_HTD: torch.Tensor) -> None:
        if k_out_HTD.device.type == "cpu":
            self._file.read_layer(layer, _array_of(k_out_HTD), _array_of(v_out_HTD))
            return
        k_HTD, v_HTD = (torch.empty(out.shape, dtype=out.dtype, pin_memory=True) for out in (k_out_HTD, v_out_HTD))
        self._file.read_layer(layer, _array_of(k_HTD), _array_of(v_HTD))
        k_out_HTD.copy_(k_HTD)
        v_out_HTD.copy_(v_HTD)

    def close(self) -> None:
        self._file.close()


class _BrokenSegment:
    """A stored file that cannot be read right."""

    def __init__(self, error: CorruptData) -> None:
        self._error = error

    def read_layer(self, layer: int, k_out_HTD: torch.Tensor, v_out_HTD: torch.Tensor) -> None:
        raise self._error

    def close(self) -> None:
        pass


def _array_of(tensor: torch.Tensor) -> Array:
    """The bits of ``tensor`` as integers; a view, wherever it is in host memory and contiguous."""
    array: Array = tensor.detach().cpu().contiguous().view(_BITS[tensor.element_size()]).numpy()
    return array
