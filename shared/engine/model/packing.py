"""Weights in the order in which the CPU's products take them, arranged once at load instead of at every
product.

A product of few rows is bound by reading weights; as ``nn.Linear`` keeps them oneDNN reads them at half the
speed. A gated MLP also gets its activation and its product with the gate within the matrix products, rounded
to bfloat16 once instead of three times. Where the processor has what they need the products are row by row
the same (``rowwise``), queries, keys and values are one, and a norm is one pass; else they are oneDNN's, or,
where that does not know bfloat16 either, float32's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor
from torch.nn.functional import linear

from shared.engine.host_memory import HostArena
from shared.engine.model.int8 import Int8Gate, Int8Linear, Room
from shared.engine.model.joint import JointProduct
from shared.engine.model.linear_kernels import best_level
from shared.engine.model.rounding import relative_error
from shared.engine.model.rowwise import RowwiseGate, RowwiseLinear, RowwiseNorm, rowwise_works

_GATED = {"gate_proj", "up_proj", "down_proj", "act_fn"}
_JOINT = ("q_proj", "k_proj", "v_proj")
_TOLERANCE = 0.02  # relative, RMS over RMS: a few roundings to bfloat16
_TOLERANCE_INT8 = 0.1  # three weights that are rounded to 8 bits behind each other
_FEW_ROWS = 7  # for which reading a weight as it is beats making it float32
_BLOCK_BYTES = 16 << 20


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


class PackedGate(torch.nn.Module):
    """silu(gate(x)) · up(x), by oneDNN."""

    def __init__(self, gate: torch.nn.Linear, up: torch.nn.Linear) -> None:
        super().__init__()
        self._gate, self._up = PackedLinear(gate), PackedLinear(up)

    def forward(self, x: Tensor) -> Tensor:
        return self._up.times(x, self._gate(x, "swish"))

    def both(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """gate(x) and up(x)."""
        return self._gate(x), self._up(x)


class Float32Linear(torch.nn.Module):
    """An ``nn.Linear`` in bfloat16 whose product of many rows is computed in float32, one block of outputs
    after the other. Its weight stays where it is. Inference only.

    Where neither the kernels nor oneDNN serve torch's product is as slow per row for many rows as for one.
    """

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, x: Tensor) -> Tensor:
        x_RI = x.reshape(-1, x.shape[-1])
        if len(x_RI) <= _FEW_ROWS:
            return linear(x, self.weight, self.bias)
        x_RI, bias_O = x_RI.float(), None if self.bias is None else self.bias.float()
        out_RO = x.new_empty(len(x_RI), len(self.weight))
        for outputs in _blocks(*self.weight.shape):
            bias = None if bias_O is None else bias_O[outputs]
            out_RO[:, outputs] = linear(x_RI, self.weight[outputs].float(), bias)
        return out_RO.view(*x.shape[:-1], len(self.weight))


def _blocks(num_out: int, num_in: int) -> Iterator[slice]:
    """Of outputs whose weights, in float32, stay in a cache."""
    at_once = max(1, _BLOCK_BYTES // (num_in * torch.float32.itemsize))
    return (slice(first, first + at_once) for first in range(0, num_out, at_once))


class Products(NamedTuple):
    """Replaces linear layers, and a gate with what goes through it (None: they stay two layers).
    ``rowwise``: norms are replaced as well, and several layers of the same rows by one. ``tolerance``: of
    gated MLPs, as ``_TOLERANCE``."""

    linear: Callable[..., Any]
    gate: Callable[..., Any] | None
    rowwise: bool
    tolerance: float = _TOLERANCE


ONE_DNN = Products(PackedLinear, PackedGate, rowwise=False)
FLOAT32 = Products(Float32Linear, None, rowwise=False)
ROWWISE = Products(RowwiseLinear, RowwiseGate, rowwise=True)


def int8_products(dtype: torch.dtype) -> Products:
    """For a model of this type. Its layers share the memory in which weights become numbers again."""
    room = Room()
    linear, gate = functools.partial(Int8Linear, room=room), functools.partial(Int8Gate, room=room)
    if dtype is torch.bfloat16 and rowwise_works():
        return Products(linear, gate, rowwise=True, tolerance=_TOLERANCE_INT8)
    return Products(linear, None, rowwise=False)


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

    def __init__(self, mlp: Any, products: Products) -> None:
        super().__init__()
        assert products.gate is not None
        self.gated = products.gate(mlp.gate_proj, mlp.up_proj)
        self.down = products.linear(mlp.down_proj)

    def forward(self, x: Tensor, changed: Sequence[ChangedRows] = ()) -> Tensor:
        """``changed`` rows are computed by themselves, so that all others are what they are without."""
        if changed and sum(len(one.rows) for one in changed) == x[..., 0].numel():
            out = torch.empty_like(x)
        else:
            out = self.down(self.gated(x))
        for one in changed:
            x_PE = x.reshape(-1, x.shape[-1]).index_select(0, one.rows_P)
            gate_PI, up_PI = self.gated.both(x_PE)
            gate_PI = one.plus("mlp.gate_proj", x_PE, gate_PI)
            inner_PI = torch.nn.functional.silu(gate_PI) * one.plus("mlp.up_proj", x_PE, up_PI)
            changed_PE = one.plus("mlp.down_proj", inner_PI, self.down(inner_PI))
            out.view(-1, out.shape[-1]).index_copy_(0, one.rows, changed_PE[: len(one.rows)])
        return out


class JointPart(torch.nn.Module):
    """One of several layers that are one product, the ``whole``."""

    def __init__(
        self, whole: RowwiseLinear | Int8Linear, joint: JointProduct, nth: int, num_out: int
    ) -> None:
        super().__init__()
        self.whole, self._joint, self._nth = whole, joint, nth
        self.num_out = num_out

    def forward(self, x: Tensor) -> Tensor:
        return self._joint.of(self._nth, x)


def packed_bytes(hf_model: Any) -> int:
    """Of all packed weights of the model."""
    packed = (PackedLinear, RowwiseLinear, RowwiseGate)
    return sum(module.num_bytes for module in hf_model.modules() if isinstance(module, packed))


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """There are products for this processor that take bfloat16 weights."""
    return device.type == "cpu" and dtype is torch.bfloat16


def bfloat16_is_fast() -> bool:
    """On a CPU: it has products of its own for it."""
    return best_products() is not FLOAT32


def best_products() -> Products:
    """Those of AVX2 only where oneDNN, which may use AVX-512 without bfloat16, does not know bfloat16."""
    if rowwise_works() and (best_level() > 1 or not _one_dnn_works()):
        return ROWWISE
    return ONE_DNN if _one_dnn_works() else FLOAT32


def _one_dnn_works() -> bool:
    return torch._C._has_mkldnn and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def pack_linears(model: Any, products: Products, arena: HostArena) -> None:
    """Every gated MLP and every other ``nn.Linear`` in the model is replaced, and norms if ``products`` has
    them, one after the other, so that little is there twice. A head that shares its weight with the embedding
    gets one of its own. ``arena``: where weights that the kernels read will lie."""
    if products.rowwise:
        _join(model, products, arena)
    for name in [name for name, _ in model.named_children()]:
        packed = _packed(getattr(model, name), products)
        if packed is None:
            pack_linears(getattr(model, name), products, arena)
        else:
            _move_weights(packed, arena)
            setattr(model, name, packed)


def _move_weights(packed: torch.nn.Module, arena: HostArena) -> None:
    for module in packed.modules():
        if isinstance(module, (RowwiseLinear, RowwiseGate, Int8Linear, Int8Gate)):
            module.move_weight(arena)


def _join(module: Any, products: Products, arena: HostArena) -> None:
    linears = [getattr(module, name, None) for name in _JOINT]
    if any(type(one) is not torch.nn.Linear for one in linears):
        return
    layers = cast(Sequence[torch.nn.Linear], linears)
    if len({one.in_features for one in layers}) == 1:
        whole = products.linear(*layers)
        whole.move_weight(arena)
        widths = [one.out_features for one in layers]
        joint = JointProduct(whole, widths)
        for nth, name in enumerate(_JOINT):
            setattr(module, name, JointPart(whole, joint, nth, widths[nth]))


def _packed(module: Any, products: Products) -> torch.nn.Module | None:
    if type(module) is torch.nn.Linear:
        return cast(torch.nn.Module, products.linear(module))
    if is_gated_mlp(module) and products.gate is not None:
        packed = PackedGatedMlp(module, products)
        width = module.gate_proj.in_features
        return packed if _difference(module, packed, width) <= products.tolerance else None
    if is_rms_norm(module) and products.rowwise:
        norm = RowwiseNorm(module.weight, module.variance_epsilon)
        return norm if _difference(module, norm, len(module.weight)) <= _TOLERANCE else None
    return None


def is_gated_mlp(module: Any) -> bool:
    """By its parts; what it does with them is another question."""
    return {name for name, _ in module.named_children()} == _GATED and _is_silu(module.act_fn)


def is_rms_norm(module: Any) -> bool:
    """By its name; whether it adds something to its weight is another question."""
    return type(module).__name__.endswith("RMSNorm") and hasattr(module, "variance_epsilon")


def _is_silu(activation: Any) -> bool:
    """By what it computes: transformers has a class of its own for it."""
    x = torch.linspace(-9.0, 9.0, 145)
    return torch.equal(activation(x), torch.nn.functional.silu(x))


def _difference(module: Any, packed: torch.nn.Module, num_in: int) -> float:
    """A module of such parts may still compute something else with them."""
    noise = torch.randn(4, num_in, generator=torch.Generator().manual_seed(0)).bfloat16()
    return relative_error(packed(noise), module(noise))
