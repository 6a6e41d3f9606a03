"""Weights in the order in which the CPU's matrix units take them, arranged once at load instead of at every
product.

A product of few rows is bound by reading weights; as ``nn.Linear`` keeps them oneDNN reads them at half the
speed. A gated MLP also gets its activation and its product with the gate within the matrix products, rounded
to bfloat16 once instead of three times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from shared.engine.model.rounding import relative_error

_GATED = {"gate_proj", "up_proj", "down_proj", "act_fn"}
_TOLERANCE = 0.02  # relative, RMS over RMS: a few roundings to bfloat16


class PackedLinear(torch.nn.Module):
    """An ``nn.Linear`` whose weight [out, in], bfloat16, lies in oneDNN's blocks. Inference only."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self._weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)
        self._bias = None if linear.bias is None else linear.bias.detach()

    @property
    def num_bytes(self) -> int:
        """Of the weight."""
        return int(self._weight.numel() * self._weight.element_size())

    def forward(self, x: Tensor, activation: str = "none") -> Tensor:
        """``activation``: one that oneDNN knows, of the product."""
        return cast(
            Tensor, torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, activation, [], "")
        )

    def times(self, x: Tensor, factor: Tensor) -> Tensor:
        """The product with the weight, then elementwise with ``factor``."""
        return cast(Tensor, torch.ops.mkldnn._linear_pointwise(x, factor, self._weight, self._bias, "mul"))


class ChangedRows(Protocol):
    """Rows to whose products something is added. ``rows_P``: these and, behind them, copies of them."""

    @property
    def rows(self) -> Tensor: ...
    @property
    def rows_P(self) -> Tensor: ...
    def plus(self, path: str, x_PI: Tensor, product_PO: Tensor) -> Tensor:
        """``product_PO`` of ``x_PI`` with the linear layer's weight, and what is added to it."""
        ...


class PackedGatedMlp(torch.nn.Module):
    """down(silu(gate(x)) · up(x))"""

    def __init__(self, mlp: Any) -> None:
        super().__init__()
        self._gate, self._up, self._down = (
            PackedLinear(linear) for linear in (mlp.gate_proj, mlp.up_proj, mlp.down_proj)
        )

    def forward(self, x: Tensor, changed: Sequence[ChangedRows] = ()) -> Tensor:
        """``changed`` rows are computed by themselves, so that all others are what they are without."""
        if changed and sum(len(one.rows) for one in changed) == x[..., 0].numel():
            out = torch.empty_like(x)
        else:
            out = self._down(self._up.times(x, self._gate(x, "swish")))
        for one in changed:
            x_PE = x.reshape(-1, x.shape[-1]).index_select(0, one.rows_P)
            gate_PI = one.plus("mlp.gate_proj", x_PE, self._gate(x_PE))
            inner_PI = torch.nn.functional.silu(gate_PI) * one.plus("mlp.up_proj", x_PE, self._up(x_PE))
            changed_PE = one.plus("mlp.down_proj", inner_PI, self._down(inner_PI))
            out.view(-1, out.shape[-1]).index_copy_(0, one.rows, changed_PE[: len(one.rows)])
        return out


def packed_bytes(hf_model: Any) -> int:
    """Of all packed weights of the model."""
    return sum(module.num_bytes for module in hf_model.modules() if isinstance(module, PackedLinear))


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """oneDNN is in torch, and knows bfloat16 on this processor."""
    on_cpu = device.type == "cpu" and dtype is torch.bfloat16
    return on_cpu and torch._C._has_mkldnn and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def pack_linears(model: Any) -> None:
    """Every gated MLP and every other ``nn.Linear`` in the model is replaced, one after the other, so that
    little is there twice. A head that shares its weight with the embedding gets one of its own."""
    for name in [name for name, _ in model.named_children()]:
        packed = _packed(getattr(model, name))
        if packed is None:
            pack_linears(getattr(model, name))
        else:
            setattr(model, name, packed)


def _packed(module: Any) -> torch.nn.Module | None:
    if type(module) is torch.nn.Linear:
        return PackedLinear(module)
    if is_gated_mlp(module):
        packed = PackedGatedMlp(module)
        return packed if _same(module, packed) else None
    return None


def is_gated_mlp(module: Any) -> bool:
    """By its parts; what it does with them is another question."""
    return {name for name, _ in module.named_children()} == _GATED and _is_silu(module.act_fn)


def _is_silu(activation: Any) -> bool:
    """By what it computes: transformers has a class of its own for it."""
    x = torch.linspace(-9.0, 9.0, 145)
    return torch.equal(activation(x), torch.nn.functional.silu(x))


def _same(mlp: Any, packed: PackedGatedMlp) -> bool:
    """An MLP of such parts may still compute something else with them."""
    noise = torch.randn(4, mlp.gate_proj.in_features, generator=torch.Generator().manual_seed(0)).to(
        mlp.gate_proj.weight.dtype
    )
    return relative_error(packed(noise), mlp(noise)) <= _TOLERANCE
