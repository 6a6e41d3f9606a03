"""One forward pass over slices of many branches. Shapes: R rows, E hidden size, V vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from shared.engine.attention import Lane, StepPlan
from shared.engine.backends import backend_for
from shared.engine.decoding.sampling import sample
from shared.engine.jobs.job import BranchWork, Computed
from shared.engine.kv.arrival import Patience
from shared.engine.model.model import LoadedModel
from shared.engine.scheduler import Slice
from shared.engine_config import EngineConfig

Ended = tuple[BranchWork, Computed]


class PassRunner:
    """Runs slices through the model together and moves their tokens from pending to computed."""

    def __init__(self, model: LoadedModel, config: EngineConfig) -> None:
        self._model = model
        self._backend = backend_for(config, model.spec)
        if config.compile:
            model.compile()

    def run(self, slices: Sequence[Slice[BranchWork]], patience: Patience) -> list[Ended]:
        """The works that have nothing pending any more.

        Raises:
            GivenUp: a layer of a segment that is still arriving was not there in time. No token was moved.
            torch.OutOfMemoryError: nor was one.
        """
        if (own_pass := slices[0].work.own_pass) is not None:
            own_pass(self._model, self._backend, patience)
            return [(slices[0].work, Computed())]
        hidden_RE, lanes = self._forward(slices, patience)
        ended: list[Ended] = []
        wanted = []
        for piece, lane in zip(slices, lanes, strict=True):
            if lane.num_rows < len(lane.branch.pending):
                continue
            if piece.work.needs_logits:
                wanted.append((piece.work, lane.start + lane.num_rows - 1))
            else:
                ended.append((piece.work, Computed()))
        ended += self._continued(hidden_RE, wanted)
        for lane in lanes:  # when nothing can fail any more
            lane.advance()
        return ended

    def _continued(self, hidden_RE: torch.Tensor, wanted: Sequence[tuple[BranchWork, int]]) -> list[Ended]:
        """Works whose row says what comes next. All that are drawn are drawn together."""
        if not wanted:
            return []
        logits_BV = self._model.logits(hidden_RE[[row for _, row in wanted]])
        draws = {b: draw for b, (work, _) in enumerate(wanted) if (draw := work.draw) is not None}
        rows_BV = logits_BV if len(draws) == len(wanted) else logits_BV[list(draws)]
        chosen = dict(zip(draws, sample(rows_BV, list(draws.values())), strict=True)) if draws else {}
        return [(work, Computed(logits_BV[b], chosen.get(b))) for b, (work, _) in enumerate(wanted)]

    def _forward(
        self, slices: Sequence[Slice[BranchWork]], patience: Patience
    ) -> tuple[torch.Tensor, list[Lane]]:
        lanes: list[Lane] = []
        num_rows = 0
        for piece in slices:
            piece.work.branch.segment.reserve(piece.num_rows)
            lanes.append(Lane(piece.work.branch, num_rows, piece.num_rows, piece.work.adapter))
            num_rows += piece.num_rows
        return self._model.forward(StepPlan(lanes, self._backend, patience)), lanes
