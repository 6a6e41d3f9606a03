"""Stored KV for the engine: kv_store names files, this module finds, converts and hands them over.

KV bytes never pass through the store's RPCs: ``Open`` answers paths on this node, or where the object store
has the file, and ``Adopt`` takes over a file written here. The engine calls from its loader threads; the
calls to the store run on the service's event loop.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import uuid
from collections.abc import Coroutine, Iterable, Iterator, Mapping, MutableMapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from shared.engine.kv.encodings import EXACT, Buffers, encoding_of
from shared.engine.kv.source import ComputedChunk, StoredSegment
from shared.errors import CorruptData, KvquiltError, NewerFormat, NotFound, Unavailable
from shared.generation.asked import Chunk
from shared.identity import TokenIds
from shared.kv_format import ChunkFile, ChunkHeader, SealKeys
from shared.kv_format.remote import RemoteChunk, request
from shared.kv_stores import NodeFiles
from shared.kv_types import OpenedChunk, Origin, RemoteFile
from shared.request import RequestContext
from shared.stored_segments.files import (
    BrokenSegment,
    FileSegment,
    KvShape,
    Scratch,
    empty_layers,
    encode_layers,
    write_layers,
)

log = logging.getLogger(__name__)

ValueT = TypeVar("ValueT")
_NUM_BEGINNERS = 8
"""Chunks whose first bytes the object store is asked for at the same time."""
_OPEN_DEADLINE_MS = 30_000
_SAVE_DEADLINE_MS = 120_000


class StoreSegmentSource:
    """``shared.engine.kv.source.SegmentSource`` over kv_store, on node ``node_id``. ``loop`` is the one that
    ``store`` lives on.

    New KV is stored in ``encoding``; what is stored is read in whatever encoding it has. ``keys``: of the
    seals that are believed; None: all are.
    """

    def __init__(
        self,
        store: NodeFiles,
        node_id: str,
        loop: asyncio.AbstractEventLoop,
        shape: KvShape,
        encoding: str = EXACT,
        keys: SealKeys | None = None,
    ) -> None:
        self._store = store
        self._keys = keys
        self._node_id = node_id
        self._loop = loop
        self._shape = shape
        self.encoding = encoding
        self._scratch = Scratch(shape.rope)
        self._beginners = ThreadPoolExecutor(_NUM_BEGINNERS, "kv-begin")
        # What ``as_stored`` made and ``save`` has not written yet, by the first layer's keys. Encoding the
        # decoded values once more would not give the same bits.
        self._encoded: MutableMapping[torch.Tensor, list[Buffers]] = WeakTensorKeyDictionary()

    def open(
        self, chunk_lens: Mapping[str, int], encoding: str = "", traceparent: str = "", tenant: str = ""
    ) -> Mapping[str, StoredSegment]:
        """A file that cannot be read right is not absent: its segment raises when read, so that it will be
        replaced."""
        if not encoding:
            return self._find(chunk_lens, tenant, direct=True, traceparent=traceparent)
        found = self._find(chunk_lens, tenant)
        converted = {
            chunk_id: self._converted(chunk_id, segment, encoding) for chunk_id, segment in found.items()
        }
        anew = [chunk_id for chunk_id, segment in converted.items() if segment is None]
        made = self._find({i: chunk_lens[i] for i in anew}, tenant)
        return {i: s for i, s in converted.items() if s} | made

    def as_stored(
        self, k_LHTD: Sequence[torch.Tensor], v_LHTD: Sequence[torch.Tensor], saved: bool = True
    ) -> None:
        if self.encoding == EXACT:
            return
        layers = encode_layers(self.encoding, k_LHTD, v_LHTD, self._scratch)
        rotation = self._scratch.rotation(k_LHTD[0].device)
        for buffers, k_HTD, v_HTD in zip(layers, k_LHTD, v_LHTD, strict=True):
            encoding_of(self.encoding).decode(buffers, rotation, k_HTD, v_HTD)
        if saved:
            self._encoded[k_LHTD[0]] = layers

    def chain(self, chunk: Chunk, tenant: str, prefix_ids: TokenIds) -> Sequence[Chunk] | None:
        """By the document's manifest; believed only if its identities lead to the chunk's parent."""
        ctx = RequestContext.create(tenant=tenant, deadline_ms=_OPEN_DEADLINE_MS)
        try:
            found = self._wait(self._store.chain(ctx, chunk.parent_id), ctx)
        except KvquiltError as error:
            log.warning("kv_store cannot say what chunk %s stands behind: %s", chunk.chunk_id, error.detail)
            return None
        if found is None or found.identities[-1:] != (chunk.parent_id,):
            return None
        identities = dataclasses.replace(found, prefix_ids=prefix_ids).identities
        return [
            Chunk(chunk_id, ids, parent_id)
            for chunk_id, ids, parent_id in zip(identities, found.links, ("", *identities), strict=False)
        ]

    def prefetch(self, chunk_ids: Sequence[str], tenant: str = "") -> None:
        """The store answers at once and brings them to this node meanwhile."""
        ctx = RequestContext.create(tenant=tenant, deadline_ms=_OPEN_DEADLINE_MS)
        try:
            self._wait(self._store.prefetch(ctx, chunk_ids, self._node_id), ctx)
        except KvquiltError as error:
            log.info("%d chunks cannot be fetched in advance: %s", len(chunk_ids), error.detail)

    def save(self, chunk: ComputedChunk) -> None:
        """Writes the file next to the store's own and hands it over, which moves it: one write, no copy."""
        encoding = chunk.encoding or self.encoding
        k_LHTD, v_LHTD = chunk.segment.k_LKTD, chunk.segment.v_LKTD
        layers = self._encoded.pop(k_LHTD[0], None) if encoding == self.encoding else None
        layers = layers or encode_layers(encoding, k_LHTD, v_LHTD, self._scratch)
        header = self._shape.header(chunk.key, chunk.prefix_ids, chunk.token_ids, encoding)
        origin = Origin(chunk.prefix_ids, chunk.parent_id, asked_by=chunk.asked_by)
        ctx = RequestContext.create(tenant=chunk.tenant, deadline_ms=_SAVE_DEADLINE_MS)
        self._hand_over(ctx, header, layers, chunk.replace, chunk.write_back, origin)

    def _find(
        self, chunk_lens: Mapping[str, int], tenant: str, direct: bool = False, traceparent: str = ""
    ) -> dict[str, StoredSegment]:
        """One that was not there any more is asked for once again: it may just have arrived, and so have
        moved."""
        if not chunk_lens:
            return {}
        segments = dict(self._opened(chunk_lens, tenant, direct, traceparent))
        moved = {chunk_id: chunk_lens[chunk_id] for chunk_id, segment in segments.items() if segment is None}
        segments |= dict(self._opened(moved, tenant)) if moved else {}
        return {chunk_id: segment for chunk_id, segment in segments.items() if segment is not None}

    def _opened(
        self, chunk_lens: Mapping[str, int], tenant: str, direct: bool = False, traceparent: str = ""
    ) -> Iterable[tuple[str, StoredSegment | None]]:
        """The stored ones; None where the named file is not there."""
        ctx = RequestContext.create(tenant=tenant, deadline_ms=_OPEN_DEADLINE_MS, traceparent=traceparent)
        try:
            opened = self._wait(self._store.open(ctx, list(chunk_lens), self._node_id, direct), ctx)
        except KvquiltError as error:
            log.warning(
                "kv_store does not answer, %d chunks are computed instead: %s", len(chunk_lens), error.detail
            )
            return
        for chunk in opened:
            if chunk.exists:
                try:
                    yield chunk.chunk_id, self._segment(chunk, chunk_lens[chunk.chunk_id], tenant)
                except NotFound:
                    yield chunk.chunk_id, None
                except (NewerFormat, Unavailable) as error:
                    told = "stored KV of chunk %s cannot be had (%s); it is recomputed"
                    log.warning(told, chunk.chunk_id, error.detail)

    def _segment(self, chunk: OpenedChunk, num_tokens: int, tenant: str) -> StoredSegment:
        """
        Raises:
            NotFound: the file is not there any more.
            NewerFormat: a later version of kvquilt wrote it.
            Unavailable: it was still arriving, and that ended.
        """
        if chunk.remote is not None:
            remote = self._remote(chunk.chunk_id, chunk.remote, num_tokens, tenant)
            return FileSegment(remote, self._scratch, chunk.came_from)
        try:
            return FileSegment(self._checked(chunk, num_tokens), self._scratch, chunk.came_from)
        except CorruptData as error:
            return BrokenSegment(error)

    def _checked(self, chunk: OpenedChunk, num_tokens: int) -> ChunkFile:
        """Raises like ``_segment``. CorruptData: it is not a chunk's file, or another one's."""
        file = ChunkFile.open(chunk.path, chunk.layers, chunk.chunk_id, chunk.progress, self._keys)
        try:
            self._shape.check(file.header, chunk.chunk_id, num_tokens)
        except CorruptData:
            file.close()
            raise
        return file

    def _remote(self, chunk_id: str, remote: RemoteFile, num_tokens: int, tenant: str) -> RemoteChunk:
        return RemoteChunk(
            chunk_id,
            partial(request, remote.url, remote.ca_file),
            lambda header: self._shape.check(header, chunk_id, num_tokens),
            partial(self._brought, chunk_id, num_tokens, tenant),
            self._beginners.submit,
            self._keys,
        )

    def _brought(self, chunk_id: str, num_tokens: int, tenant: str) -> ChunkFile:
        """The file on this node, brought by the store: it asks again, and others than the object store.

        Raises:
            NotFound, CorruptData, NewerFormat, Unavailable: it cannot be had like this either.
        """
        ctx = RequestContext.create(tenant=tenant, deadline_ms=_OPEN_DEADLINE_MS)
        for _ in ("where it arrives", "where it moved to"):
            (opened,) = self._wait(self._store.open(ctx, [chunk_id], self._node_id), ctx)
            if not opened.exists:
                break
            with suppress(NotFound):
                return self._checked(opened, num_tokens)
        raise NotFound(f"chunk {chunk_id}: not stored")

    def _converted(self, chunk_id: str, segment: StoredSegment, encoding: str) -> StoredSegment | None:
        """The segment itself where it has ``encoding``; None where it was stored anew in it; else one that
        cannot be read, so that the engine computes the chunk again and says so if that cannot be stored
        either."""
        if not isinstance(segment, FileSegment) or segment.encoding == encoding:
            return segment
        try:
            if segment.encoding != EXACT:
                raise CorruptData(f"it is stored as {segment.encoding}, from which {encoding} cannot be made")
            self._convert(segment, encoding)
        except KvquiltError as error:
            return BrokenSegment(CorruptData(f"chunk {chunk_id}: {error.detail}"))
        finally:
            segment.close()
        return None

    def _convert(self, segment: FileSegment, encoding: str) -> None:
        k_LHTD, v_LHTD = empty_layers(segment.header)
        segment.read_layers(range(len(k_LHTD)), k_LHTD, v_LHTD)
        layers = encode_layers(encoding, k_LHTD, v_LHTD, self._scratch)
        ctx, same = RequestContext.create(deadline_ms=_SAVE_DEADLINE_MS), Origin(stored=True)
        header = dataclasses.replace(segment.header, encoding=encoding)
        self._hand_over(ctx, header, layers, replace=True, write_back=False, origin=same)

    def _hand_over(
        self,
        ctx: RequestContext,
        header: ChunkHeader,
        layers: Sequence[Buffers],
        replace: bool,
        write_back: bool,
        origin: Origin,
    ) -> None:
        with self._staged(ctx, header.chunk_id) as path:
            write_layers(path, header, layers)
            adopting = self._store.adopt(
                ctx, header.chunk_id, self._node_id, str(path), replace, write_back, origin
            )
            self._wait(adopting, ctx)

    @contextmanager
    def _staged(self, ctx: RequestContext, chunk_id: str) -> Iterator[Path]:
        """A file that is gone afterwards, unless the store took it."""
        path = Path(self._wait(self._store.stage(ctx, self._node_id), ctx)) / f"{chunk_id}.{uuid.uuid4().hex}"
        try:
            yield path
        except OSError as error:
            log.exception("chunk %s cannot be written", chunk_id)
            raise Unavailable(
                f"chunk {chunk_id}: its KV cannot be written: {os.strerror(error.errno or 0)}"
            ) from None
        finally:
            path.unlink(missing_ok=True)

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
