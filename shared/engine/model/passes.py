"""One forward pass over slices of many branches. Shapes: R rows, E hidden size, V vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from shared.engine.attention import Lane, StepPlan
from shared.engine.backends import backend_for
from shared.engine.decoding.forest import draw_of, needs_logits
from shared.engine.decoding.sampling import Sampled, sample
from shared.engine.jobs import Blending, BranchWork
from shared.engine.kv.arrival import Patience
from shared.engine.model.model import LoadedModel
from shared.engine.model.rope import Rotation
from shared.engine.modes.blending import Blender
from shared.engine.modes.tempering import TemperingBackend
from shared.engine.scheduler import Slice
from shared.engine_config import EngineConfig


@dataclass(frozen=True, slots=True)
class Ended:
    """A work that has nothing pending any more. ``logits_V``: of its last row, where they are wanted;
    ``chosen``: its next token, where that is one draw."""

    work: BranchWork
    logits_V: torch.Tensor | None = None
    chosen: Sampled | None = None


class PassRunner:
    """Runs slices through the model together and moves their tokens from pending to computed."""

    def __init__(self, model: LoadedModel, config: EngineConfig) -> None:
        self._model = model
        rotation = Rotation(model.spec.rope, model.spec.device)
        self._backend = TemperingBackend(backend_for(config, model.spec), rotation, model.spec.device)
        self._blender = Blender(model, self._backend)
        if config.compile:
            model.compile()

    def run(self, slices: Sequence[Slice[BranchWork]], patience: Patience) -> list[Ended]:
        """The works that have nothing pending any more.

        Raises:
            GivenUp: a layer of a segment that is still arriving was not there in time. No token was moved.
        """
        if isinstance(slices[0].work.owner, Blending):
            blending = slices[0].work.owner
            blending.blend = self._blender.run(blending.branch, blending.placed, blending.ratio, patience)
            return [Ended(slices[0].work)]
        hidden_RE, lanes = self._forward(slices, patience)
        ended, wanted = [], []
        for piece, lane in zip(slices, lanes, strict=True):
            lane.branch.segment.length += lane.num_rows
            del lane.branch.pending[: lane.num_rows]
            if not lane.branch.pending and needs_logits(piece.work):
                wanted.append((piece.work, lane.start + lane.num_rows - 1))
            elif not lane.branch.pending:
                ended.append(Ended(piece.work))
        return ended + self._continued(hidden_RE, wanted)

    def _continued(self, hidden_RE: torch.Tensor, wanted: Sequence[tuple[BranchWork, int]]) -> list[Ended]:
        """Works whose row says what comes next. All that are drawn are drawn together."""
        if not wanted:
            return []
        logits_BV = self._model.logits(hidden_RE[[row for _, row in wanted]])
        draws = {b: draw for b, (work, _) in enumerate(wanted) if (draw := draw_of(work)) is not None}
        rows_BV = logits_BV if len(draws) == len(wanted) else logits_BV[list(draws)]
        chosen = dict(zip(draws, sample(rows_BV, list(draws.values())), strict=True)) if draws else {}
        return [Ended(work, logits_BV[b], chosen.get(b)) for b, (work, _) in enumerate(wanted)]

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
