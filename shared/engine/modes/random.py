"""``random``: any tokens, by seed. The control."""

from __future__ import annotations

import random

from shared.engine.modes.policy import Policy
from shared.engine.modes.token_selection import num_selected
from shared.generation.asked import GenerateRequest, total_len


class AtRandom(Policy):
    def choose(self, request: GenerateRequest, num_layers: int) -> tuple[int, ...]:
        num_tokens = total_len(request.chunks)
        return at_random(
            num_tokens, num_selected(request.recompute.ratio, num_tokens), request.recompute.seed
        )


def at_random(num_tokens: int, count: int, seed: int) -> tuple[int, ...]:
    """Equal chances for all."""
    return tuple(sorted(random.Random(seed).sample(range(num_tokens), count)))


POLICY = AtRandom()
