"""Attention of some rows to the tokens of one piece: its output and its log-sum-exp.

Shapes: H query heads, K kv heads, S rows, T tokens, D head_dim.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

_NOTHING = float("-inf")


class Kernel(Protocol):
    def __call__(
        self,
        q_HSD: Tensor,
        k_KTD: Tensor,
        v_KTD: Tensor,
        scale: float,
        causal: bool,
        hidden: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Output [H, S, D], and its log-sum-exp [H, S] in float32; 0 and −∞ for a row that sees nothing.

        ``causal``: row i sees the first i + 1 tokens; needs S = T. ``hidden`` [T] or, not causal, [S, T]:
        True where no row, or this one, sees a token. S, T at least 1.
        """
        ...


def matmul_kernel(
    q_HSD: Tensor,
    k_KTD: Tensor,
    v_KTD: Tensor,
    scale: float,
    causal: bool,
    hidden: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Attention as it is written down, in float32, for devices without a fused kernel."""
    group = q_HSD.shape[0] // k_KTD.shape[0]
    k_HTD, v_HTD = k_KTD.float().repeat_interleave(group, 0), v_KTD.float().repeat_interleave(group, 0)
    scores_HST = (q_HSD.float() * scale) @ k_HTD.transpose(1, 2)
    if causal:
        ahead_ST = torch.ones(scores_HST.shape[1:], dtype=torch.bool, device=q_HSD.device).triu(1)
        scores_HST = scores_HST.masked_fill(ahead_ST, _NOTHING)
    if hidden is not None:
        scores_HST = scores_HST.masked_fill(hidden, _NOTHING)
    lse_HS = scores_HST.logsumexp(-1)
    base_HS = lse_HS.clamp_min(torch.finfo(torch.float32).min)  # −∞ less −∞ is no number
    return (scores_HST - base_HS[..., None]).exp() @ v_HTD, lse_HS


def fused_cpu_kernel(
    q_HSD: Tensor,
    k_KTD: Tensor,
    v_KTD: Tensor,
    scale: float,
    causal: bool,
    hidden: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """torch's fused CPU kernel. It kills the process on zero rows or keys, which pieces never have; its
    log-sum-exp of a row that sees nothing is 0, which would weigh as much as a token, and is corrected
    here."""
    num_heads, num_rows, dim = q_HSD.shape
    num_kv_heads, num_tokens, _ = k_KTD.shape
    group = num_heads // num_kv_heads
    if causal:  # kv heads as batch, a group's query heads as heads over one expanded (not copied) kv head
        q = q_HSD.reshape(num_kv_heads, group, num_rows, dim)
        k = k_KTD[:, None].expand(num_kv_heads, group, num_tokens, dim)
        v = v_KTD[:, None].expand(num_kv_heads, group, num_tokens, dim)
    else:  # a group's query heads folded into rows: each kv head is read once
        q = q_HSD.reshape(1, num_kv_heads, group * num_rows, dim)
        k, v = k_KTD[None], v_KTD[None]
    mask = None if hidden is None else _mask(hidden, group, q.dtype)
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, causal, attn_mask=mask, scale=scale
    )
    out_HSD, lse_HS = out.reshape(q_HSD.shape), lse.reshape(num_heads, num_rows)
    if hidden is not None:
        lse_HS = lse_HS.masked_fill(_blind(hidden, num_rows, causal), _NOTHING)
    return out_HSD, lse_HS


def _mask(hidden: Tensor, group: int, dtype: torch.dtype) -> Tensor:
    """For rows as they are folded: all rows of a group's first head, then of its second, …"""
    mask = torch.zeros_like(hidden, dtype=dtype).masked_fill_(hidden, _NOTHING)
    return mask[None] if hidden.dim() == 1 else mask.repeat(group, 1)


def _blind(hidden: Tensor, num_rows: int, causal: bool) -> Tensor:
    """Marks the rows [S] that see nothing."""
    if hidden.dim() == 2:
        return hidden.all(1)
    num_seen_T = (~hidden).cumsum(0)
    return num_seen_T == 0 if causal else (num_seen_T[-1:] == 0).expand(num_rows)
