"""The buffers that an encoding keeps of a layer, each with one row per KV head.

The file format lays them out, the engine's encodings fill and read them; both take names, shapes and types
from here. Torch-free. Shapes: H KV heads, T tokens, D head_dim.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

ITEM_SIZES = {"bfloat16": 2, "float16": 2, "float32": 4, "uint8": 1}
DTYPES = ("bfloat16", "float16", "float32")
"""Of keys and values as the model computes them."""
ENCODINGS = ("exact", "int8", "int4")
PACKED_BITS = {"int8": 8, "int4": 4}
"""Of one number, where an encoding packs them."""
INT4_KEY_TOKENS, INT4_VALUE_CHANNELS = 32, 32
"""Sizes of the groups in which ``int4`` keeps ranges; the last group may be smaller."""


@dataclass(frozen=True, slots=True)
class BufferSpec:
    """[H, *shape] items of ``dtype``, contiguous. ``shape`` is one head's."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def item_bytes(self) -> int:
        return ITEM_SIZES[self.dtype]

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape) * self.item_bytes


def buffers_of(encoding: str, num_tokens: int, head_dim: int, dtype: str) -> tuple[BufferSpec, ...]:
    """The buffers of one layer, in the order in which they lie in a file.

    Raises:
        ValueError: there is no such encoding.
    """
    k_shape: tuple[int, ...]
    v_shape: tuple[int, ...]
    match encoding:
        case "exact":
            return (
                BufferSpec("k", (num_tokens, head_dim), dtype),
                BufferSpec("v", (num_tokens, head_dim), dtype),
            )
        case "int8":
            k_shape, v_shape, packed_dim = (head_dim,), (num_tokens,), head_dim
        case "int4":
            k_shape = (-(-num_tokens // INT4_KEY_TOKENS), head_dim)
            v_shape = (num_tokens, -(-head_dim // INT4_VALUE_CHANNELS))
            packed_dim = -(-head_dim // 2)
        case _:
            raise ValueError(f"encoding: {encoding!r} is not one of {', '.join(ENCODINGS)}")
    # In the model's own type: float32 ranges would make the chunks of a small model a twentieth larger, for
    # no measured gain.
    return (
        BufferSpec("k", (num_tokens, packed_dim), "uint8"),
        BufferSpec("k_scale", k_shape, dtype),
        BufferSpec("k_offset", k_shape, dtype),
        BufferSpec("v", (num_tokens, packed_dim), "uint8"),
        BufferSpec("v_scale", v_shape, dtype),
        BufferSpec("v_offset", v_shape, dtype),
    )
