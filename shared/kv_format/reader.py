"""Reads a chunk's file into the caller's buffers, verifying every byte on the way.

Files are read, never mapped: one that shrinks under a map kills its reader with SIGBUS.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import xxhash

from shared.errors import CorruptData, NotFound
from shared.kv_format.filling import PIECE_BYTES, fill_and_hash, hash_run
from shared.kv_format.frame import Array, ChunkSummary, Frame, read_frame
from shared.kv_format.layout import Seal
from shared.kv_format.progress import ProgressReader
from shared.kv_format.sealing import LayerTag, SealKeys


class ChunkFile:
    """An open file whose frame is verified. ``read_layer`` may be called from several threads at once."""

    def __init__(
        self, fd: int, name: str, progress: ProgressReader | None, keys: SealKeys | None = None
    ) -> None:
        """Takes both over. Use ``open``."""
        self._fd = fd
        self._name = name
        self._progress = progress
        try:
            if progress:
                progress.wait_for_frame()
            self._frame = frame_of(fd, name, whole=progress is None, keys=keys)
            self.size_bytes, self.header = self._frame.size_bytes, self._frame.header
        except (OSError, EOFError, ValueError) as error:
            raise CorruptData(f"chunk {name}: {error}") from None

    @classmethod
    def open(
        cls,
        path: str | Path,
        layers: Sequence[tuple[int, int]] | None = None,
        name: str = "",
        progress: str | Path = "",
        keys: SealKeys | None = None,
    ) -> ChunkFile:
        """``layers``: where the store says that the layers lie, if the caller knows. ``name``: what errors
        call the chunk; empty means the file's name. ``progress``: the file is still arriving, this one beside
        it says how far it is. ``keys``: its seal must be of one of them; None: whoever sealed it is believed.

        Raises:
            NotFound: there is no such file (it may just have been deleted, or have arrived and moved: ask the
            store again). CorruptData: not a whole, unchanged file of this format version, or its layers lie
            elsewhere. NewerFormat: a later version wrote it, or its key is not there. Unavailable: it stopped
            arriving.
        """
        name = name or Path(path).stem
        fd = _open(path, name)
        arriving = None
        try:
            arriving = _progress_of(progress, name) if progress else None
            file = cls(fd, name, arriving, keys)
            if layers is not None and tuple(layers) != file.summary.layers:
                raise CorruptData(f"chunk {name}: its layers do not lie where the store says")
        except BaseException:
            os.close(fd)
            if arriving:
                arriving.close()
            raise
        return file

    @property
    def summary(self) -> ChunkSummary:
        return self._frame.summary

    @property
    def seal(self) -> Seal:
        """The checksums of all that is in it."""
        return self._frame.seal

    def read_layer(self, layer: int, *out: Array) -> None:
        """Fills an array for each of ``header.buffers``: [kv_heads, *shape], contiguous, items of the size
        that it names. The bytes go there directly. A layer that is still arriving is waited for.

        Raises:
            ValueError: an array does not have the header's shape.
            CorruptData: the bytes are not those that were written; the arrays' contents are then undefined.
            Unavailable: the layer stopped arriving.
        """
        layout = self._frame.seal.layout
        parts = self._frame.parts_of_layer(out)
        if self._progress:
            self._progress.wait_for_layer(layer)
        try:
            checksum = fill_and_hash(self._fd, parts, layout.head_len + layer * layout.layer_len)
        except (OSError, EOFError) as error:
            raise CorruptData(f"chunk {self._name}: layer {layer} cannot be read: {error}") from None
        if checksum != self._frame.seal.layer_checksums[layer]:
            raise CorruptData(f"chunk {self._name}: layer {layer} fails its checksum")

    def verify_layers(self, keys: SealKeys | None = None, retag: bytes = b"") -> list[bytes]:
        """Reads every byte of a whole file. With ``keys``, what is sealed with one of them is compared with
        its tags, too. ``retag``: the salt of new tags by the current key, which are returned.

        Raises:
            CorruptData: the bytes are not those that were written, or not those that were sealed.
        """
        seal, made = self.seal, []
        scratch = memoryview(bytearray(min(seal.layout.layer_len, PIECE_BYTES)))
        old = None if keys is None or seal.mac is None else keys.find(seal.mac.key_id)
        for layer, (offset, length) in enumerate(seal.layout.layers()):
            checksum, tags = xxhash.xxh3_64(), list[LayerTag]()
            if old is not None and seal.mac is not None:
                tags.append(old.tag(seal.mac.salt, layer))
            if keys is not None and retag:
                tags.append(keys.current.tag(retag, layer))
            try:
                hash_run(self._fd, offset, length, scratch, [checksum, *tags])
            except (OSError, EOFError) as error:
                raise CorruptData(f"chunk {self._name}: layer {layer} cannot be read: {error}") from None
            if checksum.intdigest() != seal.layer_checksums[layer]:
                raise CorruptData(f"chunk {self._name}: layer {layer} fails its checksum")
            digests = [tag.digest() for tag in tags]
            if old is not None and seal.mac is not None and digests[0] != seal.mac.layer_tags[layer]:
                raise CorruptData(f"chunk {self._name}: layer {layer} was forged: it is not what was sealed")
            made += digests[-1:] if retag else []
        return made

    def empty_layer(self) -> list[Array]:
        """Arrays that ``read_layer`` can fill."""
        return self._frame.empty_layer()

    def close(self) -> None:
        if self._progress:
            self._progress.close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def inspect_chunk(path: str | Path, keys: SealKeys | None = None) -> ChunkSummary:
    """Reads and verifies all but the layers. Raises like ``ChunkFile.open``."""
    with ChunkFile.open(path, keys=keys) as file:
        return file.summary


def verify_chunk(path: str | Path, name: str = "", keys: SealKeys | None = None) -> ChunkSummary:
    """Reads and verifies every byte. Raises like ``ChunkFile.open`` and ``ChunkFile.verify_layers``."""
    with ChunkFile.open(path, name=name, keys=keys) as file:
        file.verify_layers(keys)
        return file.summary


def _open(path: str | Path, name: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise NotFound(f"chunk {name}: not stored") from None
    except OSError as error:
        raise CorruptData(f"chunk {name}: cannot be opened: {os.strerror(error.errno or 0)}") from None


def _progress_of(path: str | Path, name: str) -> ProgressReader:
    try:
        return ProgressReader(path)
    except FileNotFoundError:
        raise NotFound(f"chunk {name}: it has arrived meanwhile, or never will") from None


def frame_of(fd: int, name: str = "", whole: bool = True, keys: SealKeys | None = None) -> Frame:
    """Reads it from the tail. In a file that is not ``whole`` yet, nothing else may be there. ``name``: what
    errors call the chunk. ``keys``: see ``ChunkFile.open``.

    Raises:
        NewerFormat, CorruptData, ValueError, EOFError: says what is wrong.
    """
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is not a plain file")
    size = status.st_size

    def end(length: int) -> tuple[int, bytes]:
        return size, _pread(fd, min(size, length), max(0, size - length))

    frame = read_frame(end, name=name, keys=keys)
    if (
        whole
        and xxhash.xxh3_64_intdigest(_pread(fd, frame.seal.layout.head_len, 0)) != frame.seal.head_checksum
    ):
        raise ValueError("its head fails its checksum")
    return frame


def _pread(fd: int, length: int, offset: int) -> bytes:
    data = os.pread(fd, length, offset)
    if len(data) != length:
        raise EOFError("it ends too early; it may be truncated")
    return data
