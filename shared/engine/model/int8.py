"""Linear layers whose weights are int8, one scale per output: half the bytes of bfloat16, and reading them is
what bounds a product of few rows.

Rows are not quantised: each weight becomes a float again as it is read (C kernels, ``linear_kernels.c``),
sums are float32, and the scale comes behind the sum. For many rows, where arithmetic is the bound, a block of
weights after the other becomes numbers of the rows' type for torch's own product. Both equal, within
rounding, ``torch.nn.Linear`` over the dequantised weights (``round_weights``), the slow twin. Embeddings,
norms and biases stay what they are. Shapes: O outputs, I inputs, R rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from shared.engine.host_memory import HostArena
from shared.engine.model.linear_kernels import UNIT, LinearKernels, ProductKind, best_level, library
from shared.engine.model.rounding import TOLERANCE, relative_error
from shared.errors import ConfigError, ModelUnsupported

SCHEME = "int8 per output"
"""In the fingerprint of a model with such weights: another way of rounding them needs another name."""
MOST_ROWS = 64
"""For which the kernels are faster than torch's product."""
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


class Int8Linear(torch.nn.Module):
    """An ``nn.Linear`` with int8 weights, on a CPU. Inference only. A row's result does not depend on the
    rows beside it while they are at most ``MOST_ROWS``."""

    def __init__(self, linear: torch.nn.Linear, room: Room, level: int | None = None) -> None:
        """``level``: of ``LEVELS``, None for the best one here."""
        super().__init__()
        level = best_level() if level is None else level
        self._room, self._num_in, self._num_out = room, linear.in_features, linear.out_features
        self._pairs = level > 1 and linear.weight.dtype is torch.bfloat16
        self._kernels = LinearKernels(
            ProductKind.PAIRS_INT8 if self._pairs else ProductKind.SINGLES_INT8, level
        )
        int8_OI, scale_O = quantised(linear.weight)
        self._more_in, more_out = -self._num_in % 4, -self._num_out % UNIT
        self._weight = _packed(pad(int8_OI, (0, self._more_in, 0, more_out)), self._pairs)
        self._scale = pad(scale_O, (0, more_out))
        bias_O = torch.zeros_like(scale_O) if linear.bias is None else linear.bias.detach().float()
        self._bias = pad(bias_O, (0, more_out))

    @property
    def num_bytes(self) -> int:
        """Of the weight and its scales."""
        return self._weight.nbytes + self._scale.nbytes

    def move_weight(self, arena: HostArena) -> None:
        self._weight = arena.moved(self._weight)

    def forward(self, x: Tensor) -> Tensor:
        dtype = torch.bfloat16 if self._pairs else torch.float32
        x_RI = x.reshape(-1, self._num_in).to(dtype)
        out_RO = self._few(x_RI) if len(x_RI) <= MOST_ROWS else self._many(x_RI)
        return out_RO.to(x.dtype).view(*x.shape[:-1], self._num_out)

    def _few(self, x_RI: Tensor) -> Tensor:
        x_RI = pad(x_RI, (0, self._more_in)) if self._more_in else x_RI
        return self._kernels.product(x_RI, self._weight, self._bias, self._num_out, self._scale)

    def _many(self, x_RI: Tensor) -> Tensor:
        """A block of outputs after the other."""
        num_in, num_units = self._num_in + self._more_in, len(self._scale) // UNIT
        at_once = max(1, _BLOCK_BYTES // (num_in * UNIT * x_RI.dtype.itemsize))
        blocks: list[Tensor] = []
        for first in range(0, num_units, at_once):
            units = min(at_once, num_units - first)
            weight_IO = self._room.of(num_in, units * UNIT, x_RI.dtype)
            self._kernels.numbers(self._weight, self._scale, first, weight_IO)
            bias_O = self._bias[first * UNIT : (first + units) * UNIT].to(x_RI.dtype)
            blocks.append(torch.addmm(bias_O, x_RI, weight_IO[: self._num_in]))
        whole = blocks[0] if len(blocks) == 1 else torch.cat(blocks, 1)
        return whole if whole.shape[1] == self._num_out else whole[:, : self._num_out].contiguous()


def _packed(int8_OI: Tensor, pairs: bool) -> Tensor:
    """As the kernels read them; whole units, inputs in fours."""
    num_units, num_in = len(int8_OI) // UNIT, int8_OI.shape[1]
    if not pairs:
        return int8_OI.view(num_units, UNIT, num_in).transpose(1, 2).contiguous()
    two_inputs = int8_OI.view(torch.int16)  # which stay together
    parts = two_inputs.view(num_units, 2, 4, 4, num_in // 4, 2)  # 2 · 16 outputs (4 · 4), fours of inputs
    return parts.permute(0, 4, 1, 2, 5, 3).contiguous().view(torch.int8)


def quantise_linears(hf_model: Any) -> None:
    """Every ``nn.Linear`` of the model is replaced, one after the other, so that little is there twice. A
    head that shares its weight with the embedding gets one of its own.

    Raises:
        ConfigError: there are no kernels for this device or processor, or they do not work here.
        ModelUnsupported: a layer has weights that are no linear layers.
    """
    _check_device(hf_model.lm_head.weight)
    _check_layers(hf_model)
    _check_kernels(hf_model.lm_head.weight.dtype)
    room, arena = Room(), HostArena()
    for owner, name in list(_linears(hf_model)):
        int8 = Int8Linear(getattr(owner, name), room)
        int8.move_weight(arena)
        setattr(owner, name, int8)


def int8_bytes(hf_model: Any) -> int:
    """Of all int8 weights of the model, with their scales."""
    return sum(module.num_bytes for module in hf_model.modules() if isinstance(module, Int8Linear))


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
    ours = Int8Linear(linear, Room())
    round_weights(torch.nn.Sequential(linear))
    for num_rows in (1, 7, MOST_ROWS + 1):
        x_RI = torch.randn(num_rows, 70, generator=draw).to(dtype)
        difference = relative_error(ours(x_RI), linear(x_RI))
        if not difference < TOLERANCE[dtype]:
            raise ConfigError(
                f"engine.weights: the kernels of int8 weights do not work on this machine (their product "
                f"of {num_rows} rows is off by {difference:.2g}); {_INSTEAD}"
            )
