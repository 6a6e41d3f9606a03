"""What the encodings keep of keys and values, against plain float64 arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.engine.kv.encodings import encoding_of
from shared.engine.model.rope import RopeSpec, Rotation
from shared.kv_buffers import DTYPES, ENCODINGS, INT4_KEY_TOKENS, INT4_VALUE_CHANNELS, buffers_of

Array = np.ndarray[Any, np.dtype[np.float64]]
LOSSY = [e for e in ENCODINGS if e != "exact"]
LEVELS = {"int8": 255, "int4": 15}


def rotation_of(head_dim: int) -> Rotation:
    """Over an even number of the first dimensions; a single one passes."""
    half = max(1, head_dim // 2) if head_dim > 1 else 0
    return Rotation(RopeSpec(tuple(10000.0 ** (-i / max(half, 1)) for i in range(half))), torch.device("cpu"))


def slow_rotated(x_HTD: Array, sign: int) -> Array:
    num_tokens, head_dim = x_HTD.shape[1:]
    half, out = head_dim // 2, x_HTD.copy()
    for j in range(num_tokens):
        for i in range(half):
            angle = sign * j * 10000.0 ** (-i / half)
            a, b = x_HTD[:, j, i], x_HTD[:, j, i + half]
            out[:, j, i], out[:, j, i + half] = (
                a * np.cos(angle) - b * np.sin(angle),
                b * np.cos(angle) + a * np.sin(angle),
            )
    return out


def slow_reduced(x_HTD: Array, axis: int, group: int, levels: int) -> tuple[Array, Array]:
    """Every number replaced by the nearest of ``levels`` + 1 evenly spaced ones of its group, and the
    distance of those."""
    out, steps = np.empty_like(x_HTD), np.empty_like(x_HTD)
    for start in range(0, x_HTD.shape[axis], group or x_HTD.shape[axis]):
        part = [slice(None)] * 3
        part[axis] = slice(start, start + (group or x_HTD.shape[axis]))
        x = x_HTD[tuple(part)]
        low = x.min(axis, keepdims=True)
        step = np.broadcast_to((x.max(axis, keepdims=True) - low) / levels, x.shape)
        numbers = np.round(np.divide(x - low, step, out=np.zeros_like(x), where=step > 0))
        out[tuple(part)], steps[tuple(part)] = low + numbers * step, step
    return out, steps


def slow(encoding: str, k_HTD: Array, v_HTD: Array) -> tuple[Array, Array, Array, Array]:
    """Decoded keys and values, and how far apart what can be told apart is."""
    key_tokens, value_channels = (INT4_KEY_TOKENS, INT4_VALUE_CHANNELS) if encoding == "int4" else (0, 0)
    k, k_steps = slow_reduced(slow_rotated(k_HTD, -1), 1, key_tokens, LEVELS[encoding])
    v, v_steps = slow_reduced(v_HTD, 2, value_channels, LEVELS[encoding])
    half = k_HTD.shape[2] // 2
    pairs = k_steps.copy()  # rotation mixes a pair of channels, and so their errors
    pairs[..., :half] = pairs[..., half : 2 * half] = np.hypot(
        k_steps[..., :half], k_steps[..., half : 2 * half]
    )
    return slow_rotated(k, 1), v, pairs, v_steps


def kv(
    heads: int, tokens: int, head_dim: int, dtype: torch.dtype, seed: int, scale: float, bias: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values with a bias per channel, as keys of models with one have."""
    g = torch.Generator().manual_seed(seed)
    biases = bias * torch.randn(2, heads, 1, head_dim, generator=g)
    k, v = (((torch.randn(heads, tokens, head_dim, generator=g) + b) * scale).to(dtype) for b in biases)
    return k, v


def through(encoding: str, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    rotation = rotation_of(k.shape[2])
    k_out, v_out = torch.full_like(k, float("nan")), torch.full_like(v, float("nan"))
    encoding_of(encoding).decode(encoding_of(encoding).encode(k, v, rotation), rotation, k_out, v_out)
    return k_out, v_out


shapes = {"heads": st.integers(1, 3), "tokens": st.integers(1, 150), "head_dim": st.integers(1, 70)}
kinds = {
    "dtype": st.sampled_from(DTYPES),
    "seed": st.integers(0, 2**32),
    "bias": st.sampled_from([0.0, 1.0, 30.0]),
}


@settings(max_examples=60, deadline=None)
@given(
    encoding=st.sampled_from(LOSSY),
    scale=st.sampled_from([1e-30, 1e-6, 1e-3, 1.0, 300.0, 1e30]),
    **shapes,
    **kinds,
)
def test_what_is_decoded_is_as_near_as_the_slow_twins_steps_allow(
    encoding: str, scale: float, heads: int, tokens: int, head_dim: int, dtype: str, seed: int, bias: float
) -> None:
    torch_dtype = getattr(torch, dtype)
    if dtype == "float16" and abs(scale) > 1e6:
        scale = 1000.0
    k, v = kv(heads, tokens, head_dim, torch_dtype, seed, scale, bias)
    if not (k.isfinite().all() and v.isfinite().all()):
        k, v = k.clamp(-4e4, 4e4), v.clamp(-4e4, 4e4)
    k_exact, v_exact = k.double().numpy(), v.double().numpy()
    *_, k_steps, v_steps = slow(encoding, k_exact, v_exact)
    k_out, v_out = (x.double().numpy() for x in through(encoding, k, v))
    rounding = torch.finfo(torch_dtype).eps
    smallest = torch.finfo(torch_dtype).smallest_normal * rounding
    for out, exact, steps in ((k_out, k_exact, k_steps), (v_out, v_exact, v_steps)):
        # Half a step, steps that were rounded up, one rounding of the result, and float32 on the way there.
        allowed = 0.5 * steps * (1 + 2 * rounding) + (rounding + 4e-6) * np.abs(exact).max() + 256 * smallest
        assert (np.abs(out - exact) <= allowed).all()


@settings(max_examples=30, deadline=None)
@given(encoding=st.sampled_from(LOSSY), **shapes, seed=st.integers(0, 2**32))
def test_in_float32_it_is_the_slow_twin(
    encoding: str, heads: int, tokens: int, head_dim: int, seed: int
) -> None:
    k, v = kv(heads, tokens, head_dim, torch.float32, seed, 1.0, 1.0)
    k_slow, v_slow, k_steps, v_steps = slow(encoding, k.double().numpy(), v.double().numpy())
    k_out, v_out = (x.double().numpy() for x in through(encoding, k, v))
    # A number that lies in the middle of two steps may fall to either side.
    for out, twin, steps in ((k_out, k_slow, k_steps), (v_out, v_slow, v_steps)):
        off = np.abs(out - twin) > 1e-4
        assert (np.abs(out - twin) <= steps * 1.01 + 1e-4).all()
        assert off.mean() < 0.02


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=30, deadline=None)
@given(
    encoding=st.sampled_from(ENCODINGS),
    tokens=st.integers(1, 80),
    head_dim=st.integers(1, 40),
    value=st.floats(-60000, 60000),
)
def test_constant_values_come_back_exactly(
    dtype: str, encoding: str, tokens: int, head_dim: int, value: float
) -> None:
    v = torch.full((2, tokens, head_dim), value).to(getattr(torch, dtype))
    assert torch.equal(through(encoding, torch.zeros_like(v), v)[1], v)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("encoding", LOSSY)
def test_keys_that_are_constant_before_rotation_come_back_within_one_rounding(
    dtype: str, encoding: str
) -> None:
    rotation = rotation_of(32)
    constant = torch.linspace(-50, 70, 32).expand(2, 100, 32)
    k = rotation.rotate(constant, rotation.angles(torch.arange(100))).to(getattr(torch, dtype))
    k_out, _ = through(encoding, k, k)
    assert (k_out.double() - k.double()).abs().max() <= 100 * 2.1 * torch.finfo(k.dtype).eps


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_zeros_stay_zeros_and_a_single_token_loses_no_key(dtype: str, encoding: str) -> None:
    zero = torch.zeros(2, 7, 9, dtype=getattr(torch, dtype))
    assert all(torch.equal(x, zero) for x in through(encoding, zero, zero))
    k, v = kv(2, 1, 10, getattr(torch, dtype), 0, 3.0, 5.0)
    assert torch.equal(through(encoding, k, v)[0], k)


def test_a_bias_costs_no_precision() -> None:
    k, v = kv(1, 64, 16, torch.float32, 0, 1.0, 0.0)
    constant = torch.full((1, 64, 16), 1000.0)
    rotation = rotation_of(16)
    biased = k + rotation.rotate(constant, rotation.angles(torch.arange(64)))
    plain_error = (through("int8", k, v)[0] - k).square().mean().sqrt()
    biased_error = (through("int8", biased, v)[0] - biased).square().mean().sqrt()
    assert biased_error < 1.1 * plain_error


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("encoding", LOSSY)
def test_ranges_reach_from_the_smallest_to_the_largest_value_in_spite_of_their_rounding(
    dtype: str, encoding: str
) -> None:
    k, v = kv(2, 32, 32, getattr(torch, dtype), 0, 1.0, 30.0)
    buffers = encoding_of(encoding).encode(k, v, rotation_of(32))
    for name, x, dim in (("k", slow_rotated(k.double().numpy(), -1), 1), ("v", v.double().numpy(), 2)):
        offset, scale = (
            buffers[f"{name}_{part}"].double().numpy().reshape(2, 32) for part in ("offset", "scale")
        )
        assert (offset <= x.min(dim) + 1e-4).all()
        assert (offset + LEVELS[encoding] * scale >= x.max(dim) - 1e-4).all()


def test_the_largest_numbers_of_float16_stay_finite() -> None:
    k = torch.zeros(1, 2, 64, dtype=torch.float16)
    v = torch.linspace(-65504, 65504, 128).reshape(1, 2, 64).half()
    k[0, :, 0] = 65504
    for encoding in LOSSY:
        assert all(x.isfinite().all() for x in through(encoding, k, v))


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "head_dim"), [(1, 1), (64, 32), (65, 33), (130, 128), (7, 64)])
def test_buffers_are_those_that_a_file_keeps(encoding: str, dtype: str, tokens: int, head_dim: int) -> None:
    k, v = kv(3, tokens, head_dim, getattr(torch, dtype), 0, 1.0, 0.0)
    buffers = encoding_of(encoding).encode(k, v, rotation_of(head_dim))
    specs = buffers_of(encoding, tokens, head_dim, dtype)
    assert list(buffers) == [spec.name for spec in specs]
    for spec in specs:
        buffer = buffers[spec.name]
        assert (tuple(buffer.shape), buffer.dtype) == ((3, *spec.shape), getattr(torch, spec.dtype))
        assert buffer.is_contiguous()


def test_the_denser_encodings_are_as_dense_as_they_say() -> None:
    """At the shape of a 7B model's chunk."""
    num_bytes = {e: sum(spec.row_bytes for spec in buffers_of(e, 512, 128, "bfloat16")) for e in ENCODINGS}
    assert num_bytes["int8"] / num_bytes["exact"] < 0.52
    assert num_bytes["int4"] / num_bytes["exact"] < 0.32


def test_an_unknown_encoding_is_named() -> None:
    with pytest.raises(ValueError, match="'int3' is not one of exact, int8, int4"):
        buffers_of("int3", 1, 1, "float32")
