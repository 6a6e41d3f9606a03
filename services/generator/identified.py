"""Gives the chunks of a request their identities, and those that they are computed behind.

The generator derives every identity itself, from ids and from the identity of the chunk in front, and trusts
none: what a caller says of a parent that does not exist leads to KV that nobody has stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from services.generator.prompts import Prompts
from shared.errors import InvalidRequest
from shared.generation.asked import Chunk
from shared.generation.pieces import Conditioned, Piece
from shared.identity import TokenIds, chunk_identity
from shared.sharing import SharingScopes


class Identified(NamedTuple):
    """``links``: what some of ``chunks`` are computed behind."""

    chunks: tuple[Chunk, ...]
    links: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class Identities:
    """Of the chunks of one model, as its ``prompts`` make ids of them. ``scopes``: who shares KV with whom.
    Methods raise ``InvalidRequest``."""

    prompts: Prompts
    fingerprint: str
    scopes: SharingScopes = field(default_factory=SharingScopes)

    def of(
        self, tenant: str, prefix_ids: TokenIds, pieces: Sequence[Piece], chained: bool = False
    ) -> Identified:
        """``chained``: the pieces are one document's, in order, each computed behind those before it."""
        chunks: list[Chunk] = []
        links: list[Chunk] = []
        for i, (piece, ids) in enumerate(zip(pieces, self.prompts.chunks(pieces), strict=True)):
            parent_id = self._behind(tenant, prefix_ids, f"chunks[{i}]", piece, links)
            if chained and i:
                if parent_id:
                    raise InvalidRequest(
                        f"chunks[{i}]: has a context of its own, and is chained to the chunk before it; "
                        "leave one of them out"
                    )
                parent_id = chunks[-1].chunk_id
            chunks.append(self._chunk(tenant, prefix_ids, ids, parent_id))
        return Identified(tuple(chunks), tuple(dict.fromkeys(links)))

    def _behind(self, tenant: str, prefix_ids: TokenIds, field: str, piece: Piece, links: list[Chunk]) -> str:
        """Identity of what is in front of a piece; its context is added to ``links``."""
        if not isinstance(piece, Conditioned):
            return ""
        parent_id = piece.parent_id
        for ids in self.prompts.chunks(piece.context, f"{field}.context"):
            links.append(self._chunk(tenant, prefix_ids, ids, parent_id))
            parent_id = links[-1].chunk_id
        return parent_id

    def _chunk(self, tenant: str, prefix_ids: TokenIds, ids: TokenIds, parent_id: str) -> Chunk:
        of = (self.scopes.owner(tenant), self.fingerprint, prefix_ids, ids)
        isolated_id = chunk_identity(*of)
        if not parent_id:
            return Chunk(isolated_id, ids)
        chunk_id = chunk_identity(*of, parent_id)
        return Chunk(chunk_id, ids, parent_id, isolated_id)
