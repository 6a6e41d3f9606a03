"""Decoder layers as native calls. The parts of a layer beside its attention are two: norms, queries, keys and
values in front of it; the product of what was attended, residuals, norm and gated MLP behind it. Where
nothing else is to be done between layers, all of them are one, attention included.

With few rows the layer of ``transformers`` takes as long between its products as for some of them. The bits
are those of its modules one after the other (``rowwise``, ``packing``): they are what is called here, by
their packed weights. What adapters add is part of the same calls (``native_adapter``). Shapes: R rows, E
hidden size, H heads (K of keys and values), D head_dim.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from shared.engine.attention import Attention
from shared.engine.backends.native import NativeAttention, to_base_2
from shared.engine.model.adapting import NOTHING_ADAPTED, AdaptedRows, AdapterWeights
from shared.engine.model.int8 import Int8Gate, Int8Linear
from shared.engine.model.linear_kernels import Layers, LayerStages, NativeStage, Stages
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
_HIDDEN, _NORMED, _JOINT, _MIXED, _INNER, _LOW_RANK, _ADDED = range(7)  # places, as in layers.c
_ROOM = AddedPlaces(_LOW_RANK, _ADDED)
_NOTHING = (None, None, None, None)  # is added to the four products
_MOST_CALLS = 16  # kept, for passes with these adapters or those
Stock = Callable[[Tensor, Attention], Tensor]
"""A layer of ``transformers``, on rows [R, E]."""


class _Calls(NamedTuple):
    """``room``: widths of what adapters need, if there are any: of what A makes, and of what is added."""

    stages: LayerStages
    room: tuple[int, ...]


class NativeLayer:
    """Of a layer that ``native_layer`` knows. ``number``, ``scale``: as it hands them to attention."""

    def __init__(self, layer: Any, spec: ModelSpec, number: int, scale: float) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        joint: RowwiseLinear | Int8Linear = attention.q_proj.whole
        self._layer = layer  # whose weights the calls read
        self._most_rows = joint.most_rows
        self._number, self._scale = number, scale
        self._head_dim = spec.head_dim
        self._heads = [spec.num_heads, spec.num_kv_heads, spec.num_kv_heads]
        self._products = joint, attention.o_proj, mlp.gated, mlp.down
        width, attended = len(layer.input_layernorm.weight), spec.num_heads * spec.head_dim
        self.widths = width, width, joint.num_out, attended, mlp.gated.num_out
        """Of the places that all passes need, in their order."""
        self.calls = functools.lru_cache(_MOST_CALLS)(self._made)

    def takes(self, num_rows: int, adapted: AdaptedRows) -> bool:
        """The kernels are the fastest way for so many rows, and know their adapters."""
        return num_rows <= self._most_rows and (not adapted or bool(adapted.adapters))

    def placed(self, by_path: Mapping[str, LowRank]) -> tuple[NativeLowRank | None, ...]:
        """What an adapter adds to each product."""
        width, inner = self.widths[_HIDDEN], self.widths[_INNER]
        heads = [number * self._head_dim for number in self._heads]
        widths = heads, [width], [inner, inner], [width]
        sums = [product.num_sums for product in self._products]
        products = map(AdaptedProduct, _PATHS, widths, sums, (False, False, True, False))
        return tuple(product.low_rank(by_path) for product in products)

    def places(self, hidden_RE: Tensor, room: Sequence[int]) -> list[Tensor]:
        """``hidden_RE``: is written."""
        widths = *self.widths[_NORMED:], *room
        return [hidden_RE, *(hidden_RE.new_empty(len(hidden_RE), width) for width in widths)]

    def __call__(self, hidden_RE: Tensor, plan: Attention, adapted: AdaptedRows = NOTHING_ADAPTED) -> Tensor:
        (in_front, behind, *_), room = self.calls(adapted.adapters)
        places = self.places(hidden_RE.clone(memory_format=torch.contiguous_format), room)
        in_front.run(*places, adapter_of=adapted.adapter_of)
        qkv = places[_JOINT].view(len(hidden_RE), sum(self._heads), self._head_dim)
        q_HRD, k_KRD, v_KRD = (part.transpose(0, 1) for part in torch.split(qkv, self._heads, 1))
        mixed_HRD = plan.run(self._number, q_HRD, k_KRD, v_KRD, self._scale)
        places[_MIXED] = mixed_HRD.transpose(0, 1).flatten(1).contiguous()
        behind.run(*places, adapter_of=adapted.adapter_of)
        return places[_HIDDEN]

    def _made(self, adapters: tuple[AdapterWeights, ...]) -> _Calls:
        """For passes whose rows have these, by number."""
        placed = [(weights.native or {}).get(self._number, _NOTHING) for weights in adapters]
        of_joint, of_o, of_gated, of_down = zip(*placed, strict=True) if placed else 4 * [()]
        joint, o, gated, down = self._products
        in_front = Stages(
            self._layer.input_layernorm.stage(_HIDDEN, _NORMED),
            *with_adapters(joint.stage(_NORMED, _JOINT), of_joint, _ROOM),
            *self._norms_of_heads(),
        )
        behind = Stages(
            *with_adapters(o.stage(_MIXED, _HIDDEN, added_to=_HIDDEN), of_o, _ROOM),
            self._layer.post_attention_layernorm.stage(_HIDDEN, _NORMED),
            *with_adapters(gated.stage(_NORMED, _INNER), of_gated, _ROOM),
            *with_adapters(down.stage(_INNER, _HIDDEN, added_to=_HIDDEN), of_down, _ROOM),
        )
        added = [one for layer in placed for one in layer if one is not None]
        room = (max(one.rank for one in added), max(one.num_sums for one in added)) if added else ()
        return _Calls(LayerStages(in_front, behind, self._number, to_base_2(self._scale)), room)

    def _norms_of_heads(self) -> Iterator[NativeStage]:
        first = 0
        for name, count in zip(("q_norm", "k_norm"), self._heads, strict=False):
            if (norm := getattr(self._layer.self_attn, name, None)) is not None:
                yield norm.stage_of_parts(_JOINT, _JOINT, self.widths[_JOINT], first, count)
            first += count


class NativeLayers:
    """All layers of a model in one native call, of passes with nothing to do between them."""

    def __init__(self, layers: Sequence[NativeLayer]) -> None:
        self._layers = layers
        self._calls = functools.lru_cache(_MOST_CALLS)(self._made)

    @classmethod
    def of(cls, layers: Sequence[NativeLayer | None]) -> NativeLayers | None:
        """None: not all of them are native, or they differ in size."""
        native = [layer for layer in layers if layer is not None]
        alike = len(native) == len(layers) and len({layer.widths for layer in native}) == 1
        return cls(native) if alike else None

    def run(self, hidden_RE: Tensor, attention: NativeAttention, adapted: AdaptedRows) -> Tensor | None:
        """``hidden_RE`` [R, E], of at least one row: is written, and is the result. None: the kernels are not
        for them (``NativeLayer.takes``)."""
        if not self._layers[0].takes(len(hidden_RE), adapted):
            return None
        layers, room = self._calls(adapted.adapters)
        places = self._layers[0].places(hidden_RE.contiguous(), room)
        layers.run(attention.level, attention.step, places, adapted.adapter_of)
        return places[_HIDDEN]

    def _made(self, adapters: tuple[AdapterWeights, ...]) -> tuple[Layers, tuple[int, ...]]:
        calls = [layer.calls(adapters) for layer in self._layers]
        room = tuple(map(max, zip(*(one.room for one in calls if one.room), strict=True)))
        return Layers([one.stages for one in calls]), room


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
