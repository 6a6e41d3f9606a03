"""The differentiable twin of the engine's step: requests whose logits are those that serving computes, with
gradients through everything that is computed.

A request is placed as the engine places it (``shared.engine.decoding.forest.placed_context``). Stored chunks
are rows of the same pass, each computed behind the prefix and its chain; their keys are then rotated to the
places that the request gives them, where private rows see them. Segments whose keys and values are known
already (``KnownKv``) are not computed: nothing but private rows runs, and gradients end there::

    computed   [prefix][header][chunk 0][chunk 1]           each row at its place in its block
    seen       [prefix]        [chunk 1][chunk 0]           by private rows, which come last in the step
                                                 [branch 0
                                                 [branch 1

The step runs through the layers of a model that the engine drives (``take_over``):
``model.logits(model.forward(step)[rows])``. Shapes: L layers, R rows, N keys of the step, H query heads,
K kv heads, T tokens of a segment, D head_dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from services.training.sight import Ints, PlacedTokens, Sight, SightGroup, rotated, sights_of
from services.training.twin_request import Ids, KnownKv, RequestRows, TwinRequest
from shared.engine.model.adapting import AdaptedRows, AdapterWeights
from shared.engine.model.spec import ModelSpec
from shared.errors import ContextTooLong

_PLACED, _RECOMPUTED, _BRANCHES = 0, 1, 2  # parts of what private rows see
IN_CONTEXT = (_PLACED, _RECOMPUTED)
"""Parts of a private group that are prefix and chunks; the others are its branches."""


class TwinStep:
    """One pass over requests. ``known``: keys and values of each, if they are not to be computed. Rows from
    ``first_private`` on are private ones.

    Raises:
        ContextTooLong: a request has more positions than the model.
    """

    def __init__(
        self, requests: Sequence[TwinRequest], spec: ModelSpec, known: Sequence[KnownKv] | None = None
    ) -> None:
        self._segments = [s for kv in known or () for s in (kv.prefix, *kv.chunks) if s is not None]
        first = sum(map(len, self._segments))
        rows = _StepRows(first)
        contexts = _known(requests, known) if known is not None else [_computed(rows, r) for r in requests]
        self.first_private = len(rows.token_ids)
        privates = [_private(rows, *pair) for pair in zip(requests, contexts, strict=True)]
        self.token_ids = rows.token_ids
        self.adapted: tuple[AdaptedRows, ...] = ()
        self._adaptable = [
            row
            for request, one in zip(requests, privates, strict=True)
            if request.reuse.row.stored
            for run in (one.context, *one.branches)
            for row in run
        ]
        self.rows = tuple(
            RequestRows(context.prefix, context.chunks, private.context, private.branches)
            for context, private in zip(contexts, privates, strict=True)
        )
        self.private_groups = [private.group for private in privates]
        """What private rows are and see, by request: first those of its context, then its branches."""
        rotation = spec.rotation()
        self._sights: list[Sight] = [
            *sights_of((group for context in contexts for group in context.groups), rotation, first),
            *sights_of(self.private_groups, rotation, first),
        ]
        positions_R = np.concatenate([np.zeros(0, np.int64), *rows.positions])
        if len(positions_R) and positions_R.max() >= spec.sight:
            raise ContextTooLong(
                f"a request to be trained on takes {positions_R.max() + 1} positions, the model has "
                f"{spec.sight}; place fewer or shorter chunks"
            )
        self._angles = rotation.angles(torch.from_numpy(positions_R))
        order = np.argsort(np.concatenate([sight.rows for sight in self._sights]))
        self._order = torch.from_numpy(order).to(rotation.device)

    def adapt(self, weights: AdapterWeights) -> None:
        """Private rows go with an adapter, except those under ``full``."""
        rows_P = torch.tensor(self._adaptable, device=weights.device)
        self.adapted = (AdaptedRows(weights, rows_P, len(rows_P)),) if len(rows_P) else ()

    def run(self, layer: int, q_HRD: Tensor, k_KRD: Tensor, v_KRD: Tensor, scale: float) -> Tensor:
        """See ``shared.engine.attention.Attention.run``; no segment grows."""
        q_RHD = self.placed(q_HRD)
        k_NKD = _behind([segment.k_LTKD[layer] for segment in self._segments], k_KRD)
        v_NKD = _behind([segment.v_LTKD[layer] for segment in self._segments], v_KRD)
        outs = [sight.attend(q_RHD, k_NKD, v_NKD, scale) for sight in self._sights]
        return torch.cat(outs).index_select(0, self._order).transpose(0, 1)

    def placed(self, q_HRD: Tensor) -> Tensor:
        """Queries [R, H, D] of all rows, rotated to their positions."""
        return rotated(q_HRD.transpose(0, 1), self._angles)


def _behind(known: Sequence[Tensor], fresh_KRD: Tensor) -> Tensor:
    fresh_RKD = fresh_KRD.transpose(0, 1)
    return torch.cat([*(x_TKD.to(fresh_RKD) for x_TKD in known), fresh_RKD]) if known else fresh_RKD


@dataclass(slots=True)
class _StepRows:
    """The rows of a step, as they are added. ``first``: the key of the first."""

    first: int
    token_ids: list[int] = field(default_factory=list)
    positions: list[Ints] = field(default_factory=list)

    def add(self, token_ids: Sequence[int], positions: Ints, part: int) -> tuple[range, PlacedTokens]:
        rows = range(len(self.token_ids), len(self.token_ids) + len(token_ids))
        self.token_ids += token_ids
        self.positions.append(positions)
        return rows, PlacedTokens.at(self.first + np.arange(rows.start, rows.stop), positions, part)


@dataclass(frozen=True, slots=True)
class _Context:
    """``placed``: keys as private rows see them; ``groups``: what is computed of them here."""

    prefix: range
    chunks: tuple[range, ...]
    placed: list[PlacedTokens]
    groups: list[SightGroup]


@dataclass(slots=True)
class _Block:
    """What is computed along the chains that begin with one chunk. Part 0 is the prefix, every further one a
    chunk; ``in_front`` of each: the parts that it sees."""

    runs: list[PlacedTokens] = field(default_factory=list)
    in_front: list[set[int]] = field(default_factory=lambda: [{0}])

    def group(self, prefix: PlacedTokens, with_prefix: bool) -> SightGroup:
        sees = np.zeros((len(self.in_front), len(self.in_front)), dtype=np.bool_)
        for part, in_front in enumerate(self.in_front):
            sees[part, list(in_front)] = True
        rows = [prefix, *self.runs] if with_prefix else self.runs
        return SightGroup(PlacedTokens.joined(rows), PlacedTokens.joined([prefix, *self.runs]), sees)


def _computed(rows: _StepRows, request: TwinRequest) -> _Context:
    """A chunk that is placed twice, or stands in several chains, is computed once."""
    prefix_len = len(request.prefix_ids)
    prefix_rows, prefix = rows.add(request.prefix_ids, np.arange(prefix_len), 0)
    blocks: dict[Ids, _Block] = {}
    computed: dict[tuple[Ids, ...], tuple[range, int]] = {}  # by path: rows, and the part of their block

    def compute(path: tuple[Ids, ...]) -> range:
        if path not in computed:
            block = blocks.setdefault(path[0], _Block())
            if path[1:]:
                compute(path[:-1])
            part = len(block.in_front)
            behind = block.in_front[computed[path[:-1]][1]] if path[1:] else {0}
            start = prefix_len + sum(map(len, path[:-1]))
            own, tokens = rows.add(path[-1], np.arange(start, start + len(path[-1])), part)
            block.runs.append(tokens)
            block.in_front.append({*behind, part})
            computed[path] = own, part
        return computed[path][0]

    placed, chunks = [PlacedTokens.at(prefix.key, prefix.position, _PLACED)], []
    for chunk, kept, offset in zip(request.chunks, request.kept(), request.offsets(), strict=True):
        chunks.append(compute((*chunk.chain, chunk.token_ids)) if len(kept) else range(0))
        placed.append(PlacedTokens.at(rows.first + chunks[-1].start + kept, offset + kept, _PLACED))
    waiting = list(blocks.values()) or [_Block()]
    groups = [block.group(prefix, with_prefix=not i) for i, block in enumerate(waiting)]
    return _Context(prefix_rows, tuple(chunks), placed, groups)


def _known(requests: Sequence[TwinRequest], known: Sequence[KnownKv]) -> list[_Context]:
    """Its keys lie rotated at local positions, one segment behind the other, in front of the step's rows."""
    contexts, first = [], 0
    for request, kv in zip(requests, known, strict=True):
        placed = []
        everything = np.arange(len(request.prefix_ids))
        pieces = [(kv.prefix, 0, everything)] if kv.prefix is not None else []
        for segment, offset, kept in (
            *pieces,
            *zip(kv.chunks, request.offsets(), request.kept(), strict=True),
        ):
            placed.append(PlacedTokens.at(first + kept, offset + kept, _PLACED, turn=offset))
            first += len(segment)
        contexts.append(_Context(range(0), (range(0),) * len(request.chunks), placed, []))
    return contexts


@dataclass(frozen=True, slots=True)
class _PrivateRows:
    context: range
    branches: tuple[range, ...]
    group: SightGroup


def _private(rows: _StepRows, request: TwinRequest, context: _Context) -> _PrivateRows:
    start, private = len(request.prefix_ids), request.private
    ids = [token for chunk in request.chunks for token in chunk.token_ids]
    positions = start + np.array(private, dtype=np.int64)
    in_common, tokens = rows.add([ids[token] for token in private], positions, _RECOMPUTED)
    runs, branches = [tokens], []
    for part, branch in enumerate(request.branches, _BRANCHES):
        begin = start + request.starts[-1]
        own, tokens = rows.add(branch, np.arange(begin, begin + len(branch)), part)
        runs.append(tokens)
        branches.append(own)
    sees = np.eye(_BRANCHES + len(request.branches), dtype=np.bool_)
    sees[:, :_BRANCHES] = True
    group = SightGroup(PlacedTokens.joined(runs), PlacedTokens.joined([*context.placed, *runs]), sees)
    return _PrivateRows(in_common, tuple(branches), group)
