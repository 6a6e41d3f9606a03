"""Passes of few rows as CUDA graphs: a GPU is told of all their kernels at once.

A pass of a 7B model is 28 times some twenty small kernels, and Python takes longer to launch them than the
GPU to run them. Recorded, one launch is left. A recording goes for all passes of its form: rows and tables
are padded to sizes of few kinds (``Tables.padded``), and what changes from step to step, tokens, positions,
addresses of segments, is in tables that are written in place. So a segment may grow, and move, and others
may come: that is another table, not another recording.

The first pass of a form runs unrecorded, so that kernels are compiled and libraries have what they need; the
second one is recorded, and the recording compared with it. Shapes: R rows, B of them with logits, E hidden
size, V vocabulary.
"""

from __future__ import annotations

import logging
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shared.engine.attention import Lane
from shared.engine.backends.tables import Tables, TableSizes, Tiling
from shared.engine.device_arrays import DeviceArrays
from shared.engine.kv.arrival import Arrival, Copied, Patience
from shared.engine.kv.branch import Branch
from shared.engine.model.adapting import NOTHING_ADAPTED, AdaptedRows
from shared.engine.model.model import LoadedModel
from shared.engine.model.rope import Angles
from shared.engine.model.rounding import TOLERANCE, relative_error

log = logging.getLogger(__name__)

MOST_ROWS = 512
"""Of a pass that is recorded: with more, the kernels take longer than their launches."""
_MOST_GRAPHS = 48
# settings of models whose layers ask the host which experts there are rows for
_ROUTED = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")

Body = Callable[[], Tensor]
Record = Callable[[Body], Body]


class LayerGates(Protocol):
    """Copies that recorded passes wait for, layer by layer: which ones, is said before each run."""

    def wait(self, layer: int) -> None:
        """In a body: what it orders from here on comes behind the copies that this layer is open behind."""
        ...

    def open_behind(self, layer: int, copies: Sequence[Copied]) -> None:
        """For the runs that come."""
        ...


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
    """Kind of pass that a recording is for. ``num_angles``: when these grow they are other tensors."""

    sizes: TableSizes
    num_logits: int
    tiling: Tiling
    excludes: bool
    num_angles: int


def can_be_recorded(config: Any) -> bool:
    """``config``: of ``transformers``. False for a mixture of experts: what waits for the host cannot be
    recorded, and the attempt costs memory."""
    return not any(getattr(config, name, None) for name in _ROUTED)


class PassGraphs:
    """``record``: makes of a body one that does the same again, and returns the same tensor. ``gates``: by
    which it waits for copies of stored KV, layer by layer; None: it waits for all of them first."""

    def __init__(
        self, model: LoadedModel, backend: GraphBackend, record: Record, gates: LayerGates | None = None
    ) -> None:
        self._model = model
        self._backend = backend
        self._record = record
        self._gates = gates
        self._passes: OrderedDict[Form, _GraphPass] = OrderedDict()
        self._broken = False
        self._foreseen: tuple[list[object], Tables] | None = None  # state, tables without their pieces

    def logits(self, lanes: Sequence[Lane], rows: Sequence[int], patience: Patience) -> Tensor | None:
        """Runs the lanes' rows through the model. Returns the logits [B, V] of some of them, in float32,
        until the next call; None: this pass is none for a graph, and nothing was done. Of segments that
        arrive all layers have to be there, or their copies ordered, before it begins.

        Raises:
            GivenUp: one was not there in time. Nothing was done.
        """
        num_rows = sum(lane.num_rows for lane in lanes)
        if self._broken or num_rows > MOST_ROWS or any(lane.adapter or lane.branch.probe for lane in lanes):
            return None
        if self._backend.fixed and _more_rows(num_rows) != num_rows:
            return None  # a product with more rows may round elsewhere
        tables = self._foreseen_for(lanes) or self._backend.tables(lanes)
        arrivals = [a for piece in tables.pieces if (a := piece.segment.arrival) and not a.settled]
        for arrival in arrivals:
            for layer in reversed(range(self._model.spec.num_layers)):  # it wakes once, if all come in order
                arrival.wait_until_ordered(layer, patience)
        one = self._pass_for(tables, len(rows))
        token_ids = [t for lane in lanes for t in lane.token_ids]
        one.take(tables)
        self._order_behind(arrivals, one.is_recorded)
        logits_BV = one.compute(token_ids, rows, self._recorded)[: len(rows)]
        if not self._backend.fixed and all(lane.num_rows == len(lane.branch.pending) == 1 for lane in lanes):
            self._foresee(lanes, len(rows))
        return logits_BV

    def _order_behind(self, arrivals: Sequence[Arrival], is_recorded: bool) -> None:
        """The pass comes behind the copies: a recorded one layer by layer."""
        for layer in range(self._model.spec.num_layers if arrivals else 0):
            copies = [copied for arrival in arrivals if (copied := arrival.take_copied(layer)) is not None]
            if self._gates is not None and is_recorded:
                if copies:
                    self._gates.open_behind(layer, copies)
            else:
                for copied in copies:
                    copied.wait()

    def _pass_for(self, tables: Tables, num_logits: int) -> _GraphPass:
        form = _form_of(tables, num_logits, len(self._backend.angles(tables)[0]))
        if form not in self._passes:
            self._passes[form] = _GraphPass(self._model, self._backend, tables, form, self._gates)
        self._passes.move_to_end(form)
        while len(self._passes) > _MOST_GRAPHS:
            self._passes.popitem(last=False)
        return self._passes[form]

    def _foresee(self, lanes: Sequence[Lane], num_logits: int) -> None:
        """While the device computes, what the next step looks like if every branch goes on by one token: its
        tables are made, and on their way. Anything else is found out by ``_foreseen_for``."""
        segments = [lane.branch.segment for lane in lanes]
        for segment in segments:
            segment.length += 1
        try:
            for segment in segments:
                segment.reserve(1)
            tables = replace(self._backend.tables(lanes), pieces=())  # it holds nobody's KV
            self._foreseen = _state_of(lanes), tables
            self._pass_for(tables, num_logits).take(tables)
        except torch.OutOfMemoryError:
            self._foreseen = None  # it will be met where room can be made
        finally:
            for segment in segments:
                segment.length -= 1

    def _foreseen_for(self, lanes: Sequence[Lane]) -> Tables | None:
        foreseen, self._foreseen = self._foreseen, None
        return foreseen[1] if foreseen is not None and foreseen[0] == _state_of(lanes) else None

    def _recorded(self, body: Body) -> Body:
        """Records the pass. Where that fails, or a recording gives other logits than what it records, nothing
        is ever recorded again, and passes run as they do without."""
        try:
            expected = body().clone()
            again = self._record(body)
            if (error := relative_error(again(), expected)) <= TOLERANCE[self._model.spec.dtype]:
                return again
            log.error(
                "a CUDA graph is %.1e off the pass it records; the engine goes on without, slower", error
            )
        except torch.OutOfMemoryError:
            raise
        except Exception:  # whatever a driver may raise
            log.exception("a pass cannot be recorded as a CUDA graph; the engine goes on without, slower")
        self._broken = True
        return body


class _GraphPass:
    """A pass of one form (a ``ModelPass``)."""

    adapted: AdaptedRows = NOTHING_ADAPTED

    def __init__(
        self,
        model: LoadedModel,
        backend: GraphBackend,
        tables: Tables,
        form: Form,
        gates: LayerGates | None,
    ) -> None:
        self._model, self._form, self._gates = model, form, gates
        self._attention = backend.attention(tables.padded(form.sizes))
        self._foreseen: Tables | None = None
        self._numbers = DeviceArrays(self._arrays((), ()), model.spec.device)
        self.token_ids, self._rows = self._numbers.tensors
        self._num_runs = 0
        self._again: Body | None = None

    def take(self, tables: Tables) -> None:
        if tables is not self._foreseen:
            self._foreseen = None if tables.pieces else tables
            self._attention.take(tables.padded(self._form.sizes))

    @property
    def is_recorded(self) -> bool:
        """The next run is one of the recording."""
        return self._again is not None

    def run(self, layer: int, q_HRD: Tensor, k_KRD: Tensor, v_KRD: Tensor, scale: float) -> Tensor:
        if self._gates is not None:
            self._gates.wait(layer)
        return self._attention.run(layer, q_HRD, k_KRD, v_KRD, scale)

    def compute(self, token_ids: Sequence[int], rows: Sequence[int], record: Record) -> Tensor:
        """Of the tables that were taken last. Logits, or what else there is where none are wanted."""
        self._numbers.write(self._arrays(token_ids, rows))
        self._num_runs += 1
        if self._num_runs == 1:
            return self._body()
        if self._again is None:
            self._again = record(self._body)
        return self._again()

    def _body(self) -> Tensor:
        hidden_RE = self._model.forward(self)
        self._attention.forget_slots()
        if not len(self._rows):
            return hidden_RE[:1]  # what lies behind the rows is nobody's
        return self._model.logits(hidden_RE.index_select(0, self._rows))

    def _arrays(self, token_ids: Sequence[int], rows: Sequence[int]) -> list[NDArray[np.int64]]:
        arrays = []
        for values, length in ((token_ids, self._form.sizes.num_rows), (rows, self._form.num_logits)):
            array = np.zeros(length, np.int64)
            array[: len(values)] = values
            arrays.append(array)
        return arrays


def _state_of(lanes: Sequence[Lane]) -> list[object]:
    """All that may change of what tables are made of, between two steps of one token for each branch: who is
    there, where their tokens lie, and on whom they hang. What a branch was made with stays."""
    state: list[object] = []
    for lane in lanes:
        state += (lane.num_rows, lane.branch.segment.length)
        node: Branch | None = lane.branch
        while node is not None:
            first = int(node.segment.addresses()[0])
            state += (weakref.ref(node), weakref.ref(node.segment), first, node.segment.capacity)
            node = node.parent
    return state


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


class CudaGates:
    """An event for each layer, of which a graph waits for what it stands for when the graph is launched."""

    def __init__(self, device: torch.device, num_layers: int) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._events = [torch.cuda.Event(external=True) for _ in range(num_layers)]  # type: ignore[no-untyped-call]
        for event in self._events:
            event.record(self._stream)

    def wait(self, layer: int) -> None:
        self._events[layer].wait()

    def open_behind(self, layer: int, copies: Sequence[Copied]) -> None:
        for copied in copies:
            self._stream.wait_event(cast(torch.cuda.Event, copied))
        self._events[layer].record(self._stream)
