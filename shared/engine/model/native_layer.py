"""A decoder layer whose parts beside its attention are two native calls: norm, queries, keys and values in
front of it; the product of what was attended, residuals, norm and gated MLP behind it.

With few rows the layer of ``transformers`` takes as long between its products as for some of them. The bits
are those of its modules one after the other (``rowwise``, ``packing``), which go on serving passes whose rows
have adapters: they are what is called here, by their packed weights. Shapes: R rows, E hidden size, H heads
(K of keys and values), D head_dim.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from shared.engine.attention import Attention
from shared.engine.model.int8 import Int8Gate, Int8Linear
from shared.engine.model.linear_kernels import Stages
from shared.engine.model.packing import JointPart, PackedGatedMlp
from shared.engine.model.rowwise import RowwiseGate, RowwiseLinear, RowwiseNorm
from shared.engine.model.spec import ModelSpec

_PARTS = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_PRODUCTS = {"q_proj", "k_proj", "v_proj", "o_proj"}
_NORMS = {"q_norm", "k_norm"}  # of each head, if there are any
_KINDS = ((*3 * (RowwiseLinear,), RowwiseGate), (*3 * (Int8Linear,), Int8Gate))
_ROWS = 13
_MIXED, _HIDDEN, _OUT, _NORMED, _INNER = range(5)  # places behind attention
Stock = Callable[[Tensor, Attention], Tensor]
"""A layer of ``transformers``, on rows [R, E]."""


class NativeLayer:
    """Of a layer that ``native_layer`` knows. ``stock``: for rows of which there are more than the kernels
    are for. ``number``, ``scale``: as it hands them to attention."""

    def __init__(self, layer: Any, stock: Stock, spec: ModelSpec, number: int, scale: float) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        joint: RowwiseLinear | Int8Linear = attention.q_proj.whole
        self._layer, self._stock = layer, stock  # whose weights the calls read
        self._most_rows = joint.most_rows
        self._number, self._scale = number, scale
        self._widths = len(layer.input_layernorm.weight), joint.num_out, mlp.gated.num_out
        self._head_dim = spec.head_dim
        self._heads = [spec.num_heads, spec.num_kv_heads, spec.num_kv_heads]
        self._norms = [getattr(attention, name, None) for name in ("q_norm", "k_norm", "v_norm")]
        self._in_front = Stages(layer.input_layernorm.stage(0, 1), joint.stage(1, 2))
        self._behind = Stages(
            attention.o_proj.stage(_MIXED, _OUT, added_to=_HIDDEN),
            layer.post_attention_layernorm.stage(_OUT, _NORMED),
            mlp.gated.stage(_NORMED, _INNER),
            mlp.down.stage(_INNER, _OUT, added_to=_OUT),
        )

    def __call__(self, hidden_RE: Tensor, plan: Attention) -> Tensor:
        if (num_rows := len(hidden_RE)) > self._most_rows:
            return self._stock(hidden_RE, plan)
        hidden_RE = hidden_RE.contiguous()
        _, joint, inner = self._widths
        normed_RE, qkv = torch.empty_like(hidden_RE), hidden_RE.new_empty(num_rows, joint)
        self._in_front.run(hidden_RE, normed_RE, qkv)
        parts = torch.split(qkv.view(num_rows, sum(self._heads), self._head_dim), self._heads, 1)
        q_HRD, k_KRD, v_KRD = (
            (part if norm is None else norm(part)).transpose(0, 1)
            for part, norm in zip(parts, self._norms, strict=True)
        )
        mixed_HRD = plan.run(self._number, q_HRD, k_KRD, v_KRD, self._scale)
        mixed_RI = mixed_HRD.transpose(0, 1).flatten(1).contiguous()
        out_RE = torch.empty_like(hidden_RE)
        self._behind.run(mixed_RI, hidden_RE, out_RE, normed_RE, hidden_RE.new_empty(num_rows, inner))
        return out_RE


def native_layer(layer: Any, stock: Stock, spec: ModelSpec) -> NativeLayer | None:
    """None: the packed layer is built otherwise, or ``stock``, which runs rows [R, E] through it, computes
    something else with these parts."""
    if not _is_known(layer, spec):
        return None
    draw = torch.Generator().manual_seed(0)
    magnitudes = torch.logspace(-2, 2, _ROWS)[:, None]
    width = len(layer.input_layernorm.weight)
    hidden_RE = (magnitudes * torch.randn(_ROWS, width, generator=draw)).to(spec.dtype)
    theirs, ours = _Seen(), _Seen()
    expected_RE = stock(hidden_RE, theirs)
    native = NativeLayer(layer, stock, spec, theirs.number, theirs.scale)
    pairs = zip([native(hidden_RE, ours), *ours.tensors], [expected_RE, *theirs.tensors], strict=True)
    return native if all(torch.equal(*pair) for pair in pairs) else None


def _is_known(layer: Any, spec: ModelSpec) -> bool:
    """By its parts and their widths; what it does with them is another question."""
    if _names(layer) != _PARTS or _names(layer.self_attn) - _NORMS != _PRODUCTS:
        return False
    attention, mlp = layer.self_attn, layer.mlp
    joint = [getattr(attention, name) for name in ("q_proj", "k_proj", "v_proj")]
    norms = [getattr(attention, name) for name in _NORMS & _names(attention)]
    types = (
        *((one, JointPart) for one in joint),
        *((one, RowwiseNorm) for one in (layer.input_layernorm, layer.post_attention_layernorm, *norms)),
        (mlp, PackedGatedMlp),
    )
    if any(type(one) is not kind for one, kind in types):
        return False
    products = joint[0].whole, attention.o_proj, mlp.down
    if tuple(map(type, (*products, mlp.gated))) not in _KINDS:
        return False
    width, attended = len(layer.input_layernorm.weight), spec.num_heads * spec.head_dim
    return (
        all(len(norm.weight) == spec.head_dim for norm in norms)
        and [one.num_out for one in joint]
        == [heads * spec.head_dim for heads in (spec.num_heads, spec.num_kv_heads, spec.num_kv_heads)]
        and all(number % 4 == 0 for number in (width, attended, mlp.gated.num_out))
    )


def _names(module: torch.nn.Module) -> set[str]:
    return {name for name, _ in module.named_children()}


class _Seen:
    """Stands in for a step plan: keeps what the layer hands to attention, and hands back a mixture of it."""

    def run(self, layer: int, q_HRD: Tensor, k_KRD: Tensor, v_KRD: Tensor, scale: float) -> Tensor:
        self.number, self.scale, self.tensors = layer, scale, (q_HRD, k_KRD, v_KRD)
        return q_HRD + (k_KRD + v_KRD).repeat_interleave(len(q_HRD) // len(k_KRD), 0)
