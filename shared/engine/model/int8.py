"""Linear layers whose weights are int8, one scale per output: half the bytes of bfloat16, and reading them is
what bounds a product of few rows.

Rows are not quantised: each weight becomes a float again as it is read (C kernels, ``linear_kernels.c``),
sums are float32, and the scale comes behind the sum. For many rows, where arithmetic is the bound, a block of
weights after the other becomes numbers (of the rows' type, or float32, whichever is faster) for torch's own
product. Both equal, within rounding, ``torch.nn.Linear`` over the dequantised weights (``round_weights``),
the slow twin. Embeddings, norms and biases stay what they are. Shapes: O outputs, I inputs, R rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad, silu

from shared.engine.host_memory import HostArena
from shared.engine.model.linear_kernels import (
    UNIT,
    LinearKernels,
    NativeStage,
    ProductKind,
    best_level,
    library,
)
from shared.engine.model.rounding import TOLERANCE, relative_error
from shared.engine.model.rowwise import alternating, bias_of, parted
from shared.errors import ConfigError, ModelUnsupported

SCHEME = "int8 per output"
"""In the fingerprint of a model with such weights: another way of rounding them needs another name."""
MOST_ROWS, MOST_ROWS_IN_TILES = 64, 512
"""For which the kernels are faster than torch's product: by vectors, and by matrix units."""
_LARGEST = 127
_BLOCK_BYTES = 16 << 20
_INSTEAD = "set engine.weights to exact"


def quantised(weight_OI: Tensor) -> tuple[Tensor, Tensor]:
    """The int8 weights [O, I], from -127 to 127, and their scales [O] in float32. Round half to even, so that
    equal weights give equal numbers everywhere."""
    steps_OI = weight_OI.detach().to(torch.float32, copy=True)
    least_O, most_O = steps_OI.aminmax(dim=1)
    scale_O = torch.maximum(-least_O, most_O) / _LARGEST
    steps_OI /= torch.where(scale_O > 0, scale_O, 1.0)[:, None]
    return steps_OI.round_().clamp_(-_LARGEST, _LARGEST).to(torch.int8), scale_O


def round_weights(hf_model: Any) -> None:
    """The slow twin: every weight that would be int8 becomes the number that its int8 stands for, in the
    model's type. A head that shares its weight with the embedding gets one of its own."""
    for owner, name in _linears(hf_model):
        linear = getattr(owner, name)
        int8_OI, scale_O = quantised(linear.weight)
        rounded_OI = (int8_OI.float() * scale_O[:, None]).to(linear.weight.dtype)
        linear.weight = torch.nn.Parameter(rounded_OI, requires_grad=False)


class Room:
    """Memory for a block of weights as floats; products follow each other, so all layers can have the
    same."""

    def __init__(self) -> None:
        self._bytes = torch.empty(0, dtype=torch.uint8)

    def of(self, num_rows: int, num_columns: int, dtype: torch.dtype) -> Tensor:
        """Uninitialised, [rows, columns]."""
        num_bytes = num_rows * num_columns * dtype.itemsize
        if len(self._bytes) < num_bytes:
            self._bytes = torch.empty(num_bytes, dtype=torch.uint8)
        return self._bytes[:num_bytes].view(dtype).view(num_rows, num_columns)


class _Int8Product(torch.nn.Module):
    """Multiplies rows with int8 weights, one scale per output, on a CPU. Inference only. A row's result does
    not depend on the rows beside it while they are at most ``most_rows``."""

    def __init__(self, weight_OI: Tensor, bias_O: Tensor, room: Room, level: int | None) -> None:
        """``level``: of ``LEVELS``, None for the best one here."""
        super().__init__()
        level = best_level() if level is None else level
        self._room, self._num_in = room, weight_OI.shape[1]
        of_bfloat16 = weight_OI.dtype is torch.bfloat16
        self._rows_dtype = torch.bfloat16 if of_bfloat16 else torch.float32
        self._kernels = LinearKernels(
            ProductKind.PAIRS_INT8 if of_bfloat16 else ProductKind.SINGLES_INT8, level
        )
        in_pairs = of_bfloat16 and level > 1
        # Without AVX-512 there is no product of many rows in bfloat16 that is fast.
        self._numbers_dtype = torch.bfloat16 if in_pairs else torch.float32
        self._numbers = LinearKernels(ProductKind.PAIRS_INT8 if in_pairs else ProductKind.SINGLES_INT8, level)
        self.most_rows = MOST_ROWS_IN_TILES if in_pairs and level > 2 else MOST_ROWS
        int8_OI, scale_O = quantised(weight_OI)
        self._more_in, more_out = -self._num_in % 4, -len(scale_O) % UNIT
        self._weight = _packed(pad(int8_OI, (0, self._more_in, 0, more_out)), in_pairs)
        self._scale = pad(scale_O, (0, more_out))
        self._bias = pad(bias_O, (0, more_out))

    @property
    def num_bytes(self) -> int:
        """Of the weights and their scales."""
        return self._weight.nbytes + self._scale.nbytes

    @property
    def num_sums(self) -> int:
        """Outputs of whole units."""
        return len(self._bias)

    def move_weight(self, arena: HostArena) -> None:
        self._weight = arena.moved(self._weight)

    def _stage(self, num_out: int, x: int, out: int, added_to: int = -1, gated: bool = False) -> NativeStage:
        pointers = self._weight.data_ptr(), self._scale.data_ptr(), self._bias.data_ptr()
        return NativeStage(*pointers, self._num_in, num_out, 0.0, gated, x, added_to, out)

    def _rows(self, x: Tensor) -> Tensor:
        """``x`` as the kernels take rows."""
        return x.reshape(-1, self._num_in).to(self._rows_dtype)

    def _few(self, x_RI: Tensor, num_out: int, gated: bool = False) -> Tensor:
        x_RI = pad(x_RI, (0, self._more_in)) if self._more_in else x_RI
        return self._kernels.product(x_RI, self._weight, self._bias, num_out, self._scale, gated)

    def _many(self, x_RI: Tensor, num_out: int) -> Tensor:
        """A block of outputs after the other."""
        x_RI = x_RI.to(self._numbers_dtype)
        num_in, num_units = self._num_in + self._more_in, len(self._scale) // UNIT
        at_once = max(1, _BLOCK_BYTES // (num_in * UNIT * x_RI.dtype.itemsize))
        blocks: list[Tensor] = []
        for first in range(0, num_units, at_once):
            units = min(at_once, num_units - first)
            weight_IO = self._room.of(num_in, units * UNIT, x_RI.dtype)
            self._numbers.numbers(self._weight, self._scale, first, weight_IO)
            bias_O = self._bias[first * UNIT : (first + units) * UNIT].to(x_RI.dtype)
            out_RO = torch.addmm(bias_O, x_RI, weight_IO[: self._num_in])
            blocks.append(out_RO.to(self._rows_dtype))
        whole = blocks[0] if len(blocks) == 1 else torch.cat(blocks, 1)
        return whole if whole.shape[1] == num_out else whole[:, :num_out].contiguous()

    def _product(self, x_RI: Tensor, num_out: int) -> Tensor:
        return (self._few if len(x_RI) <= self.most_rows else self._many)(x_RI, num_out)


class Int8Linear(_Int8Product):
    """An ``nn.Linear``, or several of the same rows as one."""

    def __init__(self, *linears: torch.nn.Linear, room: Room, level: int | None = None) -> None:
        weight_OI = torch.cat([one.weight.detach() for one in linears])
        super().__init__(weight_OI, torch.cat([bias_of(one) for one in linears]), room, level)
        self.num_out = len(weight_OI)

    def stage(self, x: int, out: int, added_to: int = -1) -> NativeStage:
        """As ``RowwiseLinear.stage``, of a number of inputs that is a multiple of 4."""
        return self._stage(self.num_out, x, out, added_to)

    def forward(self, x: Tensor) -> Tensor:
        out_RO = self._product(self._rows(x), self.num_out)
        return out_RO.to(x.dtype).view(*x.shape[:-1], self.num_out)


class Int8Gate(_Int8Product):
    """silu(gate(x)) · up(x), as ``RowwiseGate``. Needs rows of bfloat16."""

    def __init__(
        self, gate: torch.nn.Linear, up: torch.nn.Linear, *, room: Room, level: int | None = None
    ) -> None:
        weight_OI = alternating(gate.weight.detach(), up.weight.detach())
        super().__init__(weight_OI, alternating(bias_of(gate), bias_of(up)), room, level)
        self.num_out = gate.out_features

    def stage(self, x: int, out: int) -> NativeStage:
        """As ``Int8Linear.stage``."""
        return self._stage(self.num_out, x, out, gated=True)

    def forward(self, x: Tensor) -> Tensor:
        x_RI = self._rows(x)
        if len(x_RI) <= self.most_rows:
            inner_RO = self._few(x_RI, self.num_out, gated=True)
        else:
            gate_RO, up_RO = self.both(x_RI)
            inner_RO = silu(gate_RO) * up_RO
        return inner_RO.view(*x.shape[:-1], self.num_out)

    def both(self, x_RI: Tensor) -> tuple[Tensor, Tensor]:
        """gate(x) and up(x), each [R, O]."""
        return parted(self._product(self._rows(x_RI), len(self._bias)), self.num_out)


def _packed(int8_OI: Tensor, pairs: bool) -> Tensor:
    """As the kernels read them; whole units, inputs in fours. ``pairs``: for rows of bfloat16 and AVX-512."""
    num_units, num_in = len(int8_OI) // UNIT, int8_OI.shape[1]
    if not pairs:
        return int8_OI.view(num_units, UNIT, num_in).transpose(1, 2).contiguous()
    two_inputs = int8_OI.view(torch.int16)  # which stay together
    parts = two_inputs.view(num_units, 2, 4, 4, num_in // 4, 2)  # 2 · 16 outputs (4 · 4), fours of inputs
    return parts.permute(0, 4, 1, 2, 5, 3).contiguous().view(torch.int8)


def check_int8(hf_model: Any) -> None:
    """
    Raises:
        ConfigError: there are no kernels for this device or processor, or they do not work here.
        ModelUnsupported: a layer has weights that are no linear layers.
    """
    _check_device(hf_model.lm_head.weight)
    _check_layers(hf_model)
    _check_kernels(hf_model.lm_head.weight.dtype)


def int8_bytes(hf_model: Any) -> int:
    """Of all int8 weights of the model, with their scales."""
    return sum(module.num_bytes for module in hf_model.modules() if isinstance(module, _Int8Product))


def _linears(hf_model: Any) -> Iterator[tuple[torch.nn.Module, str]]:
    """Finds the linear layers that become int8: each one's parent, and its name there."""
    for owner in hf_model.modules():
        for name, child in owner.named_children():
            if type(child) is torch.nn.Linear:
                yield owner, name


def _check_device(weight: Tensor) -> None:
    if weight.device.type != "cpu":
        raise ConfigError(f"engine.weights: int8 weights are for CPUs; {_INSTEAD}, or engine.device to cpu")
    if library() is None:
        raise ConfigError(
            "engine.weights: the kernels of int8 weights were not compiled with this installation; reinstall "
            f"kvquilt where gcc is on PATH, or {_INSTEAD}"
        )
    if not best_level():
        raise ConfigError(f"engine.weights: int8 weights need a CPU with AVX2; {_INSTEAD}")
    if weight.dtype not in TOLERANCE:
        raise ConfigError(f"engine.weights: int8 weights know no rows of {weight.dtype}; {_INSTEAD}")


def _check_layers(hf_model: Any) -> None:
    for number, layer in enumerate(hf_model.model.layers):
        inside = {
            f"{path}.weight" for path, module in layer.named_modules() if type(module) is torch.nn.Linear
        }
        for name, parameter in layer.named_parameters():
            if parameter.dim() > 1 and name not in inside:
                raise ModelUnsupported(
                    f"engine.weights: layer {number} has weights that are no linear layer ({name}), as "
                    f"mixtures of experts have; they do not become int8: {_INSTEAD}"
                )


def _check_kernels(dtype: torch.dtype) -> None:
    """On this very machine."""
    draw = torch.Generator().manual_seed(0)
    linear = torch.nn.Linear(70, 45, dtype=dtype).requires_grad_(False)
    for parameter in linear.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=draw))
    ours = Int8Linear(linear, room=Room())
    round_weights(torch.nn.Sequential(linear))
    for num_rows in (1, 7, ours.most_rows + 1):
        x_RI = torch.randn(num_rows, 70, generator=draw).to(dtype)
        difference = relative_error(ours(x_RI), linear(x_RI))
        if not difference < TOLERANCE[dtype]:
            raise ConfigError(
                f"engine.weights: the kernels of int8 weights do not work on this machine (their product "
                f"of {num_rows} rows is off by {difference:.2g}); {_INSTEAD}"
            )
