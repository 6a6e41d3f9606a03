"""Rotation by position (RoPE), as a group: R(p)·R(o) = R(p + o).

Shapes: H heads, R rows, D head_dim, F = rotary_dim / 2 frequencies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shared.engine.device_arrays import brought

Angles = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """``inv_freq``: one angle per position for each rotated pair (i, i + F); pairs beyond ``2·F`` dimensions
    pass unrotated."""

    inv_freq: tuple[float, ...]

    @property
    def rotary_dim(self) -> int:
        return 2 * len(self.inv_freq)


class Rotation:
    """Rotates rows to their positions, in float32, with angles taken in float64 (float32 angles lose 1e-2 at
    32k positions)."""

    def __init__(self, spec: RopeSpec, device: torch.device) -> None:
        self._inv_freq_F = torch.tensor(spec.inv_freq, dtype=torch.float64)
        self._half = len(spec.inv_freq)
        self.device = device
        self._cos_PF = torch.empty(0, self._half, device=device)
        self._sin_PF = torch.empty(0, self._half, device=device)

    def table(self, num_positions: int) -> Angles:
        """cos and sin [P, F] of positions 0 … P - 1, for some P that is at least ``num_positions``."""
        self._grow(num_positions)
        return self._cos_PF, self._sin_PF

    def angles(self, positions_R: Sequence[int] | Tensor) -> Angles:
        """cos and sin [R, F] of non-negative integer positions [R]."""
        index_R = torch.as_tensor(positions_R, dtype=torch.long)
        self._grow(int(index_R.max()) + 1)
        if index_R.device.type == "cpu":
            index_R = brought(index_R, self.device)
        return self._cos_PF[index_R], self._sin_PF[index_R]

    def rotate(self, x_HRD: Tensor, angles: Angles) -> Tensor:
        """``x`` rotated row by row; one rounding to its own dtype at the end."""
        cos_RF, sin_RF = angles
        half = self._half
        x1, x2 = x_HRD[..., :half].float(), x_HRD[..., half : 2 * half].float()
        out_HRD = torch.empty_like(x_HRD, memory_format=torch.contiguous_format)
        out_HRD[..., :half] = torch.addcmul(x1 * cos_RF, x2, sin_RF, value=-1)
        out_HRD[..., half : 2 * half] = torch.addcmul(x2 * cos_RF, x1, sin_RF)
        out_HRD[..., 2 * half :] = x_HRD[..., 2 * half :]
        return out_HRD

    def _grow(self, num_positions: int) -> None:
        if num_positions <= len(self._cos_PF):
            return
        size = max(1024, 1 << (num_positions - 1).bit_length())
        angles_PF = torch.arange(size, dtype=torch.float64)[:, None] * self._inv_freq_F
        self._cos_PF = brought(angles_PF.cos().float(), self.device)
        self._sin_PF = brought(angles_PF.sin().float(), self.device)
