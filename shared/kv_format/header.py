"""What a chunk's file says about itself: the metadata of its Arrow schema."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from shared.identity import ids_hash

FORMAT_VERSION = 1
VERSION_KEY = b"kvquilt.format_version"
HEADER_KEY = b"kvquilt.chunk"
LAYER_CHECKSUMS_KEY = b"kvquilt.layer_xxh3_64"
ITEM_SIZES = {"bfloat16": 2, "float16": 2, "float32": 4}
ENCODINGS = ("exact",)


@dataclass(frozen=True, slots=True)
class ChunkHeader:
    """What the KV was computed from, and its shape: K and V of each layer are [num_kv_heads, num_tokens, head_dim].

    Keys stand rotated at local positions 0, 1, 2, … (``encoding`` "exact": usable as read). ``rope`` describes the rotation in
    the model's own words and is only compared. ``prefix_hash`` and ``ids_hash`` are ``shared.identity.ids_hash`` of the shared
    prefix and of ``token_ids``.

    Raises:
        ValueError: names the field that contradicts the others.
    """

    chunk_id: str
    model_fingerprint: str
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
        for name in ("num_layers", "num_kv_heads", "num_tokens", "head_dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: must be at least 1, got {getattr(self, name)}")
        if self.dtype not in ITEM_SIZES:
            raise ValueError(f"dtype: {self.dtype!r} is not one of {', '.join(ITEM_SIZES)}")
        if self.encoding not in ENCODINGS:
            raise ValueError(f"encoding: {self.encoding!r} is not known")
        if len(self.token_ids) != self.num_tokens:
            raise ValueError(f"num_tokens: {self.num_tokens}, but there are {len(self.token_ids)} token ids")
        if ids_hash(self.token_ids) != self.ids_hash:
            raise ValueError("ids_hash: is not the hash of token_ids")

    @property
    def row_bytes(self) -> int:
        """Bytes of one head of K (or of V) of one layer."""
        return self.num_tokens * self.head_dim * ITEM_SIZES[self.dtype]

    @property
    def tensor_bytes(self) -> int:
        """Bytes of K (or of V) of one layer."""
        return self.num_kv_heads * self.row_bytes


def to_metadata(header: ChunkHeader, layer_checksums: Sequence[int]) -> dict[bytes, bytes]:
    return {
        VERSION_KEY: str(FORMAT_VERSION).encode(),
        HEADER_KEY: json.dumps(asdict(header), separators=(",", ":")).encode(),
        LAYER_CHECKSUMS_KEY: " ".join(f"{c:016x}" for c in layer_checksums).encode(),
    }


def from_metadata(metadata: Mapping[bytes, bytes] | None) -> tuple[ChunkHeader, tuple[int, ...]]:
    """Header and the checksums of the layers.

    Raises:
        ValueError: not kvquilt's, newer than this program, or it contradicts itself.
    """
    if not metadata or VERSION_KEY not in metadata:
        raise ValueError("an Arrow file, but not one that holds KV")
    if metadata[VERSION_KEY] != str(FORMAT_VERSION).encode():
        version = metadata[VERSION_KEY].decode(errors="replace")[:20]
        raise ValueError(f"format version {version}, but this program reads {FORMAT_VERSION} only")
    try:
        fields: dict[str, Any] = json.loads(metadata[HEADER_KEY])
        header = ChunkHeader(**{**fields, "token_ids": tuple(fields["token_ids"])})
        checksums = tuple(int(c, 16) for c in metadata[LAYER_CHECKSUMS_KEY].split())
        if len(checksums) != header.num_layers:
            raise ValueError(f"{len(checksums)} checksums for {header.num_layers} layers")
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"its header is not valid: {error}") from None
    return header, checksums
