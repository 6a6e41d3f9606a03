"""Applies adapters (``lora``) to the rows of a pass that go with one, several adapters at once.

The products with the base model's weights are those of a pass without adapters: one for all rows. What an
adapter adds is computed from its own rows alone and added behind, so rows without one keep their bits. Nor do
the bits that are added depend on anybody else's rows: native products are row by row the same, and for others
a branch with several rows is a group of its own, and single rows (decoding) go through together in tiles of a
fixed number, which copies fill up::

    rows of the pass   [branch a: 5 rows, qa][b, qa][c][d, other][e, qa]
    groups             qa: a's 5    qa: b, e and 6 copies    other: d and 7 copies

Native layers have it in their calls (``native_adapter``). Other layers' modules get hooks for this pass,
where it has such rows, and else none; nothing there is in place on what gradients need, so what trains can go
through it as well. Shapes: R rows of the pass, P rows of a group with its copies, I inputs and O outputs of a
linear layer, r rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from shared.engine.device_arrays import integers
from shared.engine.model.lora import LoraAdapter, LowRank
from shared.engine.model.native_adapter import NativeLowRank
from shared.engine.model.packing import PackedGatedMlp

MOST_ADAPTERS = 63
"""In a pass through native layers: as many as linear_kernels.c has bits for."""
TILE = 8
"""Single rows of one adapter that go through together: on packed weights hardly slower than one row."""


@dataclass(frozen=True, slots=True, eq=False)
class AdapterWeights:
    """An adapter where the model computes. ``layers``: of each decoder layer that it changes, by
    the linear layer's path; ``native``: of those with native calls, what these add; None: they cannot."""

    layers: Mapping[int, Mapping[str, LowRank]]
    device: torch.device
    native: Mapping[int, Sequence[NativeLowRank | None]] | None = None

    @classmethod
    def of(cls, adapter: LoraAdapter, device: torch.device, dtype: torch.dtype) -> AdapterWeights:
        layers: dict[int, dict[str, LowRank]] = {}
        for (layer, path), pair in adapter.pairs.items():
            b_Or = (pair.b_Or.to(device).float() * pair.scale).to(dtype)
            layers.setdefault(layer, {})[path] = LowRank(pair.a_rI.to(device, dtype), b_Or)
        return cls(layers, device)


@dataclass(frozen=True, slots=True)
class AdaptedGroup:
    """Rows of a pass that go with one adapter through a layer's modules: the first ``num_rows`` of
    ``rows_P``, the others are copies of them. ``everything``: they are all rows of the pass, in order."""

    weights: AdapterWeights
    rows_P: Tensor
    num_rows: int
    everything: bool = False

    @property
    def rows(self) -> Tensor:
        return self.rows_P[: self.num_rows]


@dataclass(frozen=True, slots=True)
class AdaptedRows:
    """The rows of a pass that go with adapters. ``adapters``: for native layers, numbered from 1; none: they
    cannot take them. ``adapter_of``: of each row of the pass, that number, or 0."""

    groups: tuple[AdaptedGroup, ...] = ()
    adapters: tuple[AdapterWeights, ...] = ()
    adapter_of: bytes = b""

    def __bool__(self) -> bool:
        return bool(self.groups)


NOTHING_ADAPTED = AdaptedRows()


def adapted_rows(users: Sequence[tuple[AdapterWeights | None, slice]]) -> AdaptedRows:
    """``users``: what branches have in a pass, one behind the other: the adapter of each, and its rows."""
    groups: list[AdaptedGroup] = []
    single: dict[AdapterWeights, list[int]] = {}
    for weights, where in users:
        rows = range(where.start, where.stop)
        if weights is not None and len(rows) == 1:
            single.setdefault(weights, []).append(where.start)
        elif weights is not None:
            groups.append(_group(weights, rows, len(rows)))
    for weights, firsts in single.items():
        groups += (_group(weights, firsts[i : i + TILE], TILE) for i in range(0, len(firsts), TILE))
    if not groups:
        return NOTHING_ADAPTED
    adapters = sorted({group.weights for group in groups}, key=id)  # in any order, as long as it is the same
    if len(adapters) > MOST_ADAPTERS or any(weights.native is None for weights in adapters):
        return AdaptedRows(tuple(groups))
    numbers: dict[AdapterWeights | None, int] = {None: 0}
    numbers |= {weights: number for number, weights in enumerate(adapters, 1)}
    adapter_of = b"".join((where.stop - where.start) * bytes([numbers[one]]) for one, where in users)
    return AdaptedRows(tuple(groups), tuple(adapters), adapter_of)


def _group(weights: AdapterWeights, rows: Sequence[int], size: int) -> AdaptedGroup:
    copies = [rows[0]] * (size - len(rows))
    return AdaptedGroup(weights, integers([*rows, *copies], weights.device), len(rows))


@dataclass(frozen=True, slots=True, eq=False)
class _LayerRows:
    """A group in one decoder layer (``packing.ChangedRows``)."""

    group: AdaptedGroup
    by_path: Mapping[str, LowRank]

    @property
    def rows(self) -> Tensor:
        return self.group.rows

    @property
    def rows_P(self) -> Tensor:
        return self.group.rows_P

    def plus(self, path: str, x_PI: Tensor, product_PO: Tensor) -> Tensor:
        added = self.by_path.get(path)
        return product_PO if added is None else product_PO + added(x_PI)


@contextmanager
def adapting(module: torch.nn.Module, layer: int, adapted: AdaptedRows) -> Iterator[None]:
    """Inside, the decoder layer adds to the products of these rows what their adapters say."""
    hooks = _hooks(
        module, [_LayerRows(g, g.weights.layers[layer]) for g in adapted.groups if layer in g.weights.layers]
    )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _hooks(module: torch.nn.Module, parts: Sequence[_LayerRows]) -> list[RemovableHandle]:
    """One for each linear layer that is changed, and one for a packed MLP, which computes three as one."""
    hooks: list[RemovableHandle] = []
    packed: dict[PackedGatedMlp, list[_LayerRows]] = {}
    for path in {path: None for part in parts for path in part.by_path}:
        changed = [part for part in parts if path in part.by_path]
        parent, _, name = path.partition(".")
        owner = getattr(module, parent)
        if isinstance(owner, PackedGatedMlp):
            known = packed.setdefault(owner, [])
            known += (part for part in changed if part not in known)
        else:
            everywhere = len(changed) == 1 and changed[0].group.everything
            add = _adding_everywhere(changed[0].by_path[path]) if everywhere else _adding(path, changed)
            hooks.append(getattr(owner, name).register_forward_hook(add))
    return hooks + [mlp.register_forward_pre_hook(_handing(changed)) for mlp, changed in packed.items()]


def _adding(path: str, parts: Sequence[_LayerRows]) -> Callable[..., None]:
    def add(_: torch.nn.Module, args: tuple[Tensor, ...], product: Tensor) -> None:
        x_RI, product_RO = args[0].reshape(-1, args[0].shape[-1]), product.view(-1, product.shape[-1])
        for part in parts:
            added_PO = part.by_path[path](x_RI.index_select(0, part.rows_P))
            product_RO.index_add_(0, part.rows, added_PO[: len(part.rows)])

    return add


def _adding_everywhere(added: LowRank) -> Callable[..., Tensor]:
    """Neither picks rows nor puts them back."""

    def add(_: torch.nn.Module, args: tuple[Tensor, ...], product: Tensor) -> Tensor:
        return product + added(args[0])

    return add


def _handing(parts: Sequence[_LayerRows]) -> Callable[..., tuple[object, ...]]:
    """To ``PackedGatedMlp.forward``."""
    return lambda _, args: (*args, parts)
