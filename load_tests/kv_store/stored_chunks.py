"""Chunk files of any shape to measure with, and what is common to measuring them."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shared.engine.host_memory import host_tensors
from shared.engine.model.rope import RopeSpec
from shared.engine.model.spec import ModelSpec
from shared.identity import chunk_identity
from shared.kv_format import write_chunk
from shared.measuring.asking import random_ids
from shared.stored_segments.files import KvShape

Array = np.ndarray[Any, np.dtype[Any]]
FINGERPRINT = "0" * 32
_VOCAB, _ROPE = 150_000, RopeSpec(())


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

    @property
    def spec(self) -> ModelSpec:
        """Of a model whose chunks these are."""
        return ModelSpec(
            self.layers,
            self.kv_heads,
            self.kv_heads,
            self.head_dim,
            _VOCAB,
            self.tokens,
            None,
            frozenset(),
            torch.bfloat16,
            torch.device("cpu"),
            _ROPE,
        )

    @property
    def kv(self) -> KvShape:
        return KvShape(FINGERPRINT, self.layers, self.kv_heads, self.head_dim, "bfloat16", _ROPE)


QWEN2_7B = ChunkShape()


def random_chunk_id(shape: ChunkShape, seed: int, tenant: str = "") -> str:
    """The identity of the chunk that goes by the seed."""
    return chunk_identity(tenant, FINGERPRINT, (), random_ids(seed, shape.tokens, vocab=_VOCAB))


def write_random_chunk(
    directory: Path, shape: ChunkShape, seed: int, chunk_id: str = "", kv_seed: int | None = None
) -> tuple[str, Path]:
    """A chunk's id (by default ``random_chunk_id``) and its file, which lies in the page cache afterwards.
    ``kv_seed``: of its KV, where one chunk has several."""
    token_ids = random_ids(seed, shape.tokens, vocab=_VOCAB)
    header = shape.kv.header(chunk_id or random_chunk_id(shape, seed), (), token_ids)
    rng = np.random.default_rng(seed if kv_seed is None else kv_seed)
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
