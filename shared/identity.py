"""Identity of a chunk's KV: what it was computed from, and nothing else.

Chunks that are computed behind others of their document form a Merkle chain: a chunk's identity covers that
of the chunk in front of it, and so everything it was computed behind. The encoding is not part of it (one
text is stored once, and a store may hold mixed encodings), nor is the document's name.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from pathlib import Path

TokenIds = tuple[int, ...]


def ids_hash(token_ids: Sequence[int]) -> str:
    """Hash of a run of token ids: 32 hex digits."""
    return hashlib.blake2b(_ids_bytes(token_ids), digest_size=16).hexdigest()


def kv_owner(tenant: str, scope: str = "") -> str:
    """Whose the KV of a tenant's chunks is: its own or, if it shares, its scope's. No tenant is called like
    a scope's."""
    return f"scope/{scope}" if scope else tenant


def chunk_identity(
    owner: str,
    model_fingerprint: str,
    prefix_ids: Sequence[int],
    token_ids: Sequence[int],
    parent_id: str = "",
) -> str:
    """Identity of the KV of ``token_ids`` behind ``prefix_ids`` and the chain that ends with the chunk
    ``parent_id`` (empty: behind the prefix alone): 40 hex digits. ``owner``: whose it is (``kv_owner``)."""
    made_of = [owner.encode(), model_fingerprint.encode(), _ids_bytes(prefix_ids), _ids_bytes(token_ids)]
    if parent_id:
        made_of.append(parent_id.encode())
    return digest(*made_of, size=20, person=b"kvquilt-chunk")


def adapter_identity(directory: str) -> str:
    """Identity of a request-side adapter, by what its files hold: 32 hex digits."""
    files = (Path(directory) / name for name in ("adapter_config.json", "adapter_model.safetensors"))
    return digest(*(path.read_bytes() if path.is_file() else b"" for path in files))


def digest(*parts: bytes, size: int = 16, person: bytes = b"") -> str:
    """Hash of ``parts`` and of where each ends: twice ``size`` hex digits."""
    h = hashlib.blake2b(digest_size=size, person=person)
    for part in parts:
        h.update(len(part).to_bytes(8, "little"))
        h.update(part)
    return h.hexdigest()


def _ids_bytes(token_ids: Sequence[int]) -> bytes:
    packed = array("I", token_ids)
    if packed.itemsize != 4:
        raise AssertionError("token ids are hashed as 32-bit integers")
    return packed.tobytes()
