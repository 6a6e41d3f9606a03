"""Tokens of a placed segment that a request does not see, because it holds them recomputed in a private
segment.

Shapes: L layers, T tokens, W = ceil(T / 32) words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shared.engine.device_arrays import brought

_BITS = 32


@dataclass(frozen=True, slots=True, eq=False)
class Excluded:
    """One placement's exclusions, a bit per layer and token: bit ``t % 32`` of ``words_LW[layer, t // 32]``
    set means that token ``t`` is not seen. int32, contiguous, on the device of the segment. Backends read a
    layer's words when they run that layer."""

    words_LW: Tensor

    @classmethod
    def of(cls, hidden_LT: Tensor) -> Excluded:
        """From booleans, True where a token is not seen."""
        num_layers, num_tokens = hidden_LT.shape
        padded_LT = torch.nn.functional.pad(hidden_LT, (0, -num_tokens % _BITS)).long()
        shifts = torch.arange(_BITS, device=hidden_LT.device)
        return cls((padded_LT.view(num_layers, -1, _BITS) << shifts).sum(-1).to(torch.int32).contiguous())

    @classmethod
    def in_all_layers(
        cls, hidden: Sequence[NDArray[np.bool_]], num_layers: int, device: torch.device
    ) -> list[Excluded | None]:
        """Of several placements, each the same in every layer; None where nothing is hidden. They go to the
        device together."""
        if not any(hidden_T.any() for hidden_T in hidden):
            return [None] * len(hidden)
        words = [_words(hidden_T) for hidden_T in hidden]
        some = [words_W for words_W in words if words_W.any()]
        all_words = brought(torch.from_numpy(np.concatenate([np.tile(w, num_layers) for w in some])), device)
        parts = iter(all_words.split([num_layers * len(words_W) for words_W in some]))  # type: ignore[no-untyped-call]
        return [cls(next(parts).view(num_layers, -1)) if words_W.any() else None for words_W in words]

    @classmethod
    def none(cls, num_layers: int, num_tokens: int, device: torch.device) -> Excluded:
        """To be filled layer by layer, by ``set``."""
        return cls(torch.zeros(num_layers, -(-num_tokens // _BITS), dtype=torch.int32, device=device))

    def set(self, layer: int, hidden_T: Tensor) -> None:
        """Only while no step is planned or done that reads this layer."""
        self.words_LW[layer] = Excluded.of(hidden_T[None].to(self.words_LW.device)).words_LW[0]

    def hidden(self, layer: int, begin: int, end: int) -> Tensor:
        """Booleans [end - begin] of tokens [begin, end), True where a token is not seen."""
        words_W = self.words_LW[layer, begin // _BITS : -(-end // _BITS)]
        bits_T = (words_W[:, None] >> torch.arange(_BITS, device=words_W.device)).bitwise_and_(1).view(-1)
        return bits_T[begin % _BITS :][: end - begin].bool()


def _words(hidden_T: NDArray[np.bool_]) -> NDArray[np.int32]:
    bits = np.packbits(hidden_T, bitorder="little")
    words_W = np.zeros(-(-len(hidden_T) // _BITS), np.dtype("<i4"))
    words_W.view(np.uint8)[: len(bits)] = bits
    return words_W
