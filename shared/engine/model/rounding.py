"""Measures how far a result is off another that should be the same, and says how far rounding explains."""

from __future__ import annotations

import torch

TOLERANCE = {torch.float32: 2e-3, torch.bfloat16: 6e-2, torch.float16: 1e-2}
"""Largest relative error of a pass, or of a part of one, by the width of its type."""


def relative_error(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """RMS over RMS."""
    error, scale = (x.float().pow(2).mean().sqrt() for x in (ours.float() - theirs.float(), theirs))
    return float(error / scale.clamp_min(1e-12))
