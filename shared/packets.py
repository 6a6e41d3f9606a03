"""Says by which token ids soft-token packets (KV Packet, arXiv 2604.13226) are called: trained vectors that
stand in front of and behind every chunk, in place of embedded tokens.

Their ids lie beyond the model's vocabulary, so that a chunk with its packets is a run of ids like any other::

    ids      [0 ... vocabulary)[header][trailer)
    a chunk  [header][its text][trailer]

Torch-free; the vectors are in ``shared.engine.model.packets``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shared.identity import TokenIds


@dataclass(frozen=True, slots=True)
class PacketIds:
    """``first``: the id of the first header vector, which is the size of the vocabulary."""

    first: int
    num_header: int
    num_trailer: int

    def __len__(self) -> int:
        return self.num_header + self.num_trailer

    def around(self, token_ids: Sequence[int]) -> TokenIds:
        """The chunk between its packets; one that has them already stays as it is."""
        trailer = self.first + self.num_header
        return (
            *range(self.first, trailer),
            *self.plain(token_ids),
            *range(trailer, trailer + self.num_trailer),
        )

    def plain(self, token_ids: Sequence[int]) -> TokenIds:
        """The chunk without packets."""
        return tuple(token for token in token_ids if token < self.first)
