"""A manifest as it lies on disk: JSON that carries a checksum over its own bytes."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import xxhash

from shared.kv_types import Manifest, ManifestChunk

_OPENING, _MIDDLE, _CLOSING = b'{"xxh3_64":"', b'","manifest":', b"}\n"


def encode(manifest: Manifest) -> bytes:
    """JSON with a checksum over the manifest's bytes in it."""
    body = json.dumps(asdict(manifest), separators=(",", ":")).encode()
    return _OPENING + _checksum(body) + _MIDDLE + body + _CLOSING


def decode(data: bytes) -> Manifest:
    """
    Raises:
        ValueError: the bytes are not those that were written, or not by this version.
    """
    start = len(_OPENING) + 16 + len(_MIDDLE)
    body = data[start : -len(_CLOSING)]
    if data != _OPENING + _checksum(body) + _MIDDLE + body + _CLOSING:
        raise ValueError("it fails its checksum")
    fields: dict[str, Any] = json.loads(body)
    try:
        chunks = tuple(ManifestChunk(**{**c, "token_ids": tuple(c["token_ids"])}) for c in fields["chunks"])
        return Manifest(**{**fields, "prefix_ids": tuple(fields["prefix_ids"]), "chunks": chunks})
    except (KeyError, TypeError) as error:
        raise ValueError(f"another version of this program wrote it: {error}") from None


def _checksum(body: bytes) -> bytes:
    return f"{xxhash.xxh3_64_intdigest(body):016x}".encode()
