"""Triton kernels of what stands between a layer's matrix products, each in the place of several of torch's,
with roundings where these round."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rms_norm_kernel(x, weight, out, eps, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """One program per row: out = weight · (x / RMS(x)), the quotient rounded to the type first."""
    start = tl.program_id(0).to(tl.int64) * SIZE
    i = tl.arange(0, BLOCK)
    inside = i < SIZE
    value = tl.load(x + start + i, mask=inside, other=0.0).to(tl.float32)
    scale = 1 / tl.sqrt(tl.sum(value * value, 0) / SIZE + eps)
    normed = (value * scale).to(out.dtype.element_ty).to(tl.float32)
    factor = tl.load(weight + i, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + start + i, (factor * normed).to(out.dtype.element_ty), mask=inside)


@triton.jit  # specialised on a count that is a multiple of 16, so that masked loads are of 16 bytes
def silu_times_kernel(gate, up, out, count, BLOCK: tl.constexpr):
    """out = silu(gate) · up, silu rounded to the type first."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < count
    value = tl.load(gate + i, mask=inside, other=0.0).to(tl.float32)
    silu = (value / (1 + tl.exp(-value))).to(out.dtype.element_ty).to(tl.float32)
    factor = tl.load(up + i, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + i, (silu * factor).to(out.dtype.element_ty), mask=inside)
