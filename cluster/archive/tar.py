"""A collection as one file: an uncompressed tar archive, written and read front to back.

    kvquilt.json              what this is: version, tenant, collection, models, counts
    chunks/<id>.arrow  …      KV, each chunk once, as the store keeps it (shared.kv_format: sealed, checksummed)
    manifests/<n>.json …      the documents, as the store keeps them (with a checksum); after their chunks, so that an import that
                              ends early leaves no document without KV
    end.json                  the counts again: the archive is complete

While it is written it is called ``<name>.part``. A part whose head is the same is continued after its last
whole chunk.
"""  # noqa: E501

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Self

import xxhash

from shared.errors import CorruptData, FailedPrecondition, InvalidRequest, KvquiltError, StorageFull
from shared.kv_format import storage_error, verify_chunk

VERSION = 1
_KIND = "kvquilt collection"
_HEAD, _END, CHUNKS, MANIFESTS = "kvquilt.json", "end.json", "chunks/", "manifests/"
_BLOCK = tarfile.BLOCKSIZE
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Head:
    """``models``: (fingerprint, prefix ids) of whatever computed the KV. ``digest``: of the documents."""

    tenant: str
    collection: str
    models: tuple[tuple[str, tuple[int, ...]], ...]
    num_documents: int
    num_chunks: int
    digest: str


@dataclass(frozen=True, slots=True)
class Member:
    name: str
    offset: int
    size_bytes: int

    @property
    def chunk_id(self) -> str:
        """Empty for other members."""
        return self.name.removeprefix(CHUNKS).removesuffix(".arrow") if self.name.startswith(CHUNKS) else ""


class Archive:
    """An archive to read. What it says of itself is checked, and no more is read than asked for.

    Raises:
        InvalidRequest: it is no such archive.
        FailedPrecondition: a newer kvquilt wrote it.
        CorruptData: it is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._file: IO[bytes] = open(path, "rb")  # noqa: SIM115 (closed by ``close``)
        try:
            self.head = _head_of(self.read(next(self.members(), Member("", 0, 0))))
        except BaseException:
            self._file.close()
            raise

    def members(self) -> Iterator[Member]:
        """In the order of the file, up to its end or to where it was cut off."""
        offset = 0
        while True:
            self._file.seek(offset)
            block = self._file.read(_BLOCK)
            if len(block) < _BLOCK or not any(block):
                return
            try:
                info = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
            except (tarfile.TarError, ValueError):
                raise CorruptData("the archive is damaged; export the collection again") from None
            yield Member(info.name, offset + _BLOCK, info.size)
            offset += _BLOCK + _padded(info.size)

    def check_complete(self) -> None:
        """
        Raises:
            CorruptData: it is not whole; says how.
        """
        *_, last = members = list(self.members())
        counts = [sum(m.name.startswith(prefix) for m in members) for prefix in (CHUNKS, MANIFESTS)]
        if last.name != _END or counts != [self.head.num_chunks, self.head.num_documents]:
            raise CorruptData("the archive is not complete; copy it or export the collection again")
        if _unsealed(self.read(last)) != {"chunks": counts[0], "documents": counts[1]}:
            raise CorruptData("the archive's end does not fit its content; export the collection again")

    def read(self, member: Member) -> bytes:
        self._file.seek(member.offset)
        data = self._file.read(member.size_bytes)
        if len(data) != member.size_bytes:
            raise CorruptData("the archive is cut off; copy it or export the collection again")
        return data

    def copy_to(self, member: Member, path: Path) -> None:
        self._file.seek(member.offset)
        left = member.size_bytes
        with storing(), open(path, "wb") as out:
            while left and (piece := self._file.read(min(left, _PIECE_BYTES))):
                out.write(piece)
                left -= len(piece)
        if left:
            raise CorruptData("the archive is cut off; copy it or export the collection again")

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ArchiveWriter:
    """``chunk_ids``: those that a part of a former try holds already. Raises ``StorageFull``."""

    def __init__(self, target: Path, head: Head, scratch: Path) -> None:
        """``scratch``: a file name for what is verified."""
        self._target, self._part = target, target.with_name(target.name + ".part")
        self._head = head
        self.chunk_ids, end = _usable(self._part, head, scratch)
        with storing():
            self._file: IO[bytes] = open(self._part, "r+b" if end else "wb")  # noqa: SIM115 (closed by ``close``)
            self._file.truncate(end)
            self._file.seek(end)
        if not end:
            self.add(_HEAD, _sealed({"kind": _KIND, "version": VERSION, **asdict(head)}))

    def add(self, name: str, data: bytes) -> None:
        with storing():
            self._begin(name, len(data))
            self._file.write(data + b"\0" * (_padded(len(data)) - len(data)))

    def add_chunk(self, chunk_id: str, path: Path) -> None:
        size = path.stat().st_size
        with storing(), open(path, "rb") as source:
            self._begin(f"{CHUNKS}{chunk_id}.arrow", size)
            while piece := source.read(_PIECE_BYTES):
                self._file.write(piece)
            self._file.write(b"\0" * (_padded(size) - size))
        self.chunk_ids.add(chunk_id)

    def add_manifest(self, number: int, data: bytes) -> None:
        self.add(f"{MANIFESTS}{number:08d}.json", data)

    def finish(self) -> None:
        """The archive has its name when this returns, and survives a power failure."""
        self.add(_END, _sealed({"chunks": self._head.num_chunks, "documents": self._head.num_documents}))
        with storing():
            self._file.write(b"\0" * 2 * _BLOCK)
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            os.replace(self._part, self._target)

    def close(self) -> None:
        self._file.close()

    def _begin(self, name: str, size_bytes: int) -> None:
        info = tarfile.TarInfo(name)
        info.size = size_bytes
        self._file.write(info.tobuf(tarfile.GNU_FORMAT))


class storing:
    """A full disk here, as an error for the user."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and isinstance(storage_error(error), StorageFull):
            raise StorageFull(
                "no space left for the archive; make room and give the same command again"
            ) from None


def _usable(part: Path, head: Head, scratch: Path) -> tuple[set[str], int]:
    """Chunks that a part holds, all verified, and where the last of them ends; 0 if it is of no use."""
    if not part.exists():
        return set(), 0
    chunk_ids: set[str] = set()
    end = 0
    try:
        with Archive(part) as archive:
            if archive.head != head:
                return set(), 0
            for member in archive.members():
                if member.chunk_id:
                    archive.copy_to(member, scratch)
                    verify_chunk(scratch, member.chunk_id)
                    chunk_ids.add(member.chunk_id)
                elif member.name != _HEAD:
                    break
                end = member.offset + _padded(member.size_bytes)
    except KvquiltError:
        pass  # what comes after the last whole chunk is written again
    finally:
        scratch.unlink(missing_ok=True)
    return chunk_ids, end


def _head_of(data: bytes) -> Head:
    fields = _unsealed(data)
    if fields.pop("kind", None) != _KIND:
        raise InvalidRequest("the file is not an exported collection (kvquilt store export)")
    version = fields.pop("version", 0)
    if version > VERSION:
        raise FailedPrecondition(
            f"a newer kvquilt wrote this export (version {version}, this one reads {VERSION}); use that one"
        )
    models = tuple((fingerprint, tuple(prefix_ids)) for fingerprint, prefix_ids in fields.pop("models"))
    return Head(**fields, models=models)


def _sealed(fields: dict[str, Any]) -> bytes:
    """JSON after a line with its checksum."""
    body = json.dumps(fields, separators=(",", ":")).encode()
    return f"{xxhash.xxh3_64_intdigest(body):016x}\n".encode() + body + b"\n"


def _unsealed(data: bytes) -> dict[str, Any]:
    checksum, _, body = data.partition(b"\n")
    body = body.removesuffix(b"\n")
    if checksum != f"{xxhash.xxh3_64_intdigest(body):016x}".encode():
        raise InvalidRequest(
            "the file is not an exported collection (kvquilt store export), or it is damaged"
        )
    fields: dict[str, Any] = json.loads(body)
    return fields


def _padded(size_bytes: int) -> int:
    return -(-size_bytes // _BLOCK) * _BLOCK
