"""Chunks to write: headers and random KV of any shape."""

from __future__ import annotations

import functools
import hashlib
import struct
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from shared.identity import chunk_identity, ids_hash
from shared.kv_format import ChunkHeader, write_chunk
from shared.kv_format.layout import PLAIN_VERSION
from shared.kv_types import Origin

Array = np.ndarray[Any, np.dtype[Any]]
VIEW = {"bfloat16": np.uint16, "float16": np.uint16, "float32": np.float32, "uint8": np.uint8}


def header_of(
    layers: int = 2,
    heads: int = 2,
    tokens: int = 3,
    head_dim: int = 4,
    dtype: str = "bfloat16",
    chunk_id: str = "ab" * 20,
    encoding: str = "exact",
) -> ChunkHeader:
    ids = tuple(range(7, 7 + tokens))
    return ChunkHeader(
        chunk_id=chunk_id,
        model_fingerprint="f" * 32,
        tokenizer_hash="e" * 32,
        prefix_hash=ids_hash([1, 2]),
        num_layers=layers,
        num_kv_heads=heads,
        num_tokens=tokens,
        head_dim=head_dim,
        dtype=dtype,
        encoding=encoding,
        rope='{"theta": 10000.0}',
        ids_hash=ids_hash(ids),
        token_ids=ids,
    )


def kv_of(header: ChunkHeader, seed: int = 0) -> list[list[Array]]:
    """Random bits for each of the header's buffers (``k, v`` where it is exact), an array per layer."""
    rng = np.random.default_rng(seed)
    return [
        [
            rng.integers(0, 256, header.num_kv_heads * spec.row_bytes, np.uint8)
            .view(VIEW[spec.dtype])
            .reshape(header.num_kv_heads, *spec.shape)
            for _ in range(header.num_layers)
        ]
        for spec in header.buffers
    ]


@functools.cache
def chunk_bytes(chunk_id: str, seed: int = 0) -> bytes:
    """A whole chunk file."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "c.arrow"
        header = header_of(chunk_id=chunk_id)
        write_chunk(path, header, *kv_of(header, seed))
        return path.read_bytes()


_origins: dict[str, Origin] = {}


def chunk_id_of(n: int, tenant: str = "acme", tokens: int = 3) -> str:
    """The identity of a chunk with ``header_of``'s model, prefix and token ids, behind one of its own."""
    origin = Origin((1, 2), hashlib.blake2b(str(n).encode(), digest_size=20).hexdigest())
    token_ids = range(7, 7 + tokens)
    chunk_id = chunk_identity(tenant, "f" * 32, origin.prefix_ids, token_ids, origin.parent_id)
    _origins[chunk_id] = origin
    return chunk_id


def origin_of(chunk_id: str) -> Origin:
    """Of one that ``chunk_id_of`` made."""
    return _origins[chunk_id]


def newer_chunk_bytes(chunk_id: str) -> bytes:
    """A whole file of a later version of the format, as far as this one can tell."""
    mark, newer = (
        magic + xxhash.xxh32_digest(magic)
        for magic in (struct.pack("<8sI", b"KVQSEAL\n", v) for v in (PLAIN_VERSION, 99))
    )
    data = chunk_bytes(chunk_id)
    assert mark in data
    return data.replace(mark, newer)
