"""``tokens``: those that the caller lists, for all questions or for each."""

from __future__ import annotations

from shared.engine.modes.policy import Policy
from shared.generation.asked import GenerateRequest


class Listed(Policy):
    def choose(self, request: GenerateRequest, num_layers: int) -> tuple[int, ...]:
        return tuple(sorted(set().union(*request.recompute.sets)))


POLICY = Listed()
