"""A model that quotes: the token that follows ``t`` is mostly ``t + 1``, wherever ``t`` stands.

It is an ordinary tiny model otherwise, whose attention decides what is not quite certain: wrong KV tells in
every log-probability. Contexts of ascending runs are so what real answers find in real documents.
"""

from __future__ import annotations

import random
from typing import Any

import torch

from tests.oracles import VOCAB, tiny_model

FIRST, LAST = 3, VOCAB - 1


def quoting_model(family: str = "qwen2", seed: int = 0, certainty: float = 0.1, **changes: Any) -> Any:
    """``certainty``: how much more than the layers the last token decides."""
    model = tiny_model(family, seed, **changes)
    with torch.no_grad():
        embedding = model.model.embed_tokens.weight
        # a row of logits says to which token the hidden state is near: to the one in front of its own
        model.lm_head.weight.copy_(certainty * embedding.roll(1, 0) + 0.3 * model.lm_head.weight)
        embedding.mul_(6.0)
    return model


def ascending(draw: random.Random, num_tokens: int) -> tuple[int, ...]:
    """Runs of ascending ids, each of 3 to 20."""
    ids: list[int] = []
    while len(ids) < num_tokens:
        start = draw.randrange(FIRST, LAST - 20)
        ids += range(start, start + draw.randrange(3, 20))
    return tuple(ids[:num_tokens])
