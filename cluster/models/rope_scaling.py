"""Translates how a GGUF file stretches its rotary positions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cluster.models.gguf_file import GgufFile
from shared.errors import ModelUnsupported

# Of Llama 3.1 and later: the file holds the outcome, not the settings; the same for all models so far.
_LOW, _HIGH, _ORIGINAL = 1.0, 4.0, 8192
_FREQUENCIES = "rope_freqs.weight"
_BY_LENGTH = ("rope_factors_short.weight", "rope_factors_long.weight")
_TOLERANCE = 1e-4
_YARN_NEUTRAL = {
    "attn_factor": 1.0,
    "yarn_attn_factor": 1.0,
    "yarn_ext_factor": 1.0,
    "yarn_log_multiplier": 0.0,
}


def rope_parameters(file: GgufFile, head_dim: int) -> dict[str, Any]:
    """``rope_parameters`` of a ``transformers`` configuration.

    Raises:
        ModelUnsupported: the stretching cannot be told in these; names it.
    """
    rope: dict[str, Any] = {"rope_theta": float(file.setting("rope.freq_base", 10_000.0))}
    if any(name in file.tensors for name in _BY_LENGTH):
        raise _unsupported(file, "longrope", "its angles depend on the request's length")
    if _FREQUENCIES in file.tensors:
        return rope | _llama3(file, rope["rope_theta"], head_dim)
    # files of old have a factor and no type: it is linear then
    factor = float(file.setting("rope.scaling.factor", file.setting("rope.scale_linear", 1.0)))
    kind = file.setting("rope.scaling.type", "linear")
    if kind == "yarn":
        return rope | _yarn(file, factor)
    if kind not in ("none", "linear"):
        raise _unsupported(file, kind, "known are linear, yarn and llama3")
    if kind == "none" or factor in (0.0, 1.0):
        return rope | {"rope_type": "default"}
    return rope | {"rope_type": "linear", "factor": factor}


def _llama3(file: GgufFile, theta: float, head_dim: int) -> dict[str, Any]:
    """The settings whose outcome the file holds: divisors of the frequencies, checked."""
    told = file.tensors[_FREQUENCIES].values().astype(np.float64).reshape(-1)
    factor = round(float(told.max()), 3)
    wavelengths = 2 * math.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    smooth = np.clip((_ORIGINAL / wavelengths - _LOW) / (_HIGH - _LOW), 0.0, 1.0)
    expected = 1 / ((1 - smooth) / factor + smooth)
    if told.shape != expected.shape or not np.allclose(told, expected, rtol=_TOLERANCE):
        raise _unsupported(file, _FREQUENCIES, "its frequencies are not those of Llama 3")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": _LOW,
        "high_freq_factor": _HIGH,
        "original_max_position_embeddings": _ORIGINAL,
    }


def _yarn(file: GgufFile, factor: float) -> dict[str, Any]:
    for name, neutral in _YARN_NEUTRAL.items():
        if file.setting(f"rope.scaling.{name}", neutral) not in (neutral, -1.0):  # -1: llama.cpp's default
            raise _unsupported(file, "yarn", f"rope.scaling.{name} is not known here")
    original = file.setting("rope.scaling.original_context_length")
    if not original:
        raise _unsupported(file, "yarn", "rope.scaling.original_context_length is missing")
    rope = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
    for name in ("beta_fast", "beta_slow"):
        if (value := file.setting(f"rope.scaling.yarn_{name}")) is not None:
            rope[name] = value
    return rope


def _unsupported(file: GgufFile, kind: str, why: str) -> ModelUnsupported:
    return ModelUnsupported(
        f"model: {file.path}: RoPE scaling {kind!r} of {file.architecture} is not supported: {why}; give the "
        "model's own directory or hub id"
    )
