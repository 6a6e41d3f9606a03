"""The library ``flash-attn`` as a kernel, for ordinary dense prefill on a GPU: offline chunk prefill and
``full``.

Shapes: H query heads, K kv heads, S rows, T tokens, D head_dim.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from shared.engine.backends.kernels import Kernel, matmul_kernel
from shared.engine.model.spec import ModelSpec
from shared.errors import ConfigError

FlashAttnFunc = Callable[..., tuple[Tensor, Tensor, Any]]
_MAX_HEAD_DIM = 256


def flash_kernel(spec: ModelSpec) -> Kernel:
    """
    Raises:
        ConfigError: the library, a GPU or a type that it computes in is missing.
    """
    if spec.device.type != "cuda":
        raise ConfigError(
            f"engine.backend: 'flash_attn' needs a GPU, engine.device is {spec.device}; set the "
            "backend to 'auto'"
        )
    if spec.dtype not in (torch.bfloat16, torch.float16):
        raise ConfigError(
            f"engine.backend: 'flash_attn' computes in bfloat16 or float16, not {spec.dtype_name}; set "
            "engine.dtype"
        )
    if spec.head_dim > _MAX_HEAD_DIM:
        raise ConfigError(
            f"engine.backend: 'flash_attn' takes heads of up to {_MAX_HEAD_DIM}, the model's have "
            f"{spec.head_dim}"
        )
    try:
        library = importlib.import_module("flash_attn")
    except ImportError as error:
        raise ConfigError(
            "engine.backend: the library of 'flash_attn' is missing; pip install 'kvquilt[gpu]'"
        ) from error
    return kernel_of(library.flash_attn_func)


def kernel_of(flash_attn_func: FlashAttnFunc) -> Kernel:
    """``flash_attn_func`` of flash-attn 2: (q [B, S, H, D], k, v [B, T, K, D], softmax_scale, causal,
    return_attn_probs) → (out [B, S, H, D], log-sum-exp [B, H, S] in float32, …). It knows no exclusions;
    those go to plain matmuls."""

    def kernel(
        q_HSD: Tensor,
        k_KTD: Tensor,
        v_KTD: Tensor,
        scale: float,
        causal: bool,
        hidden: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        if hidden is not None:
            return matmul_kernel(q_HSD, k_KTD, v_KTD, scale, causal, hidden)
        num_kv_heads = k_KTD.shape[0]
        # A group's query heads folded into rows where nobody minds which row is which: each kv head is read
        # once.
        q = q_HSD if causal else q_HSD.reshape(num_kv_heads, -1, q_HSD.shape[2])
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k_KTD, v_KTD))
        out, lse, _ = flash_attn_func(q, k, v, softmax_scale=scale, causal=causal, return_attn_probs=True)
        return out[0].transpose(0, 1).reshape(q_HSD.shape), lse[0].reshape(q_HSD.shape[:2])

    return kernel
