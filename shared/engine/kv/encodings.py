"""Turns a layer's keys and values into what is kept of them, and back.

``exact`` keeps them as they are. ``int8`` and ``int4`` keep small integers: of keys *before* rotation, where
a channel is alike over tokens (rotation mixes channel pairs by position), one range per channel; of values
one range per token (KIVI, arXiv 2402.02750). A range is its smallest value and a step, never symmetric: keys
with a bias would lose most of their bits.

Keys arrive and leave rotated at local positions 0, 1, 2, … by the plain rotation. A factor that a model puts
on cos and sin (YaRN) is part of the keys and stays in them. All arithmetic is float32, with one rounding to
the model's type at the end.

Shapes: H KV heads, T tokens, D head_dim, G groups; buffers are those of ``shared.kv_buffers``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from shared.engine.model.rope import Rotation
from shared.kv_buffers import INT4_KEY_TOKENS, INT4_VALUE_CHANNELS

Buffers = Mapping[str, Tensor]


class Encoding(Protocol):
    """Tensors are on one device. KV must be finite."""

    def encode(self, k_HTD: Tensor, v_HTD: Tensor, rotation: Rotation) -> Buffers:
        """Contiguous, but perhaps the very tensors given."""
        ...

    def decode(self, buffers: Buffers, rotation: Rotation, k_out_HTD: Tensor, v_out_HTD: Tensor) -> None:
        """Fills both with what ``buffers`` stand for."""
        ...


class Exact:
    def encode(self, k_HTD: Tensor, v_HTD: Tensor, rotation: Rotation) -> Buffers:
        return {"k": k_HTD.contiguous(), "v": v_HTD.contiguous()}

    def decode(self, buffers: Buffers, rotation: Rotation, k_out_HTD: Tensor, v_out_HTD: Tensor) -> None:
        k_out_HTD.copy_(buffers["k"])
        v_out_HTD.copy_(buffers["v"])


@dataclass(frozen=True, slots=True)
class Integers:
    """``levels`` steps per range; one range of keys per ``key_tokens`` tokens, one of values per
    ``value_channels`` (0: all of them); ``packed``: two numbers per byte."""

    levels: int
    key_tokens: int = 0
    value_channels: int = 0
    packed: bool = False

    def encode(self, k_HTD: Tensor, v_HTD: Tensor, rotation: Rotation) -> Buffers:
        cos, sin = _local_angles(rotation, k_HTD)
        unrotated_HTD = rotation.rotate(k_HTD.float(), (cos, -sin))
        k, k_scale, k_offset = self._reduced(unrotated_HTD, 1, self.key_tokens, k_HTD.dtype)
        v, v_scale, v_offset = self._reduced(v_HTD.float(), 2, self.value_channels, v_HTD.dtype)
        return {
            "k": k,
            "k_scale": k_scale,
            "k_offset": k_offset,
            "v": v,
            "v_scale": v_scale,
            "v_offset": v_offset,
        }

    def decode(self, buffers: Buffers, rotation: Rotation, k_out_HTD: Tensor, v_out_HTD: Tensor) -> None:
        unrotated_HTD = self._restored(buffers, "k", 1, self.key_tokens, k_out_HTD)
        k_out_HTD.copy_(
            _within(rotation.rotate(unrotated_HTD, _local_angles(rotation, k_out_HTD)), k_out_HTD.dtype)
        )
        v_out_HTD.copy_(
            _within(self._restored(buffers, "v", 2, self.value_channels, v_out_HTD), v_out_HTD.dtype)
        )

    def _reduced(
        self, x_HTD: Tensor, dim: int, group: int, range_type: torch.dtype
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Numbers, steps and smallest values; these two without the dimension that they are taken over where
        it is one group."""
        grouped = _grouped(x_HTD, dim, group)
        low, high = grouped.aminmax(dim=dim + 1, keepdim=True)
        offset = _rounded_down(low, range_type)
        base = offset.float()
        scale = _rounded_up((high - base) / self.levels, range_type)
        step = scale.float()
        numbers = (
            torch.where(step > 0, (grouped - base) / step, 0).round_().clamp_(0, self.levels).to(torch.uint8)
        )
        numbers_HTD = numbers.flatten(dim, dim + 1).narrow(dim, 0, x_HTD.shape[dim])
        dropped = dim + 1 if group else (dim, dim + 1)
        return (
            self._pack(numbers_HTD),
            scale.squeeze(dropped).contiguous(),
            offset.squeeze(dropped).contiguous(),
        )

    def _restored(self, buffers: Buffers, name: str, dim: int, group: int, like_HTD: Tensor) -> Tensor:
        numbers_HTD = self._unpack(buffers[name], like_HTD.shape[2]).float()
        scale, offset = (
            _spread(buffers[f"{name}_{part}"].float(), dim, group, like_HTD.shape)
            for part in ("scale", "offset")
        )
        return numbers_HTD.mul_(scale).add_(offset)

    def _pack(self, numbers_HTD: Tensor) -> Tensor:
        """Even channels in the low half of a byte, odd ones in the high half."""
        if not self.packed:
            return numbers_HTD.contiguous()
        even = torch.nn.functional.pad(numbers_HTD, (0, numbers_HTD.shape[2] % 2))
        return even[..., 0::2] | even[..., 1::2] << 4

    def _unpack(self, numbers: Tensor, head_dim: int) -> Tensor:
        if not self.packed:
            return numbers
        return torch.stack([numbers & 15, numbers >> 4], -1).flatten(2)[..., :head_dim]


EXACT = "exact"
_ENCODINGS: dict[str, Encoding] = {
    EXACT: Exact(),
    "int8": Integers(levels=255),
    "int4": Integers(levels=15, key_tokens=INT4_KEY_TOKENS, value_channels=INT4_VALUE_CHANNELS, packed=True),
}


def encoding_of(name: str) -> Encoding:
    """One of ``shared.kv_buffers.ENCODINGS``."""
    return _ENCODINGS[name]


def _local_angles(rotation: Rotation, k_HTD: Tensor) -> tuple[Tensor, Tensor]:
    num_tokens = k_HTD.shape[1]
    cos_PF, sin_PF = rotation.table(num_tokens)
    return cos_PF[:num_tokens], sin_PF[:num_tokens]


def _grouped(x_HTD: Tensor, dim: int, group: int) -> Tensor:
    """``dim`` becomes (groups, members). A last group that is not full is filled with its last member, which
    changes no range."""
    length = x_HTD.shape[dim]
    size = group or length
    if missing := -length % size:
        last = x_HTD.narrow(dim, length - 1, 1)
        x_HTD = torch.cat([x_HTD, last.expand(*(missing if d == dim else -1 for d in range(3)))], dim)
    return x_HTD.reshape(*x_HTD.shape[:dim], -1, size, *x_HTD.shape[dim + 1 :])


def _spread(ranges: Tensor, dim: int, group: int, shape: torch.Size) -> Tensor:
    """One range per number, or something that broadcasts to that."""
    if not group:
        return ranges.unsqueeze(dim)
    return ranges.repeat_interleave(group, dim).narrow(dim, 0, shape[dim])


def _rounded_down(low: Tensor, dtype: torch.dtype) -> Tensor:
    """In ``dtype`` and at most ``low``, so that a range begins with its smallest value (unless that is below
    all of ``dtype``)."""
    nearest = low.to(dtype)
    below = (low - low.abs() * torch.finfo(dtype).eps - _tiny(dtype)).to(dtype)
    return torch.where(nearest.float() > low, below, nearest).clamp_(min=torch.finfo(dtype).min)


def _rounded_up(scale: Tensor, dtype: torch.dtype) -> Tensor:
    """In ``dtype`` and at least ``scale``, so that a range reaches its largest value; 0 stays 0."""
    nearest = scale.to(dtype)
    above = (scale * (1 + torch.finfo(dtype).eps) + _tiny(dtype)).to(dtype)
    return torch.where(nearest.float() < scale, above, nearest)


def _tiny(dtype: torch.dtype) -> float:
    """The smallest number above 0."""
    return torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps


def _within(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Half a step above the largest number of float16 would be infinite."""
    return x.clamp_(-torch.finfo(dtype).max, torch.finfo(dtype).max) if dtype == torch.float16 else x
