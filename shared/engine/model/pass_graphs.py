"""Passes of few rows as CUDA graphs: a GPU is told of all their kernels at once.

A pass of a 7B model is 28 times some twenty small kernels, and Python takes longer to launch them than the
GPU to run them. Recorded, one launch is left. A recording goes for all passes of its form: rows and tables
are padded to sizes of few kinds (``Tables.padded``), and what changes from step to step, tokens, positions,
addresses of segments, is in tables that are written in place. So a segment may grow, and move, and others
may come: that is another table, not another recording.

The first pass of a form runs unrecorded, so that kernels are compiled and libraries have what they need; the
second one is recorded. Shapes: R rows, B of them with logits, E hidden size, V vocabulary.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shared.engine.attention import Lane
from shared.engine.backends.tables import Tables, TableSizes, Tiling
from shared.engine.device_arrays import DeviceArrays
from shared.engine.kv.arrival import Patience
from shared.engine.model.adapting import AdaptedRows
from shared.engine.model.model import LoadedModel
from shared.engine.model.rope import Angles

log = logging.getLogger(__name__)

MOST_ROWS = 512
"""Of a pass that is recorded: with more, the kernels take longer than their launches."""
_MOST_GRAPHS = 48

Body = Callable[[], Tensor]
Record = Callable[[Body], Body]


class GraphAttention(Protocol):
    def run(self, layer: int, q_HRD: Tensor, k_KRD: Tensor, v_KRD: Tensor, scale: float) -> Tensor: ...
    def take(self, tables: Tables) -> None: ...
    def forget_slots(self) -> None: ...


@runtime_checkable
class GraphBackend(Protocol):
    """``TritonBackend``: all that changes between two steps of one form is in its tables."""

    @property
    def fixed(self) -> bool: ...
    def tables(self, lanes: Sequence[Lane]) -> Tables: ...
    def attention(self, tables: Tables) -> GraphAttention: ...
    def angles(self, tables: Tables) -> Angles: ...


@dataclass(frozen=True, slots=True)
class Form:
    """What a recording is for. ``num_angles``: when these grow they are other tensors."""

    sizes: TableSizes
    num_logits: int
    tiling: Tiling
    excludes: bool
    num_angles: int


class PassGraphs:
    """``record``: makes of a body one that does the same again, and returns the same tensor."""

    def __init__(self, model: LoadedModel, backend: GraphBackend, record: Record) -> None:
        self._model = model
        self._backend = backend
        self._record = record
        self._passes: OrderedDict[Form, _GraphPass] = OrderedDict()
        self._broken = False

    def logits(self, lanes: Sequence[Lane], rows: Sequence[int], patience: Patience) -> Tensor | None:
        """Runs the lanes' rows through the model. Returns the logits [B, V] of some of them, in float32,
        until the next call; None: this pass is none for a graph, and nothing was done. Segments that arrive
        are waited for as a whole: one pass of few rows takes less than it could gain layer by layer.

        Raises:
            GivenUp: one was not there in time. Nothing was done.
        """
        num_rows = sum(lane.num_rows for lane in lanes)
        if self._broken or num_rows > MOST_ROWS or any(lane.adapter or lane.branch.probe for lane in lanes):
            return None
        if self._backend.fixed and _more_rows(num_rows) != num_rows:
            return None  # a product with more rows may round elsewhere
        tables = self._backend.tables(lanes)
        for arrival in [a for piece in tables.pieces if (a := piece.segment.arrival) and not a.settled]:
            for layer in range(self._model.spec.num_layers):
                arrival.wait_for(layer, patience)
        form = _form_of(tables, len(rows), len(self._backend.angles(tables)[0]))
        one = self._passes.get(form)
        if one is None:
            one = self._passes[form] = _GraphPass(self._model, self._backend, tables, form)
        self._passes.move_to_end(form)
        while len(self._passes) > _MOST_GRAPHS:
            self._passes.popitem(last=False)
        token_ids = [t for lane in lanes for t in lane.branch.pending[: lane.num_rows]]
        one.take(tables, token_ids, rows)
        return one.compute(self._recorded)[: len(rows)]

    def _recorded(self, body: Body) -> Body:
        """Where recording fails, nothing is ever recorded again, and passes run as they do without."""
        try:
            return self._record(body)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # whatever a driver may raise
            log.exception("a pass cannot be recorded as a CUDA graph; the engine goes on without, slower")
            self._broken = True
            return body


class _GraphPass:
    """A pass of one form (a ``ModelPass``)."""

    adapted: Sequence[AdaptedRows] = ()

    def __init__(self, model: LoadedModel, backend: GraphBackend, tables: Tables, form: Form) -> None:
        self._model, self._form = model, form
        self._attention = backend.attention(tables.padded(form.sizes))
        self._numbers = DeviceArrays(self._arrays((), ()), model.spec.device)
        self.token_ids, self._rows = self._numbers.tensors
        self._num_runs = 0
        self._again: Body | None = None

    def take(self, tables: Tables, token_ids: Sequence[int], rows: Sequence[int]) -> None:
        self._attention.take(tables.padded(self._form.sizes))
        self._numbers.write(self._arrays(token_ids, rows))

    def run(self, layer: int, q_HRD: Tensor, k_KRD: Tensor, v_KRD: Tensor, scale: float) -> Tensor:
        return self._attention.run(layer, q_HRD, k_KRD, v_KRD, scale)

    def compute(self, record: Record) -> Tensor:
        """Logits, or what else there is where none are wanted."""
        self._num_runs += 1
        if self._num_runs == 1:
            return self._body()
        if self._again is None:
            self._again = record(self._body)
        return self._again()

    def _body(self) -> Tensor:
        hidden_RE = self._model.forward(self)
        self._attention.forget_slots()
        return self._model.logits(hidden_RE.index_select(0, self._rows)) if len(self._rows) else hidden_RE

    def _arrays(self, token_ids: Sequence[int], rows: Sequence[int]) -> list[NDArray[np.int64]]:
        arrays = []
        for values, length in ((token_ids, self._form.sizes.num_rows), (rows, self._form.num_logits)):
            array = np.zeros(length, np.int64)
            array[: len(values)] = values
            arrays.append(array)
        return arrays


def _form_of(tables: Tables, num_logits: int, num_angles: int) -> Form:
    sizes = tables.sizes
    padded = TableSizes(
        _more_rows(sizes.num_rows),
        _power(sizes.num_items, 32),
        _power(sizes.num_looks, 64),
        _power(sizes.num_slots, 64),
        _power(sizes.num_pieces, 32),
    )
    return Form(padded, num_logits and _power(num_logits, 1), tables.tiling, tables.excludes, num_angles)


def _more_rows(num_rows: int) -> int:
    """A power of two, or from 8 on what is half way between two."""
    power = _power(num_rows, 1)
    return power * 3 // 4 if power > 8 and num_rows <= power * 3 // 4 else power


def _power(number: int, least: int) -> int:
    """Of two, and not less than either."""
    return max(least, 1 << (number - 1).bit_length())


class CudaRecorder:
    """Records on a stream of its own. All graphs have one memory: they never run beside each other."""

    def __init__(self, device: torch.device) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def __call__(self, body: Body) -> Body:
        graph = torch.cuda.CUDAGraph()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            # other threads may load KV meanwhile
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                out = body()
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(self._stream)

        def again() -> Tensor:
            graph.replay()
            return out

        return again
