"""The object store as a place that is scrubbed: objects are fetched whole, verified, and put again from any node's good copy."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path

from services.kv_store.blobs import Blobs
from services.kv_store.scrub import Copy
from shared.errors import CorruptData, KvquiltError, NotFound
from shared.kv_format import verify_chunk
from shared.request import RequestContext

log = logging.getLogger(__name__)

CHUNKS = "chunks/"
SUFFIX = ".arrow"
_PAGE = 1000

Source = Callable[[str], AsyncGenerator[bytes, None]]
"""A node's copy of a chunk, piece by piece. Raises ``KvquiltError`` when it has none."""


class ObjectCopies:
    """``services.kv_store.scrub.Copies``. ``sources``: where good copies may be; ``staging``: a directory for files on the way."""

    def __init__(self, objects: Blobs, staging: Path, sources: Sequence[Source]) -> None:
        self._objects, self._staging, self._sources = objects, staging, sources

    def all(self) -> Iterator[Copy]:
        after, truncated = "", True
        while truncated:
            page = self._objects.list(CHUNKS, after, _PAGE)
            truncated = page.truncated
            for blob in page.blobs:
                after = blob.name
                if blob.name.endswith(SUFFIX):
                    yield Copy("objects", blob.name.rpartition("/")[2].removesuffix(SUFFIX), blob.size_bytes)

    def of(self, chunk_id: str) -> Sequence[Copy]:
        stat = self._objects.stat(_name(chunk_id))
        return [] if stat is None else [Copy("objects", chunk_id, stat.size_bytes)]

    def verify(self, copy: Copy) -> None:
        with tempfile.NamedTemporaryFile(dir=self._staging, prefix="put-") as file:
            for piece in self._objects.read(_name(copy.chunk_id)):
                file.write(piece)
            file.flush()
            _check(Path(file.name), copy.chunk_id)

    def remove_damaged(self, copy: Copy) -> bool:
        name = _name(copy.chunk_id)
        before = self._objects.stat(name)
        try:
            self.verify(copy)
        except CorruptData:
            now = self._objects.stat(name)
            return now is not None and before is not None and now.version == before.version and self._objects.delete(name)
        except NotFound:
            return True
        return False

    async def restore(self, ctx: RequestContext, copy: Copy) -> bool:
        for source in self._sources:
            try:
                if await self._put_from(source, copy.chunk_id):
                    return True
            except KvquiltError as error:
                log.info("chunk %s cannot be restored from a node: %s", copy.chunk_id, error.detail)
        return False

    async def _put_from(self, source: Source, chunk_id: str) -> bool:
        with tempfile.NamedTemporaryFile(dir=self._staging, prefix="put-", delete=False) as file:
            path = Path(file.name)
            try:
                async with aclosing(source(chunk_id)) as pieces:
                    async for piece in pieces:
                        await asyncio.to_thread(file.write, piece)
                file.close()
                await asyncio.to_thread(_check, path, chunk_id)
                await asyncio.to_thread(self._objects.put_file, _name(chunk_id), path)
                return True
            finally:
                path.unlink(missing_ok=True)


def _check(path: Path, chunk_id: str) -> None:
    """
    Raises:
        CorruptData: it is not the whole file of this chunk.
    """
    if verify_chunk(path, chunk_id).header.chunk_id != chunk_id:
        raise CorruptData(f"chunk {chunk_id}: the file holds another chunk")


def _name(chunk_id: str) -> str:
    return f"{CHUNKS}{chunk_id[:2]}/{chunk_id}{SUFFIX}"
