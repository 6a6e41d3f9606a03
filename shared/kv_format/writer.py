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
from shared.kv_format.header import ITEM_SIZES, ChunkHeader, to_metadata
from shared.kv_format.layout import ARROW_MAGIC, CLOSING_BYTES, END_OF_STREAM, Layout, footer_len, padded, seal_of

Array = np.ndarray[Any, np.dtype[Any]]

_PADDING_KEY = b"kvquilt.padding"
_ALIGNMENT = 64
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def write_chunk(path: str | Path, header: ChunkHeader, k_layers: Sequence[Array], v_layers: Sequence[Array]) -> int:
    """Writes and fsyncs the file; its size in bytes. What could not be written whole is removed.

    ``k_layers[i]`` and ``v_layers[i]`` are [kv_heads, tokens, head_dim] with items of the header's size: the dtype itself or a
    bit view of it, such as uint16 for bfloat16. The name is durable once the caller has fsynced the directory, too.

    Raises:
        ValueError: an array does not have the header's shape.
        StorageFull: no space left.
    """
    k_arrays, v_arrays = _checked(header, k_layers), _checked(header, v_layers)
    try:
        layout = _write_arrow(str(path), header, k_arrays, v_arrays)
        return _insert_seal(path, layout)
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


def _checked(header: ChunkHeader, layers: Sequence[Array]) -> list[Array]:
    shape = (header.num_kv_heads, header.num_tokens, header.head_dim)
    if len(layers) != header.num_layers:
        raise ValueError(f"{len(layers)} layers, but the header says {header.num_layers}")
    for i, layer in enumerate(layers):
        if layer.shape != shape or layer.dtype.itemsize != ITEM_SIZES[header.dtype]:
            raise ValueError(f"layer {i}: {layer.dtype}{layer.shape}, but the header says {header.dtype}{shape}")
    return [np.ascontiguousarray(layer) for layer in layers]


def _write_arrow(path: str, header: ChunkHeader, k_arrays: Sequence[Array], v_arrays: Sequence[Array]) -> Layout:
    """An ordinary Arrow file, not yet sealed."""
    schema, head_len = _schema(header, [_checksum(k, v) for k, v in zip(k_arrays, v_arrays, strict=True)])
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for k, v in zip(k_arrays, v_arrays, strict=True):
            columns = [
                pa.FixedSizeBinaryArray.from_buffers(field.type, header.num_kv_heads, [None, pa.py_buffer(a)])
                for field, a in zip(schema, (k, v), strict=True)
            ]
            writer.write_batch(pa.record_batch(columns, schema=schema))
        layers_len = sink.tell() - head_len
    body_len = 2 * padded(header.tensor_bytes)
    return Layout(head_len, header.num_layers, layers_len // header.num_layers - body_len, body_len)


def _schema(header: ChunkHeader, layer_checksums: Sequence[int]) -> tuple[pa.Schema, int]:
    """The schema and the length of the file's head; padded so that bodies begin at multiples of 64 unless their shape is odd."""
    row = pa.binary(header.row_bytes)
    fields = [pa.field("k", row, nullable=False), pa.field("v", row, nullable=False)]
    metadata = to_metadata(header, layer_checksums)
    schema = pa.schema(fields, metadata={**metadata, _PADDING_KEY: b""})
    padding = -_head_len(schema) % _ALIGNMENT
    schema = pa.schema(fields, metadata={**metadata, _PADDING_KEY: b" " * padding})
    return schema, _head_len(schema)


def _head_len(schema: pa.Schema) -> int:
    return padded(len(ARROW_MAGIC)) + int(schema.serialize().size)


def _checksum(k: Array, v: Array) -> int:
    checksum = xxhash.xxh3_64(k.data.cast("B"))
    checksum.update(v.data.cast("B"))
    return checksum.intdigest()


def _insert_seal(path: str | Path, layout: Layout) -> int:
    """Puts the seal in front of the footer, which is found from the end of the file and refers to nothing behind the batches."""
    with open(path, "r+b") as file:
        size = file.seek(0, os.SEEK_END)
        length = footer_len(os.pread(file.fileno(), CLOSING_BYTES, size - CLOSING_BYTES))
        footer = os.pread(file.fileno(), length, size - length)
        head = os.pread(file.fileno(), layout.head_len, 0)
        messages = b"".join(os.pread(file.fileno(), n, offset) for offset, n in layout.messages())
        file.seek(layout.tail_offset)
        file.write(END_OF_STREAM + seal_of(layout, head, messages, footer) + footer)
        file.flush()
        os.fsync(file.fileno())
        return file.tell()
