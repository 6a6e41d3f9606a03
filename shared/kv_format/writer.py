"""Writes a chunk's file."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from shared.errors import StorageFull
from shared.kv_format.header import ChunkHeader, to_metadata
from shared.kv_format.layout import ARROW_MAGIC, CLOSING_BYTES, END_OF_STREAM, Layout, Seal, footer_of, padded

Array = np.ndarray[Any, np.dtype[Any]]

_PADDING_KEY = b"kvquilt.padding"
_ALIGNMENT = 64
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def write_chunk(path: str | Path, header: ChunkHeader, *buffers: Sequence[Array]) -> int:
    """Writes and fsyncs the file; its size in bytes. What could not be written whole is removed.

    ``buffers``: for each of ``header.buffers``, its arrays, one per layer; [kv_heads, *shape] with items of
    the size that it names, the type itself or a bit view of it, such as uint16 for bfloat16. The name is
    durable once the caller has fsynced the directory, too.

    Raises:
        ValueError: an array does not have the header's shape.
        StorageFull: no space left.
    """
    layers = _checked(header, buffers)
    try:
        layout = _write_arrow(str(path), header, layers)
        return _insert_seal(path, layout, layers)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(path)
        if isinstance(error, OSError):
            raise storage_error(error) from None
        raise


def storage_error(error: OSError) -> Exception:
    """``StorageFull`` if that is what the operating system says, else ``error`` itself."""
    if error.errno in _NO_SPACE:
        return StorageFull("no space left where KV is stored; delete documents or enlarge the volume")
    return error


def _checked(header: ChunkHeader, buffers: Sequence[Sequence[Array]]) -> list[list[Array]]:
    """The arrays of each layer, contiguous."""
    if len(buffers) != len(header.buffers):
        raise ValueError(
            f"{len(buffers)} buffers, but the header says {', '.join(spec.name for spec in header.buffers)}"
        )
    for spec, arrays in zip(header.buffers, buffers, strict=True):
        shape = (header.num_kv_heads, *spec.shape)
        if len(arrays) != header.num_layers:
            raise ValueError(f"{spec.name}: {len(arrays)} layers, but the header says {header.num_layers}")
        for i, array in enumerate(arrays):
            if array.shape != shape or array.dtype.itemsize != spec.item_bytes:
                raise ValueError(
                    f"{spec.name} of layer {i}: {array.dtype}{array.shape}, but the header says "
                    f"{spec.dtype}{shape}"
                )
    return [[np.ascontiguousarray(array) for array in layer] for layer in zip(*buffers, strict=True)]


def _write_arrow(path: str, header: ChunkHeader, layers: Sequence[Sequence[Array]]) -> Layout:
    """An ordinary Arrow file, not yet sealed."""
    schema, head_len = _schema(header)
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for arrays in layers:
            columns = [
                pa.FixedSizeBinaryArray.from_buffers(
                    field.type, header.num_kv_heads, [None, pa.py_buffer(array)]
                )
                for field, array in zip(schema, arrays, strict=True)
            ]
            writer.write_batch(pa.record_batch(columns, schema=schema))
        layers_len = sink.tell() - head_len
    return Layout(
        head_len, header.num_layers, layers_len // header.num_layers - header.body_bytes, header.body_bytes
    )


def _schema(header: ChunkHeader) -> tuple[pa.Schema, int]:
    """The schema and the length of the file's head; padded so that bodies begin at multiples of 64 unless
    their shape is odd."""
    fields = [pa.field(spec.name, pa.binary(spec.row_bytes), nullable=False) for spec in header.buffers]
    metadata = to_metadata(header)
    schema = pa.schema(fields, metadata={**metadata, _PADDING_KEY: b""})
    padding = -_head_len(schema) % _ALIGNMENT
    schema = pa.schema(fields, metadata={**metadata, _PADDING_KEY: b" " * padding})
    return schema, _head_len(schema)


def _head_len(schema: pa.Schema) -> int:
    return padded(len(ARROW_MAGIC)) + int(schema.serialize().size)


def read_ends(fd: int, layout: Layout) -> tuple[bytes, bytes]:
    """Head and footer of a closed file, sealed or not."""
    size = os.fstat(fd).st_size
    length = footer_of(os.pread(fd, CLOSING_BYTES, size - CLOSING_BYTES))
    return os.pread(fd, layout.head_len, 0), os.pread(fd, length, size - length)


def tail_of(layout: Layout, layer_checksums: tuple[int, ...], head: bytes, footer: bytes) -> bytes:
    """Makes what follows the layers. The seal lies in front of the footer, which is found from the end of the
    file and refers to nothing behind the batches."""
    return sealed_tail(Seal(layout, layer_checksums, xxhash.xxh3_64_intdigest(head)), footer)


def sealed_tail(seal: Seal, footer: bytes) -> bytes:
    return END_OF_STREAM + seal.pack(footer) + footer


def _insert_seal(path: str | Path, layout: Layout, layers: Sequence[Sequence[Array]]) -> int:
    with open(path, "r+b") as file:
        checksums = tuple(
            _checksum(os.pread(file.fileno(), layout.message_len, offset), arrays)
            for (offset, _), arrays in zip(layout.layers(), layers, strict=True)
        )
        tail = tail_of(layout, checksums, *read_ends(file.fileno(), layout))
        file.seek(layout.tail_offset)
        file.write(tail)
        file.flush()
        os.fsync(file.fileno())
        return file.tell()


def _checksum(message: bytes, arrays: Sequence[Array]) -> int:
    checksum = xxhash.xxh3_64(message)
    for array in arrays:
        checksum.update(array.data.cast("B"))
        checksum.update(bytes(padded(array.nbytes) - array.nbytes))
    return checksum.intdigest()
