"""The header of a chunk's file: the metadata of its Arrow schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from shared.config import check_least
from shared.identity import ids_hash
from shared.kv_buffers import DTYPES, ENCODINGS, BufferSpec, buffers_of
from shared.kv_format.layout import padded

VERSION_KEY = b"kvquilt.format_version"
_VERSION = b"2"
"""Of the Arrow part, which sealing leaves as it is."""
HEADER_KEY = b"kvquilt.chunk"


@dataclass(frozen=True, slots=True)
class ChunkHeader:
    """A description of the KV: what it was computed from, its shape, and how it is kept (``encoding``:
    ``shared.kv_buffers``).

    K and V of each layer are [num_kv_heads, num_tokens, head_dim] values of ``dtype``; encodings that lose
    something still decode to that. Keys stand rotated at local positions 0, 1, 2, …; ``rope`` describes the
    rotation in the model's own words and is only compared. ``prefix_hash`` and ``ids_hash`` are
    ``shared.identity.ids_hash`` of the shared prefix and of ``token_ids``. ``tokenizer_hash`` says which
    tokenizer made the ids (empty: the model has none); KV depends on the ids only.

    Raises:
        ValueError: names the field that contradicts the others.
    """

    chunk_id: str
    model_fingerprint: str
    tokenizer_hash: str
    prefix_hash: str
    num_layers: int
    num_kv_heads: int
    num_tokens: int
    head_dim: int
    dtype: str
    encoding: str
    rope: str
    ids_hash: str
    token_ids: tuple[int, ...]

    def __post_init__(self) -> None:
        check_least(self, 1, "num_layers", "num_kv_heads", "num_tokens", "head_dim")
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype: {self.dtype!r} is not one of {', '.join(DTYPES)}")
        if self.encoding not in ENCODINGS:
            raise ValueError(f"encoding: {self.encoding!r} is not one of {', '.join(ENCODINGS)}")
        if len(self.token_ids) != self.num_tokens:
            raise ValueError(f"num_tokens: {self.num_tokens}, but there are {len(self.token_ids)} token ids")
        if ids_hash(self.token_ids) != self.ids_hash:
            raise ValueError("ids_hash: is not the hash of token_ids")

    @property
    def buffers(self) -> tuple[BufferSpec, ...]:
        """The buffers that are kept of every layer, in the order in which they lie in the file."""
        return buffers_of(self.encoding, self.num_tokens, self.head_dim, self.dtype)

    @property
    def body_bytes(self) -> int:
        """Of one layer's buffers, padded."""
        return sum(padded(self.num_kv_heads * spec.row_bytes) for spec in self.buffers)


def to_metadata(header: ChunkHeader) -> dict[bytes, bytes]:
    return {
        VERSION_KEY: _VERSION,
        HEADER_KEY: json.dumps(asdict(header), separators=(",", ":")).encode(),
    }


def from_metadata(metadata: Mapping[bytes, bytes] | None) -> ChunkHeader:
    """
    Raises:
        ValueError: not kvquilt's, of another version, or it contradicts itself.
    """
    if not metadata or metadata.get(VERSION_KEY) != _VERSION:
        raise ValueError("its schema is not one that holds KV of this version")
    try:
        fields: dict[str, Any] = json.loads(metadata[HEADER_KEY])
        return ChunkHeader(**{**fields, "token_ids": tuple(fields["token_ids"])})
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"its header is not valid: {error}") from None
