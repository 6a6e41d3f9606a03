"""Norms and activations of a GPU's layers in one kernel each.

A step of few rows is bound by reading weights; between two products every kernel costs the same few
microseconds, whatever it does. ``transformers`` takes eight for a norm, two to multiply with the gate, and
three products where queries, keys and values could be one. Each module is replaced only where it computes
what its replacement computes; weights keep their names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
import triton
from torch import Tensor
from torch.nn.functional import linear

from shared.engine.model.fused_kernels import rms_norm_kernel, silu_times_kernel
from shared.engine.model.joint import JointProduct
from shared.engine.model.packing import is_gated_mlp, is_rms_norm
from shared.engine.model.rounding import relative_error

_BLOCK = 1024
_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}  # relative, RMS over RMS


class FusedRmsNorm(torch.nn.Module):
    """weight · x / RMS(x), over the last dimension."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight = norm.weight
        self._eps = float(norm.variance_epsilon)
        self._stock = [norm]  # no child of this one: its weight is this one's

    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return cast(Tensor, self._stock[0](x))
        x = x.contiguous()
        out, size = torch.empty_like(x), x.shape[-1]
        num_rows = x.numel() // size
        block = triton.next_power_of_2(size)
        warps = 8 if block > _BLOCK else 4
        rms_norm_kernel[(num_rows,)](x, self.weight, out, self._eps, SIZE=size, BLOCK=block, num_warps=warps)
        return out


class FusedGatedMlp(torch.nn.Module):
    """down(silu(gate(x)) · up(x))"""

    def __init__(self, mlp: Any) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = mlp.gate_proj, mlp.up_proj, mlp.down_proj
        self.act_fn = mlp.act_fn

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_proj(x), self.up_proj(x)
        if torch.compiler.is_compiling():
            return cast(Tensor, self.down_proj(self.act_fn(gate) * up))
        out = torch.empty_like(gate)
        silu_times_kernel[(triton.cdiv(gate.numel(), _BLOCK),)](gate, up, out, gate.numel(), BLOCK=_BLOCK)
        return cast(Tensor, self.down_proj(out))


class JointLinear(torch.nn.Module):
    """One of the layers of a ``JointProduct``: its weight is a part of the whole."""

    def __init__(self, joint: JointProduct, nth: int, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self._joint, self._nth = joint, nth
        self.weight = torch.nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else torch.nn.Parameter(bias, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return linear(x, self.weight, self.bias)
        return self._joint.of(self._nth, x)


def fuse(model: Any) -> None:
    """Replaces what it can, in the model and all its parts."""
    _join(model, ("q_proj", "k_proj", "v_proj"))
    for name, child in list(model.named_children()):
        fuse(child)
        if (replacement := _replacement(child)) is not None:
            setattr(model, name, replacement)


def _join(module: Any, names: Sequence[str]) -> None:
    linears = [getattr(module, name, None) for name in names]
    if any(type(one) is not torch.nn.Linear for one in linears):
        return
    if len({(one.bias is None, one.in_features) for one in linears}) == 1:  # type: ignore[union-attr]
        layers = cast(Sequence[torch.nn.Linear], linears)
        widths = [one.out_features for one in layers]
        weight = torch.cat([one.weight.detach() for one in layers])
        bias = None if layers[0].bias is None else torch.cat([one.bias.detach() for one in layers])
        joint = JointProduct(lambda x: linear(x, weight, bias), widths)
        biases = [None] * len(widths) if bias is None else torch.split(bias, widths)
        for nth, parts in enumerate(zip(torch.split(weight, widths), biases, strict=True)):
            setattr(module, names[nth], JointLinear(joint, nth, *parts))


def _replacement(module: Any) -> torch.nn.Module | None:
    if is_rms_norm(module):
        fused: torch.nn.Module = FusedRmsNorm(module)
        width = module.weight.shape[0]
    elif is_gated_mlp(module):
        fused, width = FusedGatedMlp(module), module.gate_proj.in_features
    else:
        return None
    weight = next(module.parameters())
    noise = torch.randn(4, width, generator=torch.Generator().manual_seed(0)).to(weight.device, weight.dtype)
    with torch.inference_mode():
        return fused if relative_error(fused(noise), module(noise)) <= _TOLERANCE[weight.dtype] else None
