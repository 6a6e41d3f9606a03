"""Chunks to write: headers and random KV of any shape."""

from __future__ import annotations

import functools
import hashlib
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from shared.identity import ids_hash
from shared.kv_format import ChunkHeader, write_chunk

Array = np.ndarray[Any, np.dtype[Any]]
VIEW = {"bfloat16": np.uint16, "float16": np.uint16, "float32": np.float32}


def header_of(
    layers: int = 2, heads: int = 2, tokens: int = 3, head_dim: int = 4, dtype: str = "bfloat16", chunk_id: str = "ab" * 20
) -> ChunkHeader:
    ids = tuple(range(7, 7 + tokens))
    return ChunkHeader(
        chunk_id=chunk_id,
        model_fingerprint="f" * 32,
        prefix_hash=ids_hash([1, 2]),
        num_layers=layers,
        num_kv_heads=heads,
        num_tokens=tokens,
        head_dim=head_dim,
        dtype=dtype,
        encoding="exact",
        rope='{"theta": 10000.0}',
        ids_hash=ids_hash(ids),
        token_ids=ids,
    )


def kv_of(header: ChunkHeader, seed: int = 0) -> tuple[list[Array], list[Array]]:
    """K and V of every layer, [kv_heads, tokens, head_dim] random bits."""
    rng = np.random.default_rng(seed)
    shape = (header.num_kv_heads, header.num_tokens, header.head_dim)
    view = VIEW[header.dtype]
    raw = np.uint16 if view is np.uint16 else np.uint32
    k, v = ([rng.integers(0, np.iinfo(raw).max, shape, dtype=raw).view(view) for _ in range(header.num_layers)] for _ in "kv")
    return k, v


@functools.cache
def chunk_bytes(chunk_id: str, seed: int = 0) -> bytes:
    """A whole chunk file."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "c.arrow"
        header = header_of(chunk_id=chunk_id)
        write_chunk(path, header, *kv_of(header, seed))
        return path.read_bytes()


def chunk_id_of(n: int) -> str:
    return hashlib.blake2b(str(n).encode(), digest_size=20).hexdigest()
