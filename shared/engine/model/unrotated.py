"""Spares queries and keys the rotation by nothing: positions are the engine's, so every layer of
``transformers`` is told of position 0, and would take ten small kernels to turn them by it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_ROTATION = "apply_rotary_pos_emb"
_NO_ROTATION = "kvquilt_no_rotation"


def skip_no_rotation(layer: Any) -> None:
    """From now on the layer's module of ``transformers`` leaves queries and keys alone where the angles are
    marked by ``no_rotation``; with others it does what it did."""
    module: Any = sys.modules[type(layer.self_attn).__module__]
    rotate: Callable[..., Any] | None = getattr(module, _ROTATION, None)
    if rotate is None or hasattr(rotate, _NO_ROTATION):
        return

    def rotate_unless_marked(q: Tensor, k: Tensor, cos: Tensor, *more: Any, **options: Any) -> Any:
        if not torch.compiler.is_compiling() and getattr(cos, _NO_ROTATION, False):
            return q, k
        return rotate(q, k, cos, *more, **options)

    setattr(rotate_unless_marked, _NO_ROTATION, True)
    setattr(module, _ROTATION, rotate_unless_marked)


def no_rotation(angles: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The same angles, marked if they turn nothing (under YaRN they scale)."""
    cos, sin = angles
    if bool((cos == 1).all()) and not bool(sin.any()):
        setattr(cos, _NO_ROTATION, True)
    return cos, sin
