"""Reads the sizes of a model from its config.json: bytes of KV and of weights, and arithmetic per token."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from shared.errors import ConfigError
from shared.identity import ids_hash
from shared.kv_buffers import ITEM_SIZES
from shared.kv_format import ChunkHeader, write_chunk
from shared.kv_format.layout import KEY_ID_BYTES, MAC_BYTES, SALT_BYTES, TAG_BYTES

_FIELDS = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size")


@dataclass(frozen=True, slots=True)
class Decoder:
    """A dense decoder with gated MLPs, as all families are that are served. ``dtype``: of weights and KV."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    vocab: int
    dtype: str = "bfloat16"

    @property
    def kv_bytes_per_token(self) -> int:
        """Of exact KV."""
        return 2 * self.layers * self.kv_heads * self.head_dim * ITEM_SIZES[self.dtype]

    @property
    def _layer_weights(self) -> int:
        attention = self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.mlp)

    def flops(self, rows: int, keys: float) -> float:
        """Of ``rows`` tokens that see ``keys`` each, in the mean, and of one row of logits."""
        attention = 4 * self.layers * self.heads * self.head_dim * keys
        return rows * (2 * self._layer_weights + attention) + 2 * self.hidden * self.vocab

    def bytes_read(self, branches: int, keys: int) -> float:
        """For one token of each of ``branches``, which see ``keys`` of their own each."""
        weights = (self._layer_weights + self.hidden * self.vocab) * ITEM_SIZES[self.dtype]
        return weights + branches * keys * self.kv_bytes_per_token

    def chunk_bytes(self, num_tokens: int, encoding: str) -> int:
        """Of a chunk's sealed file. What frames the layers is that of a narrower chunk, which is written."""
        token_ids = (self.vocab - 1,) * num_tokens
        header = ChunkHeader(
            *("0" * 40, "0" * 32, "0" * 32, "0" * 32),
            num_layers=self.layers,
            num_kv_heads=1,
            num_tokens=num_tokens,
            head_dim=self.head_dim,
            dtype=self.dtype,
            encoding=encoding,
            rope="",
            ids_hash=ids_hash(token_ids),
            token_ids=token_ids,
        )
        arrays = (np.zeros((1, *b.shape), f"u{b.item_bytes}") for b in header.buffers)
        with tempfile.TemporaryDirectory() as directory:
            narrow = write_chunk(Path(directory) / "chunk", header, *([one] * self.layers for one in arrays))
        seal = self.layers * TAG_BYTES + SALT_BYTES + KEY_ID_BYTES + MAC_BYTES
        wide = replace(header, num_kv_heads=self.kv_heads)
        return narrow + seal + self.layers * (wide.body_bytes - header.body_bytes)


def read_decoder(model: Path) -> Decoder:
    """``model``: a model's directory, or its config.json alone.

    Raises:
        ConfigError: says what is missing.
    """
    path = model if model.is_file() else model / "config.json"
    try:
        told: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        told = told.get("text_config", told)
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(f"--model: {path} cannot be read: {error}") from None
    if missing := [name for name in _FIELDS if not isinstance(told.get(name), int) or told[name] < 1]:
        raise ConfigError(f"--model: {path} does not say {', '.join(missing)}; it is no dense decoder's")
    if experts := next((name for name in told if "expert" in name), ""):
        raise ConfigError(f"--model: {path} has {experts}: mixtures of experts are not served")
    heads, dtype = told["num_attention_heads"], told.get("dtype") or told.get("torch_dtype") or "bfloat16"
    return Decoder(
        layers=told["num_hidden_layers"],
        hidden=told["hidden_size"],
        heads=heads,
        kv_heads=told.get("num_key_value_heads") or heads,
        head_dim=told.get("head_dim") or told["hidden_size"] // heads,
        mlp=told["intermediate_size"],
        vocab=told["vocab_size"],
        dtype=dtype if dtype in ITEM_SIZES else "bfloat16",
    )
