"""``ape``: chunks side by side, weighed with a temperature and a scale of their own (``Tempering``)."""

from __future__ import annotations

from shared.engine.kv.branch import Tempering
from shared.engine.modes.policy import Policy
from shared.generation.asked import GenerateRequest


class Weighed(Policy):
    def tempering(self, request: GenerateRequest) -> Tempering | None:
        if not request.chunks:
            return None
        ape = request.ape
        return Tempering(int(bool(request.prefix_ids)), len(request.chunks), ape.temperature, ape.scale)


POLICY = Weighed()
