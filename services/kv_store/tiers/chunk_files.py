"""Looks whether a file is the chunk that it should be."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

from shared.errors import CorruptData, InvalidRequest, NewerFormat, NotFound
from shared.identity import chunk_identity, ids_hash
from shared.kv_format import ChunkHeader, ChunkSummary, SealKeys, inspect_chunk, seal_chunk, verify_chunk
from shared.kv_types import Origin


def verified(path: Path, chunk_id: str, keys: SealKeys | None = None) -> ChunkSummary:
    """Reads every byte of a chunk's file.

    Raises:
        NotFound, CorruptData, NewerFormat: it is not a whole file, another chunk's, or not sealed by
        ``keys``.
    """
    return _checked(verify_chunk(path, chunk_id, keys), chunk_id)


def sealed(path: Path, chunk_id: str, keys: SealKeys | None) -> ChunkSummary:
    """``verified`` of a file that comes in, and gives it a MAC of the current key where it has none, whether
    stored ones must have it or not. None: nothing is sealed here."""
    if keys is None:
        return verified(path, chunk_id)
    return _checked(seal_chunk(path, keys.for_new, chunk_id), chunk_id)


def _checked(summary: ChunkSummary, chunk_id: str) -> ChunkSummary:
    if summary.header.chunk_id != chunk_id:
        raise CorruptData(f"chunk {chunk_id}: the file holds another chunk")
    return summary


def check_identity(path: Path, chunk_id: str, owners: Collection[str], origin: Origin) -> None:
    """Looks whether the token ids, the model and the prefix that the file names make the identity that it is
    to be stored under, as KV of one of ``owners`` (``shared.identity.kv_owner``). That its KV was computed
    from them, nobody but the model can tell.

    Raises:
        NotFound, CorruptData, NewerFormat: it is not a whole file.
        InvalidRequest: they make another one.
    """
    header = inspect_chunk(path).header
    made_of = (header.model_fingerprint, origin.prefix_ids, header.token_ids, origin.parent_id)
    identities = {chunk_identity(owner, *made_of) for owner in owners}
    if header.prefix_hash != ids_hash(origin.prefix_ids) or chunk_id not in identities:
        raise InvalidRequest(
            f"chunk_id: {chunk_id} is not the identity of what the file holds; give tenant, prefix_ids and "
            "parent_id of the chunk as its document has them"
        )


def check_same(path: Path, chunk_id: str, stored: ChunkHeader | None) -> None:
    """Looks whether a file that says nothing of what its identity is made of holds the same as the one that
    is ``stored``, but in another encoding.

    Raises:
        NotFound, CorruptData, NewerFormat: it is not a whole file.
        InvalidRequest: nothing is stored, or something else.
    """
    header = inspect_chunk(path).header
    if stored is None or replace(stored, encoding=header.encoding) != header:
        raise InvalidRequest(
            f"origin: required for chunk {chunk_id}, of which no KV of the same tokens, model and prefix is "
            "stored; give prefix_ids and parent_id"
        )


def is_damaged(path: Path, chunk_id: str, keys: SealKeys | None = None) -> bool:
    """Reads every byte. One of a later version is not damaged, nor is one that is not there."""
    try:
        verified(path, chunk_id, keys)
    except CorruptData:
        return True
    except (NotFound, NewerFormat):
        pass
    return False


def is_newer(inspect: Callable[[], object]) -> bool:
    """Whether a later version of the format wrote what ``inspect`` looks at."""
    try:
        inspect()
    except NewerFormat:
        return True
    except (NotFound, CorruptData):
        pass
    return False
