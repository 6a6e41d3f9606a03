"""A decoder layer whose parts beside its attention are two native calls: norm, queries, keys and values in
front of it; the product of what was attended, residuals, norm and gated MLP behind it.

With few rows the layer of ``transformers`` takes as long between its products as for some of them. The bits
are those of its modules one after the other (``rowwise``, ``packing``): they are what is called here, by
their packed weights. What adapters add is part of the same calls (``native_adapter``). Shapes: R rows, E
hidden size, H heads (K of keys and values), D head_dim.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from shared.engine.attention import Attention
from shared.engine.model.adapting import NOTHING_ADAPTED, AdaptedRows, AdapterWeights
from shared.engine.model.int8 import Int8Gate, Int8Linear
from shared.engine.model.linear_kernels import Stages
from shared.engine.model.lora import LowRank
from shared.engine.model.native_adapter import AdaptedProduct, AddedPlaces, NativeLowRank, with_adapters
from shared.engine.model.packing import JointPart, PackedGatedMlp
from shared.engine.model.rowwise import RowwiseGate, RowwiseLinear, RowwiseNorm
from shared.engine.model.spec import ModelSpec

_PATHS = (
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("self_attn.o_proj",),
    ("mlp.gate_proj", "mlp.up_proj"),
    ("mlp.down_proj",),
)
"""Of the linear layers that the four products are."""
_PARTS = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_PRODUCTS = {"q_proj", "k_proj", "v_proj", "o_proj"}
_NORMS = {"q_norm", "k_norm"}  # of each head, if there are any
_KINDS = ((*3 * (RowwiseLinear,), RowwiseGate), (*3 * (Int8Linear,), Int8Gate))
_ROWS = 13
_MIXED, _HIDDEN, _OUT, _NORMED, _INNER = range(5)  # places behind attention
_NOTHING = (None, None, None, None)  # is added to the four products
_MOST_CALLS = 16  # kept, for passes with these adapters or those
Stock = Callable[[Tensor, Attention], Tensor]
"""A layer of ``transformers``, on rows [R, E]."""


class _Calls(NamedTuple):
    """``room``: widths of what adapters need, if there are any: of what A makes, and of what is added."""

    in_front: Stages
    behind: Stages
    room: tuple[int, ...]


class NativeLayer:
    """Of a layer that ``native_layer`` knows. ``number``, ``scale``: as it hands them to attention."""

    def __init__(self, layer: Any, spec: ModelSpec, number: int, scale: float) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        joint: RowwiseLinear | Int8Linear = attention.q_proj.whole
        self._layer = layer  # whose weights the calls read
        self._most_rows = joint.most_rows
        self._number, self._scale = number, scale
        self._widths = len(layer.input_layernorm.weight), joint.num_out, mlp.gated.num_out
        self._head_dim = spec.head_dim
        self._heads = [spec.num_heads, spec.num_kv_heads, spec.num_kv_heads]
        self._norms = [getattr(attention, name, None) for name in ("q_norm", "k_norm", "v_norm")]
        self._products = joint, attention.o_proj, mlp.gated, mlp.down
        self._calls = functools.lru_cache(_MOST_CALLS)(self._made)

    def takes(self, num_rows: int, adapted: AdaptedRows) -> bool:
        """The kernels are the fastest way for so many rows, and know their adapters."""
        return num_rows <= self._most_rows and (not adapted or bool(adapted.adapters))

    def placed(self, by_path: Mapping[str, LowRank]) -> tuple[NativeLowRank | None, ...]:
        """What an adapter adds to each product."""
        width, _, inner = self._widths
        heads = [number * self._head_dim for number in self._heads]
        widths = heads, [width], [inner, inner], [width]
        sums = [product.num_sums for product in self._products]
        products = map(AdaptedProduct, _PATHS, widths, sums, (False, False, True, False))
        return tuple(product.low_rank(by_path) for product in products)

    def __call__(self, hidden_RE: Tensor, plan: Attention, adapted: AdaptedRows = NOTHING_ADAPTED) -> Tensor:
        hidden_RE = hidden_RE.contiguous()
        num_rows, (_, joint, inner) = len(hidden_RE), self._widths
        calls = self._calls(adapted.adapters)
        room = [hidden_RE.new_empty(num_rows, width) for width in calls.room]
        normed_RE, qkv = torch.empty_like(hidden_RE), hidden_RE.new_empty(num_rows, joint)
        calls.in_front.run(hidden_RE, normed_RE, qkv, *room, adapter_of=adapted.adapter_of)
        parts = torch.split(qkv.view(num_rows, sum(self._heads), self._head_dim), self._heads, 1)
        q_HRD, k_KRD, v_KRD = (
            (part if norm is None else norm(part)).transpose(0, 1)
            for part, norm in zip(parts, self._norms, strict=True)
        )
        mixed_HRD = plan.run(self._number, q_HRD, k_KRD, v_KRD, self._scale)
        mixed_RI = mixed_HRD.transpose(0, 1).flatten(1).contiguous()
        out_RE, inner_RI = torch.empty_like(hidden_RE), hidden_RE.new_empty(num_rows, inner)
        places = mixed_RI, hidden_RE, out_RE, normed_RE, inner_RI, *room
        calls.behind.run(*places, adapter_of=adapted.adapter_of)
        return out_RE

    def _made(self, adapters: tuple[AdapterWeights, ...]) -> _Calls:
        """For passes whose rows have these, by number."""
        placed = [(weights.native or {}).get(self._number, _NOTHING) for weights in adapters]
        of_joint, of_o, of_gated, of_down = zip(*placed, strict=True) if placed else 4 * [()]
        joint, o, gated, down = self._products
        in_front, behind = AddedPlaces(3, 4), AddedPlaces(5, 6)
        return _Calls(
            Stages(
                self._layer.input_layernorm.stage(0, 1),
                *with_adapters(joint.stage(1, 2), of_joint, in_front),
            ),
            Stages(
                *with_adapters(o.stage(_MIXED, _OUT, added_to=_HIDDEN), of_o, behind),
                self._layer.post_attention_layernorm.stage(_OUT, _NORMED),
                *with_adapters(gated.stage(_NORMED, _INNER), of_gated, behind),
                *with_adapters(down.stage(_INNER, _OUT, added_to=_OUT), of_down, behind),
            ),
            _room([one for layer in placed for one in layer if one is not None]),
        )


def _room(added: Sequence[NativeLowRank]) -> tuple[int, ...]:
    return (max(one.rank for one in added), max(one.num_sums for one in added)) if added else ()


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
    native = NativeLayer(layer, spec, theirs.number, theirs.scale)
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
