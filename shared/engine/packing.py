"""Weights in the order in which the CPU's matrix units take them, arranged once at load instead of at every product.

A product of few rows is bound by reading weights; as ``nn.Linear`` keeps them oneDNN reads them at half the speed.
"""

from __future__ import annotations

from typing import Any, cast

import torch


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

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return cast(torch.Tensor, torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], ""))


def packed_bytes(hf_model: Any) -> int:
    """Of all packed weights of the model."""
    return sum(module.num_bytes for module in hf_model.modules() if isinstance(module, PackedLinear))


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """oneDNN is in torch, and knows bfloat16 on this processor."""
    on_cpu = device.type == "cpu" and dtype is torch.bfloat16
    return on_cpu and torch._C._has_mkldnn and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def pack_linears(hf_model: Any) -> None:
    """Every ``nn.Linear`` of the model becomes a ``PackedLinear``, one after the other, so that no more than one weight is there
    twice. A head that shares its weight with the embedding gets one of its own."""
    for module in list(hf_model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is torch.nn.Linear:
                setattr(module, name, PackedLinear(child))
