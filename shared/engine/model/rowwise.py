"""Linear layers and norms in bfloat16 whose results are row by row the same, whatever rows stand beside (C
kernels, ``linear_kernels.c``), for processors with AVX2 or AVX-512 for bfloat16, by their matrix units (AMX)
where they have them.

About as fast as oneDNN's for many rows and faster for few, where the bytes of the weights are the bound. Sums
are float32, in the order of the inputs, and rounded once: within rounding ``torch.nn.Linear``, the slow twin.
Shapes: O outputs, I inputs, R rows.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import linear, pad, silu

from shared.engine.host_memory import HostArena
from shared.engine.model.linear_kernels import (
    UNIT,
    LinearKernels,
    NativeStage,
    ProductKind,
    best_level,
    rms_norm,
)
from shared.engine.model.rounding import TOLERANCE, relative_error

log = logging.getLogger(__name__)
HALF = UNIT // 2


class RowwiseProduct(torch.nn.Module):
    """The product with a weight [O, I], and a bias in float32. Inference only."""

    most_rows = math.inf
    """For which its kernels are the fastest way."""

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None = None) -> None:
        super().__init__()
        self.num_out = len(weight_OI)
        self._kernels = LinearKernels(ProductKind.PAIRS_BFLOAT16)
        more_out = -self.num_out % UNIT
        self._weight = _packed(pad(weight_OI.detach(), (0, 0, 0, more_out)))
        self._bias = pad(torch.zeros(self.num_out) if bias_O is None else bias_O, (0, more_out))

    @property
    def num_bytes(self) -> int:
        """Of the weight."""
        return self._weight.nbytes

    @property
    def num_sums(self) -> int:
        """Outputs of whole units."""
        return len(self._bias)

    def move_weight(self, arena: HostArena) -> None:
        self._weight = arena.moved(self._weight)

    def stage(self, x: int, out: int, added_to: int = -1) -> NativeStage:
        """This product among others (``Stages``), of an even number of inputs; what it is added to, if that
        is wanted, may be what it writes."""
        pointers = self._weight.data_ptr(), None, self._bias.data_ptr()
        return NativeStage(*pointers, 2 * self._weight.shape[1], self.num_out, 0.0, False, x, added_to, out)

    def forward(self, x: Tensor) -> Tensor:
        return self._product(x, self.num_out).view(*x.shape[:-1], self.num_out)

    def _product(self, x: Tensor, num_out: int, gated: bool = False) -> Tensor:
        x_RI = _even(x.reshape(-1, x.shape[-1]))
        return self._kernels.product(x_RI, self._weight, self._bias, num_out, gated=gated)


class RowwiseLinear(RowwiseProduct):
    """An ``nn.Linear``, or several of the same rows as one."""

    def __init__(self, *linears: torch.nn.Linear) -> None:
        super().__init__(
            torch.cat([one.weight for one in linears]), torch.cat([bias_of(one) for one in linears])
        )


class RowwiseGate(RowwiseProduct):
    """silu(gate(x)) · up(x): both weights in one, 16 outputs of the one behind 16 of the other."""

    def __init__(self, gate: torch.nn.Linear, up: torch.nn.Linear) -> None:
        weight_OI = alternating(gate.weight, up.weight)
        super().__init__(weight_OI, alternating(bias_of(gate), bias_of(up)))
        self.num_out = gate.out_features

    def stage(self, x: int, out: int, added_to: int = -1) -> NativeStage:
        stage = super().stage(x, out, added_to)
        stage.gated = True
        return stage

    def forward(self, x: Tensor) -> Tensor:
        inner_RO = self._product(x, self.num_out, gated=True)
        return inner_RO.view(*x.shape[:-1], self.num_out)

    def both(self, x_RI: Tensor) -> tuple[Tensor, Tensor]:
        """gate(x) and up(x), each [R, O]."""
        return parted(self._product(x_RI, self.num_sums), self.num_out)


class RowwiseNorm(torch.nn.Module):
    """weight · x / RMS(x), over the last dimension."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(weight.detach(), requires_grad=False)
        self._eps = float(eps)

    def stage(self, x: int, out: int) -> NativeStage:
        """This norm among others (``Stages``)."""
        return self.stage_of_parts(x, out, len(self.weight), 0, 1)

    def stage_of_parts(self, x: int, out: int, row_width: int, first: int, count: int) -> NativeStage:
        """Norms of ``count`` parts of each row, from that number on, as wide as the weight; they may be what
        is written."""
        pointers = self.weight.data_ptr(), None, None
        sizes = len(self.weight), row_width, self._eps
        return NativeStage(*pointers, *sizes, False, x, -1, out, first, count)

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self._eps)


def bias_of(one: torch.nn.Linear) -> Tensor:
    return torch.zeros(one.out_features) if one.bias is None else one.bias.detach().float()


def _even(x_RI: Tensor) -> Tensor:
    """With a column of zeros, if need be: kernels take inputs two by two."""
    return pad(x_RI, (0, 1)) if x_RI.shape[1] % 2 else x_RI


def _packed(weight_OI: Tensor) -> Tensor:
    """As the kernels read it: [units, inputs / 2, 32, 2]."""
    weight_OI = _even(weight_OI)
    num_out, num_in = weight_OI.shape
    return weight_OI.view(num_out // UNIT, UNIT, num_in // 2, 2).transpose(1, 2).contiguous()


def alternating(first: Tensor, second: Tensor) -> Tensor:
    """16 outputs of the first, then the same 16 of the second; with zeros, so that all are in sixteens."""
    more_out = (0, 0) * (first.dim() - 1) + (0, -len(first) % HALF)
    halves = [pad(one, more_out).view(-1, HALF, *one.shape[1:]) for one in (first, second)]
    return torch.stack(halves, 1).reshape(-1, *first.shape[1:])


def parted(both_RO: Tensor, num_out: int) -> tuple[Tensor, Tensor]:
    """What stands alternating in ``both_RO``: each [R, O]."""
    first, second = both_RO.view(len(both_RO), -1, 2, HALF).unbind(2)
    return tuple(one.reshape(len(both_RO), -1)[:, :num_out] for one in (first, second))  # type: ignore[return-value]


@functools.cache
def rowwise_works() -> bool:
    """The kernels are there for this processor, and compute what they should."""
    if not best_level():
        return False
    with torch.inference_mode():
        differences = _differences(_drawn(70, 45), _drawn(70, 45))
    if all(one < TOLERANCE[torch.bfloat16] for one in differences):
        return True
    log.warning("the kernels of bfloat16 products do not work on this machine (%s); slower", differences)
    return False


def _differences(gate: torch.nn.Linear, up: torch.nn.Linear) -> Sequence[float]:
    """From the slow twin, relative."""
    x_RI = _drawn(gate.in_features, 13).weight.detach()
    g, u = (linear(x_RI, one.weight, one.bias) for one in (gate, up))
    ours = RowwiseLinear(gate, up)(x_RI), RowwiseGate(gate, up)(x_RI)
    return [relative_error(*pair) for pair in zip(ours, (torch.cat((g, u), 1), silu(g) * u), strict=True)]


def _drawn(num_in: int, num_out: int) -> torch.nn.Linear:
    layer = torch.nn.Linear(num_in, num_out, dtype=torch.bfloat16).requires_grad_(False)
    draw = torch.Generator().manual_seed(num_out)
    for parameter in layer.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=draw))
    return layer
