"""Gives just computed KV the values that it would be read with once it was stored, without storing it."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from shared.engine.kv.encodings import encoding_of
from shared.engine.kv.source import NoSource
from shared.engine.model.rope import RopeSpec
from shared.stored_segments.files import Scratch, encode_layers


class EncodedSource(NoSource):
    """Has nothing stored: what is computed is encoded and decoded, and stays in the engine."""

    def __init__(self, encoding: str, rope: RopeSpec) -> None:
        self.encoding = encoding
        self._scratch = Scratch(rope)

    def as_stored(self, k_LHTD: Sequence[Tensor], v_LHTD: Sequence[Tensor], saved: bool = True) -> None:
        layers = encode_layers(self.encoding, k_LHTD, v_LHTD, self._scratch)
        rotation = self._scratch.rotation(k_LHTD[0].device)
        for buffers, k_HTD, v_HTD in zip(layers, k_LHTD, v_LHTD, strict=True):
            encoding_of(self.encoding).decode(buffers, rotation, k_HTD, v_HTD)
