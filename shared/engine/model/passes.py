"""One forward pass over slices of many branches. Shapes: R rows, E hidden size, V vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import torch

from shared.engine.attention import Lane, StepPlan
from shared.engine.backends import backend_for
from shared.engine.decoding.draws import RowOutcome, Wanted
from shared.engine.decoding.sampling import outcomes
from shared.engine.device_arrays import integers
from shared.engine.jobs.job import BranchWork, Computed
from shared.engine.kv.arrival import Patience
from shared.engine.model.model import LoadedModel
from shared.engine.model.out_of_memory import told_alike
from shared.engine.model.pass_graphs import (
    CudaGates,
    CudaRecorder,
    GraphBackend,
    LayerGates,
    PassGraphs,
    Record,
    can_be_recorded,
)
from shared.engine.scheduler import Slice
from shared.engine_config import EngineConfig
from shared.errors import ConfigError

Ended = tuple[Slice[BranchWork], list[Computed]]
"""A slice whose work has nothing pending any more, and what came of its last token and of each of its
draft's."""


class PassRunner:
    """Runs slices through the model together and moves their tokens from pending to computed."""

    def __init__(
        self,
        model: LoadedModel,
        config: EngineConfig,
        record: Record | None = None,
        gates: LayerGates | None = None,
    ) -> None:
        """``record``, ``gates``: of passes (``PassGraphs``); None: where there is a GPU, as CUDA graphs, if
        so configured.

        Raises:
            ConfigError: the model has other weights, or its device or processor is not one for the backend.
        """
        if config.weights == "int8" and model.weights != "int8":
            raise ConfigError("engine.weights: int8, but the model was loaded with exact weights")
        self._model = model
        self._backend = backend_for(config, model.spec)
        if config.compile:
            model.compile()
        self._graphs: PassGraphs | None = None
        if isinstance(self._backend, GraphBackend) and can_be_recorded(model.hf_model.config):
            if record is None and config.cuda_graphs and model.spec.device.type == "cuda":
                record = CudaRecorder(model.spec.device)
                gates = CudaGates(model.spec.device, model.spec.num_layers)
            self._graphs = record and PassGraphs(model, self._backend, record, gates)

    def run(self, slices: Sequence[Slice[BranchWork]], patience: Patience) -> list[Ended]:
        """The slices whose works have nothing pending any more.

        Raises:
            GivenUp: a layer of a segment that is still arriving was not there in time. No token was moved.
            torch.OutOfMemoryError: nor was one.
        """
        with told_alike():
            return self._run(slices, patience)

    def _run(self, slices: Sequence[Slice[BranchWork]], patience: Patience) -> list[Ended]:
        if (own_pass := slices[0].work.own_pass) is not None:
            own_pass(self._model, self._backend, patience)
            return [(slices[0], [Computed()])]
        lanes = _lanes(slices)
        ended: list[Ended] = []
        wanted: list[Slice[BranchWork]] = []
        rows: list[int] = []
        for piece, lane in zip(slices, lanes, strict=True):
            if piece.num_rows < len(lane.branch.pending):
                continue
            if piece.work.needs_logits:
                wanted.append(piece)
                rows += range(lane.start + lane.num_pending - 1, lane.rows.stop)
            else:
                ended.append((piece, [Computed()]))
        logits_BV = self._logits(lanes, rows, patience)
        ended += _continued(logits_BV, wanted)
        for lane in lanes:  # when nothing can fail any more
            lane.advance()
        return ended

    def _logits(self, lanes: Sequence[Lane], rows: Sequence[int], patience: Patience) -> torch.Tensor:
        """Runs all rows. Returns the logits of these."""
        if self._graphs is not None:
            logits_BV = self._graphs.logits(lanes, rows, patience)
            if logits_BV is not None:
                return logits_BV
        hidden_RE = self._model.forward(StepPlan(lanes, self._backend, patience))
        if not rows:
            return hidden_RE[:0]
        if len(rows) < len(hidden_RE):
            hidden_RE = hidden_RE[integers(rows, self._model.spec.device)]
        return self._model.logits(hidden_RE)


def _lanes(slices: Sequence[Slice[BranchWork]]) -> list[Lane]:
    """One behind the other, with room for their tokens."""
    lanes: list[Lane] = []
    num_rows = 0
    for piece in slices:
        count = piece.num_rows + len(piece.draft)
        piece.work.branch.segment.reserve(count)
        lanes.append(Lane(piece.work.branch, num_rows, count, piece.work.adapter, piece.draft))
        num_rows += count
    return lanes


def _continued(logits_BV: torch.Tensor, slices: Sequence[Slice[BranchWork]]) -> list[Ended]:
    """Slices whose rows say what comes next. All that is wanted of them is worked out together."""
    wanted = [one for piece in slices for one in _wanted(piece)]
    asked = [b for b, one in enumerate(wanted) if one.anything]
    rows_BV = logits_BV
    if len(asked) < len(wanted):
        rows_BV = logits_BV[integers(asked, logits_BV.device)]
    found = dict(zip(asked, outcomes(rows_BV, [wanted[b] for b in asked]), strict=True)) if asked else {}
    computed = (Computed(logits_BV[b], found.get(b, RowOutcome())) for b in range(len(wanted)))
    return [(piece, list(islice(computed, 1 + len(piece.draft)))) for piece in slices]


def _wanted(piece: Slice[BranchWork]) -> list[Wanted]:
    """Of the row of its last token and, if the draft is right so far, of those of the draft's."""
    wanted = piece.work.wanted
    if not piece.draft:
        return [wanted]
    (draw,) = wanted.draws
    states = [None] * len(piece.draft) if draw.grammar is None else draw.grammar.along(piece.draft)
    later = (
        replace(draw, position=draw.position + nth, grammar=state) for nth, state in enumerate(states, 1)
    )
    return [wanted, *(Wanted((one,)) for one in later)]
