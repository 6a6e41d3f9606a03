"""A collection, or all that a tenant has, as one file: an uncompressed tar archive, written and read front to back.

    kvquilt.json              what this is: version, tenant, collection (empty: all of the tenant's), models, counts
    items/<kind>/<id>.item …  what front doors keep beside documents (``cluster.archive.items``); none before version 2
    chunks/<id>.arrow  …      KV, each chunk once, as the store keeps it (shared.kv_format: sealed, checksummed)
    manifests/<n>.json …      the documents, as the store keeps them (with a checksum); after their chunks, so that an import that
                              ends early leaves no document without KV
    end.json                  the counts again: the archive is complete

While it is written it is called ``<name>.part``. A part whose head is the same is continued after its last
whole chunk or item.
"""  # noqa: E501

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tarfile import TarInfo
from typing import IO, Any, Self

from cluster.archive.items import decode_item
from services.kv_store.documents.sealed_json import checksum_of, unseal_lines
from shared.errors import CorruptData, FailedPrecondition, InvalidRequest, KvquiltError, StorageFull
from shared.kv_format import storage_error, verify_chunk

VERSION = 2
_KIND = "kvquilt collection"
_HEAD, _END, CHUNKS, MANIFESTS = "kvquilt.json", "end.json", "chunks/", "manifests/"
_ITEMS, _ITEM = "items/", ".item"
_BLOCK = tarfile.BLOCKSIZE
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Head:
    """``collection`` empty: all of the tenant's. ``models``: (fingerprint, prefix ids) of whatever computed
    the KV. ``digest``: of the documents and items."""

    tenant: str
    collection: str
    models: tuple[tuple[str, tuple[int, ...]], ...]
    num_documents: int
    num_chunks: int
    digest: str
    num_items: int = 0


def chunk_id_of(member: TarInfo) -> str:
    """Empty for members that are no chunk."""
    return member.name.removeprefix(CHUNKS).removesuffix(".arrow") if member.name.startswith(CHUNKS) else ""


def item_name_of(member: TarInfo) -> str:
    """Empty for members that are no item."""
    return member.name.removeprefix(_ITEMS).removesuffix(_ITEM) if member.name.startswith(_ITEMS) else ""


class Archive:
    """An archive to read. What it says of itself is checked, and no more is read than asked for.

    Raises:
        InvalidRequest: it is no such archive.
        FailedPrecondition: a newer kvquilt wrote it.
        CorruptData: it is damaged.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._tar = tarfile.open(path, "r:")  # noqa: SIM115 (closed by ``close``)
        except tarfile.TarError:
            raise _no_export() from None
        try:
            first = next(self.members(), None)
            self.version, self.head = _head_of(self.read(first) if first else b"")
        except BaseException:
            self._tar.close()
            raise

    def members(self) -> Iterator[TarInfo]:
        """In the order of the file, up to its end."""
        with _reading():
            yield from (member for member in self._tar if member.isreg() and not member.issparse())

    def check_complete(self) -> None:
        """
        Raises:
            CorruptData: it is not whole; says how.
        """
        *_, last = members = list(self.members())
        counts = [sum(m.name.startswith(prefix) for m in members) for prefix in (CHUNKS, MANIFESTS, _ITEMS)]
        if last.name != _END or counts != list(_counts(self.head).values()):
            raise CorruptData("the archive is not complete; copy it or export the collection again")
        if {"items": 0, **_unsealed(self.read(last))} != _counts(self.head):
            raise CorruptData("the archive's end does not fit its content; export the collection again")

    def read(self, member: TarInfo) -> bytes:
        with _reading():
            return self._content_of(member).read()

    def copy_to(self, member: TarInfo, path: Path) -> None:
        with storing(), _reading(), open(path, "wb") as out:
            shutil.copyfileobj(self._content_of(member), out, _PIECE_BYTES)

    def close(self) -> None:
        self._tar.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _content_of(self, member: TarInfo) -> IO[bytes]:
        content = self._tar.extractfile(member)
        assert content is not None, "members are plain files"
        return content


class ArchiveWriter:
    """``chunk_ids``, ``item_names``: of what a part of a former try holds already. Raises ``StorageFull``."""

    def __init__(self, target: Path, head: Head, scratch: Path) -> None:
        """``scratch``: a file name for what is verified."""
        self._target, self._part = target, target.with_name(target.name + ".part")
        self._head = head
        self.chunk_ids, self.item_names, end = _usable(self._part, head, scratch)
        with storing():
            self._file: IO[bytes] = open(self._part, "r+b" if end else "wb")  # noqa: SIM115 (closed by ``close``)
            self._file.truncate(end)
            self._file.seek(end)
        self._tar = tarfile.TarFile(
            fileobj=self._file, mode="w", format=tarfile.GNU_FORMAT, copybufsize=_PIECE_BYTES
        )
        if not end:
            self.add(_HEAD, _sealed({"kind": _KIND, "version": VERSION, **asdict(head)}))

    def add(self, name: str, data: bytes) -> None:
        self._add(name, len(data), io.BytesIO(data))

    def add_chunk(self, chunk_id: str, path: Path) -> None:
        with open(path, "rb") as source:
            self._add(f"{CHUNKS}{chunk_id}.arrow", path.stat().st_size, source)
        self.chunk_ids.add(chunk_id)

    def add_item(self, name: str, data: bytes) -> None:
        self.add(f"{_ITEMS}{name}{_ITEM}", data)
        self.item_names.add(name)

    def add_manifest(self, number: int, data: bytes) -> None:
        self.add(f"{MANIFESTS}{number:08d}.json", data)

    def finish(self) -> None:
        """The archive has its name when this returns, and survives a power failure."""
        self.add(_END, _sealed(_counts(self._head)))
        with storing():
            self._tar.close()
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            os.replace(self._part, self._target)

    def close(self) -> None:
        self._file.close()

    def _add(self, name: str, size_bytes: int, source: IO[bytes]) -> None:
        info = TarInfo(name)
        info.size = size_bytes
        with storing():
            self._tar.addfile(info, source)


class storing:
    """A full disk here, as an error for the user."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and isinstance(storage_error(error), StorageFull):
            raise StorageFull(
                "no space left for the archive; make room and give the same command again"
            ) from None


def _counts(head: Head) -> dict[str, int]:
    return {"chunks": head.num_chunks, "documents": head.num_documents, "items": head.num_items}


def _usable(part: Path, head: Head, scratch: Path) -> tuple[set[str], set[str], int]:
    """Chunks and items that a part holds, all verified, and where the last of them ends; 0 if it is of no
    use."""
    chunk_ids: set[str] = set()
    item_names: set[str] = set()
    end = 0
    if not part.exists():
        return chunk_ids, item_names, end
    try:
        with Archive(part) as archive:
            if (archive.version, archive.head) != (VERSION, head):
                return chunk_ids, item_names, end
            for member in archive.members():
                if chunk_id := chunk_id_of(member):
                    archive.copy_to(member, scratch)
                    verify_chunk(scratch, chunk_id)
                    chunk_ids.add(chunk_id)
                elif name := item_name_of(member):
                    decode_item(archive.read(member), name)
                    item_names.add(name)
                elif member.name != _HEAD:
                    break
                end = member.offset_data + -(-member.size // _BLOCK) * _BLOCK  # contents are padded
    except KvquiltError:
        pass  # what comes after the last whole chunk is written again
    finally:
        scratch.unlink(missing_ok=True)
    return chunk_ids, item_names, end


def _head_of(data: bytes) -> tuple[int, Head]:
    """With the version of the archive."""
    fields = _unsealed(data)
    if fields.pop("kind", None) != _KIND:
        raise InvalidRequest("the file is not an exported collection (kvquilt store export)")
    version = fields.pop("version", 0)
    if version > VERSION:
        raise FailedPrecondition(
            f"a newer kvquilt wrote this export (version {version}, this one reads {VERSION}); use that one"
        )
    models = tuple((fingerprint, tuple(prefix_ids)) for fingerprint, prefix_ids in fields.pop("models"))
    return version, Head(**fields, models=models)


def _sealed(fields: dict[str, Any]) -> bytes:
    """JSON after a line with its checksum."""
    body = json.dumps(fields, separators=(",", ":")).encode()
    return checksum_of(body) + b"\n" + body + b"\n"


def _unsealed(data: bytes) -> dict[str, Any]:
    try:
        fields: dict[str, Any] = unseal_lines(data)
    except ValueError:
        raise _no_export() from None
    return fields


def _no_export() -> InvalidRequest:
    return InvalidRequest("the file is not an exported collection (kvquilt store export), or it is damaged")


@contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except tarfile.TarError:
        raise CorruptData(
            "the archive is cut off or damaged; copy it or export the collection again"
        ) from None
