"""One forward pass over slices of many branches. Shapes: R rows, E hidden size, V vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from shared.engine.attention import Lane, StepPlan
from shared.engine.backends import backend_for
from shared.engine.decoding.forest import needs_logits
from shared.engine.jobs import Blending, BranchWork
from shared.engine.kv.arrival import Patience
from shared.engine.model.model import LoadedModel
from shared.engine.model.rope import Rotation
from shared.engine.modes.blending import Blender
from shared.engine.modes.tempering import TemperingBackend
from shared.engine.scheduler import Slice
from shared.engine_config import EngineConfig


class PassRunner:
    """Runs slices through the model together and moves their tokens from pending to computed."""

    def __init__(self, model: LoadedModel, config: EngineConfig) -> None:
        self._model = model
        rotation = Rotation(model.spec.rope, model.spec.device)
        self._backend = TemperingBackend(backend_for(config, model.spec), rotation, model.spec.device)
        self._blender = Blender(model, self._backend)
        if config.compile:
            model.compile()

    def run(
        self, slices: Sequence[Slice[BranchWork]], patience: Patience
    ) -> list[tuple[BranchWork, torch.Tensor | None]]:
        """The works that have nothing pending any more, with the logits [V] of their last row where those are
        wanted.

        Raises:
            GivenUp: a layer of a segment that is still arriving was not there in time. No token was moved.
        """
        if isinstance(slices[0].work.owner, Blending):
            blending = slices[0].work.owner
            blending.blend = self._blender.run(blending.branch, blending.placed, blending.ratio, patience)
            return [(slices[0].work, None)]
        hidden_RE, lanes = self._forward(slices, patience)
        ended = []
        for piece, lane in zip(slices, lanes, strict=True):
            lane.branch.segment.length += lane.num_rows
            del lane.branch.pending[: lane.num_rows]
            if not lane.branch.pending:
                ended.append((piece.work, lane.start + lane.num_rows - 1))
        rows = [row for work, row in ended if needs_logits(work)]
        logits_RV = iter(self._model.logits(hidden_RE[rows])) if rows else iter(())
        return [(work, next(logits_RV) if needs_logits(work) else None) for work, _ in ended]

    def _forward(
        self, slices: Sequence[Slice[BranchWork]], patience: Patience
    ) -> tuple[torch.Tensor, list[Lane]]:
        device = self._model.spec.device
        lanes: list[Lane] = []
        ids: list[int] = []
        for piece in slices:
            branch = piece.work.branch
            branch.segment.reserve(piece.num_rows)
            lanes.append(Lane(branch, len(ids), piece.num_rows))
            ids += branch.pending[: piece.num_rows]
        plan = StepPlan(lanes, self._backend, patience)
        return self._model.forward(torch.tensor(ids, device=device), plan), lanes
