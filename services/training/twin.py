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
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from services.training.sight import (
    Ints,
    Moved,
    PlacedTokens,
    Sight,
    SightGroup,
    angles_of,
    on_device,
    rotated,
    sights_of,
)
from services.training.twin_request import Ids, KnownKv, RequestRows, SegmentKv, TwinRequest
from shared.engine.model.adapting import NOTHING_ADAPTED, AdaptedGroup, AdaptedRows, AdapterWeights
from shared.engine.model.rope import RopeSpec, Rotation
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
        segments = [s for kv in known or () for s in (kv.prefix, *kv.chunks) if s is not None]
        first = sum(map(len, segments))
        self._known = _KnownKeys(segments) if known is not None else None
        rows = _StepRows(first)
        contexts = _known(requests, known) if known is not None else [_computed(rows, r) for r in requests]
        self.first_private = len(rows.token_ids)
        privates = [_private(rows, *pair) for pair in zip(requests, contexts, strict=True)]
        self.token_ids = rows.token_ids
        self.adapted = NOTHING_ADAPTED
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
        rotation = _rotation(spec.rope, spec.device)
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
        self._angles = angles_of(positions_R, rotation)
        self._moves = _Moves.of(self._sights, rotation.device)

    def adapt(self, weights: AdapterWeights) -> None:
        """Private rows go with an adapter, except those under ``full``."""
        if not self._adaptable:
            self.adapted = NOTHING_ADAPTED
            return
        rows_P = on_device(np.array(self._adaptable), weights.device)
        everything = self._adaptable == list(range(len(self.token_ids)))
        self.adapted = AdaptedRows((AdaptedGroup(weights, rows_P, len(rows_P), everything),))

    def run(self, layer: int, q_HRD: Tensor, k_KRD: Tensor, v_KRD: Tensor, scale: float) -> Tensor:
        """See ``shared.engine.attention.Attention.run``; no segment grows."""
        v_RKD, num_heads, sizes = v_KRD.transpose(0, 1), len(q_HRD), [len(sight) for sight in self._sights]
        if self._known is None:
            q_RHD = rotated(q_HRD.transpose(0, 1), self._angles)
            k_RKD = k_KRD.transpose(0, 1)
            outs = [
                sight.attend(q_PHD, sight.fresh(k_RKD, True), sight.fresh(v_RKD, False), None, scale)
                for sight, q_PHD in zip(
                    self._sights, torch.split(self._moves.to_places(q_RHD), sizes), strict=True
                )
            ]
        else:  # every key of the step's rows is at its own place, among the group's rows
            qk_RHD = rotated(torch.cat([q_HRD, k_KRD]).transpose(0, 1), self._angles)
            qk = torch.split(self._moves.to_places(qk_RHD), sizes)
            v = torch.split(self._moves.to_places(v_RKD), sizes)
            known = self._known.of(layer, self._sights, v_RKD)
            outs = [
                sight.attend(qk_PHD[:, :num_heads], qk_PHD[:, num_heads:], v_PKD, kv, scale)
                for sight, qk_PHD, v_PKD, kv in zip(self._sights, qk, v, known, strict=True)
            ]
        return self._moves.to_rows(torch.cat(outs)).transpose(0, 1)


@lru_cache(8)
def _rotation(rope: RopeSpec, device: torch.device) -> Rotation:
    """Its tables are kept from step to step."""
    return Rotation(rope, device)


@dataclass(frozen=True, slots=True)
class _Moves:
    """Between the step's rows and the places that all sights have together. ``rows_P``: of each place, of
    padding the first; ``filled_P``: it is no padding; ``places_R``: of each row."""

    rows_P: Tensor
    filled_P: Tensor
    places_R: Tensor

    @classmethod
    def of(cls, sights: Sequence[Sight], device: torch.device) -> _Moves:
        rows_P = np.concatenate([np.zeros(0, np.int64), *(sight.rows_P for sight in sights)])
        filled_P = np.concatenate([np.zeros(0, np.bool_), *(sight.filled_P for sight in sights)])
        places = np.flatnonzero(filled_P)
        places_R = places[np.argsort(rows_P[places])]
        return cls(*(on_device(x, device) for x in (rows_P, filled_P, places_R)))

    def to_places(self, x_RHD: Tensor) -> Tensor:
        moved: Tensor = Moved.apply(x_RHD, self.rows_P, self.places_R, None)  # type: ignore[no-untyped-call]
        return moved

    def to_rows(self, x_PHD: Tensor) -> Tensor:
        moved: Tensor = Moved.apply(x_PHD, self.places_R, self.rows_P, self.filled_P)  # type: ignore[no-untyped-call]
        return moved


class _KnownKeys:
    """Keys and values of segments as the sights of a step see them, of all layers, made when the first layer
    asks for them."""

    def __init__(self, segments: Sequence[SegmentKv]) -> None:
        self._segments = segments
        self._of_sights: list[tuple[Tensor, Tensor]] | None = None

    def of(
        self, layer: int, sights: Sequence[Sight], like: Tensor
    ) -> list[tuple[Tensor, Tensor]] | list[None]:
        """In the type and on the device of ``like``."""
        if not self._segments:
            return [None] * len(sights)
        if self._of_sights is None:
            k_LNKD, v_LNKD = (
                torch.cat([x.to(like) for x in of_all], 1)
                for of_all in ([s.k_LTKD for s in self._segments], [s.v_LTKD for s in self._segments])
            )
            self._of_sights = [(s.known(k_LNKD, True), s.known(v_LNKD, False)) for s in sights]
        return [(k_LGKTD[layer], v_LGKTD[layer]) for k_LGKTD, v_LGKTD in self._of_sights]


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
    """KV that is computed along the chains that begin with one chunk. Part 0 is the prefix, every further one
    a chunk; ``in_front`` of each: the parts that it sees."""

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
