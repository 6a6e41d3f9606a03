"""Applies adapters (``lora``) to the rows of a pass that go with one, several adapters at once.

The products with the base model's weights are those of a pass without adapters: one for all rows. What an
adapter adds is computed from its own rows alone and added behind, so rows without one keep their bits. Nor do
the bits that are added depend on anybody else's rows: a branch with several rows is a group of its own, and
single rows (decoding) go through together in tiles of a fixed number, which copies fill up::

    rows of the pass   [branch a: 5 rows, qa][b, qa][c][d, other][e, qa]
    groups             qa: a's 5    qa: b, e and 6 copies    other: d and 7 copies

The layer's modules get hooks for this pass, where it has such rows, and else none. Nothing here is in place
on what gradients need, so what trains can go through it as well. Shapes: R rows of the pass, P rows of a
group with its copies, I inputs and O outputs of a linear layer, r rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear
from torch.utils.hooks import RemovableHandle

from shared.engine.device_arrays import integers
from shared.engine.model.lora import LoraAdapter
from shared.engine.model.packing import PackedGatedMlp

TILE = 8
"""Single rows of one adapter that go through together: on packed weights hardly slower than one row."""


class LowRank(NamedTuple):
    """Adds B·A·x; the scale is in B."""

    a_rI: Tensor
    b_Or: Tensor

    def __call__(self, x_PI: Tensor) -> Tensor:
        """In the type of ``x_PI``."""
        return linear(linear(x_PI.to(self.a_rI.dtype), self.a_rI), self.b_Or).to(x_PI.dtype)


@dataclass(frozen=True, slots=True)
class AdapterWeights:
    """An adapter where the model computes. ``layers``: of each decoder layer that it changes, by
    the linear layer's path."""

    layers: Mapping[int, Mapping[str, LowRank]]
    device: torch.device

    @classmethod
    def of(cls, adapter: LoraAdapter, device: torch.device, dtype: torch.dtype) -> AdapterWeights:
        layers: dict[int, dict[str, LowRank]] = {}
        for (layer, path), pair in adapter.pairs.items():
            b_Or = (pair.b_Or.to(device).float() * pair.scale).to(dtype)
            layers.setdefault(layer, {})[path] = LowRank(pair.a_rI.to(device, dtype), b_Or)
        return cls(layers, device)


@dataclass(frozen=True, slots=True)
class AdaptedRows:
    """Rows of a pass that go with one adapter: the first ``num_rows`` of ``rows_P``, the others are copies of
    them. ``everything``: they are all rows of the pass, in order."""

    weights: AdapterWeights
    rows_P: Tensor
    num_rows: int
    everything: bool = False

    @property
    def rows(self) -> Tensor:
        return self.rows_P[: self.num_rows]


def adapted_rows(users: Iterable[tuple[AdapterWeights | None, slice]]) -> tuple[AdaptedRows, ...]:
    """Groups what branches have in a pass: the adapter of each, and its rows."""
    groups: list[AdaptedRows] = []
    single: dict[int, tuple[AdapterWeights, list[int]]] = {}
    for weights, where in users:
        if weights is None:
            continue
        rows = range(where.start, where.stop)
        if len(rows) == 1:
            single.setdefault(id(weights), (weights, []))[1].append(where.start)
        else:
            groups.append(_group(weights, rows, len(rows)))
    for weights, firsts in single.values():
        groups += (_group(weights, firsts[i : i + TILE], TILE) for i in range(0, len(firsts), TILE))
    return tuple(groups)


def _group(weights: AdapterWeights, rows: Sequence[int], size: int) -> AdaptedRows:
    copies = [rows[0]] * (size - len(rows))
    return AdaptedRows(weights, integers([*rows, *copies], weights.device), len(rows))


@dataclass(frozen=True, slots=True, eq=False)
class _LayerRows:
    """A group in one decoder layer (``packing.ChangedRows``)."""

    group: AdaptedRows
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
def adapting(module: torch.nn.Module, layer: int, groups: Sequence[AdaptedRows]) -> Iterator[None]:
    """Inside, the decoder layer adds to the products of these rows what their adapters say."""
    hooks = _hooks(
        module, [_LayerRows(g, g.weights.layers[layer]) for g in groups if layer in g.weights.layers]
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
