"""Proof at start that a backend which compiles its own code attends as its slow twin does, on this very
machine.

Shapes: H query heads, K kv heads, R rows, D head_dim.
"""

from __future__ import annotations

import torch

from shared.engine.attention import Backend, Lane
from shared.engine.backends.reference import ReferenceBackend
from shared.engine.kv.branch import Branch, Placement
from shared.engine.kv.segment import Segment
from shared.engine.model.rounding import relative_error
from shared.engine.model.spec import ModelSpec

_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}  # relative, RMS over RMS


class BackendBroken(Exception):
    """It failed, or its result is wrong. The message is for an operator."""


def check_backend(backend: Backend, spec: ModelSpec) -> None:
    """
    Raises:
        BackendBroken: see there.
    """
    try:
        ours, theirs = (_small_step(b, spec) for b in (backend, ReferenceBackend(spec)))
    except Exception as error:  # whatever a compiler, a driver or a foreign library may raise
        raise BackendBroken(
            f"{type(error).__name__}: {str(error).strip().splitlines()[-1] if str(error).strip() else ''}"
        ) from error
    difference = relative_error(ours, theirs)
    if not difference < _TOLERANCE[spec.dtype]:
        raise BackendBroken(f"its attention differs from the reference by {difference:.2g}")


@torch.inference_mode()
def _small_step(backend: Backend, spec: ModelSpec) -> torch.Tensor:
    """A prefill and a decoding branch over one shared segment. Returns [H, R, D] in float32."""
    generator = torch.Generator().manual_seed(0)

    def noise(num_heads: int, num_rows: int) -> torch.Tensor:
        return torch.randn(num_heads, num_rows, spec.head_dim, generator=generator).to(
            spec.device, spec.dtype
        )

    shared = Segment(spec, 75)
    shared.length = 75
    shared.k_LKTD[0].copy_(noise(spec.num_kv_heads, 75))
    shared.v_LKTD[0].copy_(noise(spec.num_kv_heads, 75))
    lanes: list[Lane] = []
    for num_rows, offset in ((21, 80), (1, 200)):
        branch = Branch(spec, (0,) * num_rows, offset, (Placement(shared, 3),))
        lanes.append(Lane(branch, sum(lane.num_rows for lane in lanes), num_rows))
    attention = backend.plan(lanes)
    q_HRD, k_KRD, v_KRD = (
        noise(spec.num_heads, 22),
        noise(spec.num_kv_heads, 22),
        noise(spec.num_kv_heads, 22),
    )
    return attention.run(0, q_HRD, k_KRD, v_KRD, spec.head_dim**-0.5).float()
