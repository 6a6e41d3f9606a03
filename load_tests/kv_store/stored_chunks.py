"""Chunk files of any shape to measure with, and what is common to measuring them."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shared.engine.kv.host_memory import host_tensors
from shared.identity import chunk_identity, ids_hash
from shared.kv_format import ChunkHeader, write_chunk
from shared.measuring.asking import random_ids

Array = np.ndarray[Any, np.dtype[Any]]
FINGERPRINT = "0" * 32


@dataclass(frozen=True, slots=True)
class ChunkShape:
    """K and V of each layer are [kv_heads, tokens, head_dim], bf16. The default is a chunk of Qwen2-7B: 28
    MiB."""

    layers: int = 28
    kv_heads: int = 4
    head_dim: int = 128
    tokens: int = 512

    @property
    def num_bytes(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim * self.tokens * 2


QWEN2_7B = ChunkShape()


def write_random_chunk(directory: Path, shape: ChunkShape, seed: int, chunk_id: str = "") -> tuple[str, Path]:
    """A chunk's id (by default one that goes by the seed) and its file, which lies in the page cache
    afterwards."""
    token_ids = random_ids(seed, shape.tokens, vocab=150_000)
    header = ChunkHeader(
        chunk_id=chunk_id or chunk_identity("", FINGERPRINT, (), token_ids),
        model_fingerprint=FINGERPRINT,
        tokenizer_hash="",
        prefix_hash=ids_hash(()),
        num_layers=shape.layers,
        num_kv_heads=shape.kv_heads,
        num_tokens=shape.tokens,
        head_dim=shape.head_dim,
        dtype="bfloat16",
        encoding="exact",
        rope="",
        ids_hash=ids_hash(token_ids),
        token_ids=token_ids,
    )
    rng = np.random.default_rng(seed)
    size = (shape.kv_heads, shape.tokens, shape.head_dim)
    k, v = ([rng.integers(0, 1 << 16, size, dtype=np.uint16) for _ in range(shape.layers)] for _ in "kv")
    path = directory / f"{header.chunk_id}.arrow"
    write_chunk(path, header, k, v)
    return header.chunk_id, path


def preallocated(shape: ChunkShape) -> list[tuple[Array, Array]]:
    """K and V of every layer: tensors as the engine allocates them, whose memory is there, seen as the
    integers of their bits."""
    size = (shape.kv_heads, shape.tokens, shape.head_dim)
    tensors = [
        t.zero_().view(torch.int16).numpy() for t in host_tensors(2 * shape.layers, size, torch.bfloat16)
    ]
    return list(zip(tensors[::2], tensors[1::2], strict=True))


def drop_from_page_cache(path: Path) -> None:
    """The next read comes from the disk. What is not on the disk yet (no fsync) stays."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
