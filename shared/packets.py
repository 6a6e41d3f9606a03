"""Says by which token ids soft-token packets (KV Packet, arXiv 2604.13226) are called: trained vectors that
stand in front of and behind every chunk, in place of embedded tokens. Reads what is known of a folder of
them.

Their ids lie beyond the model's vocabulary, so that a chunk with its packets is a run of ids like any other::

    ids      [0 ... vocabulary)[header][trailer)
    a chunk  [header][its text][trailer]

Torch-free; the vectors are in ``shared.engine.model.packets``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shared.config import load
from shared.errors import ConfigError
from shared.identity import TokenIds
from shared.kv_types import KvContext

FACTS = "quilt.packets.json"


@dataclass(frozen=True, slots=True)
class PacketIds:
    """``first``: the id of the first header vector, which is the size of the vocabulary."""

    first: int
    num_header: int
    num_trailer: int

    def __str__(self) -> str:
        return f"{self.num_header} + {self.num_trailer} vectors per chunk"

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


@dataclass(frozen=True, slots=True)
class PacketFacts:
    """
    fingerprint: of the model that they were trained on, without packets. vocab_size: of that model.
    num_header, num_trailer: vectors. base: the model's name, for readers. kv_context: what the chunks stood
    behind. recipe: settings of the training, for readers.
    """

    fingerprint: str
    vocab_size: int
    num_header: int
    num_trailer: int
    base: str = ""
    kv_context: KvContext = KvContext.NONE
    recipe: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("vocab_size", "num_header", "num_trailer"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: must be at least 0, got {getattr(self, name)}")

    @property
    def ids(self) -> PacketIds:
        return PacketIds(self.vocab_size, self.num_header, self.num_trailer)


def read_facts(directory: Path) -> PacketFacts:
    """
    Raises:
        ConfigError: there are no packets, or their file says something else; names the field.
    """
    try:
        values: Any = json.loads((directory / FACTS).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(
            f"packets: {directory / FACTS} is not there; name a folder that `kvquilt train packets` wrote"
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"packets: {directory / FACTS} cannot be read as JSON: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"packets: {directory / FACTS}: expected an object")
    return load(PacketFacts, values, f"packets: {FACTS}: ")
