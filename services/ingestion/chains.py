"""Says what the chunks of a document stand behind: to whoever computes their KV, once in a call, and to the
index, block by block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from services.ingestion.chunker import TextChunk
from shared.generation.pieces import Conditioned, Piece
from shared.identity import chunk_identity
from shared.kv_types import Manifest, ManifestChunk
from shared.search import Block


def with_parents(manifest: Manifest, indices: Sequence[int]) -> Iterator[tuple[int, bool]]:
    """Each of ``indices``, in their order, and whether its parent is among those before it."""
    before: set[str] = set()
    for index in indices:
        chunk = manifest.chunks[index]
        yield index, chunk.parent_id in before
        before.add(chunk.chunk_id)


def conditioned(manifest: Manifest, index: int) -> Piece:
    """The ids of a chunk, and of all that it is computed behind."""
    token_ids, links = manifest.chunks[index].token_ids, manifest.links_of(index)
    return Conditioned(token_ids, links) if links else token_ids


def pieces_of(manifest: Manifest, indices: Sequence[int]) -> list[Piece]:
    """The chunks' ids, with those of what they are computed behind, or with the parent that is among the
    pieces before them."""
    pieces: list[Piece] = []
    for index, parent_is_known in with_parents(manifest, indices):
        chunk = manifest.chunks[index]
        behind = Conditioned(chunk.token_ids, parent_id=chunk.parent_id)
        pieces.append(behind if parent_is_known else conditioned(manifest, index))
    return pieces


def blocks_of(manifest: Manifest) -> list[Block | None]:
    """Of each chunk the block that it is in; None: nothing of the document stands behind anything."""
    if not any(chunk.parent_id for chunk in manifest.chunks):
        return [None] * len(manifest.chunks)
    blocks: list[Block] = []
    for i, chunk in enumerate(manifest.chunks):
        if manifest.block_start(i) == i:
            number = blocks[-1].number + 1 if blocks else 1
            blocks.append(Block(number, chunk.heading, i + 1, bool(chunk.header_ids)))
        else:
            blocks.append(blocks[-1])
    return list(blocks)


def identified(
    of: tuple[str, str, tuple[int, ...]], chunks: Sequence[TextChunk]
) -> tuple[ManifestChunk, ...]:
    """A document's chunks, each with its identity and that of what it is computed behind. ``of``: whose
    they are (``shared.identity.kv_owner``), model's fingerprint, prefix."""
    found: list[ManifestChunk] = []
    parent_id = ""
    for chunk in chunks:
        if chunk.header is not None:
            parent_id = chunk_identity(*of, chunk.header) if chunk.header else ""
        chunk_id = chunk_identity(*of, chunk.token_ids, parent_id)
        found.append(
            ManifestChunk(
                chunk_id=chunk_id,
                token_ids=chunk.token_ids,
                char_start=chunk.start,
                char_end=chunk.end,
                text=chunk.text,
                heading=chunk.heading,
                parent_id=parent_id,
                header_ids=chunk.header or (),
            )
        )
        parent_id = chunk_id
    return tuple(found)
