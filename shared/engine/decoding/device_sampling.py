"""Samples on the device where the logits are: the same draws from the same noise as ``sampling``, all rows at
once. One kernel reads what the host says; what it is told comes back in one copy, the only time it waits.

Integers of the noise are the same bits (64-bit products wrap around on every device), floats may differ by
their last rounding, so that a token changes only where two were about to tie. Shapes: B rows, V vocabulary, D
draws, S of them by chance, N blocks, T tokens of a block, K ranked, W watched.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shared.engine.decoding.draws import Draw, RowOutcome, Sampled, Wanted
from shared.engine.device_arrays import DeviceArrays

BLOCK_LEN = 512
TOKENS_FROM = 1 << 32  # of a branch's noise, what is in front belongs to blocks
COLDEST = 1e-30  # below it float32 has no number for the temperature
_STEP, _MIX_1, _MIX_2 = (
    np.array([number], np.uint64).view(np.int64).item()
    for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
_LOW = (1 << 32) - 1


def outcomes_on_device(logits_BV: Tensor, wanted: Sequence[Wanted]) -> list[RowOutcome]:
    """See ``sampling.outcomes``."""
    draws = [draw for one in wanted for draw in one.draws]
    num_ranked = min(max((one.most_ranked for one in wanted), default=0), logits_BV.shape[1])
    watched_DW = _watched(draws)
    logprobs_BV = torch.log_softmax(logits_BV, -1)
    parts: list[Tensor] = []
    if draws:
        rows = np.array([b for b, one in enumerate(wanted) for _ in one.draws])
        numbers = DeviceArrays([rows, watched_DW, *_settings(draws)], logits_BV.device)
        rows_D, ids_X, *settings = numbers.tensors
        apart = len(rows) != len(wanted) or bool((rows[1:] == rows[:-1]).any())
        logits_DV = logits_BV.index_select(0, rows_D) if apart else logits_BV
        chosen_D = _chosen(allowed(logits_DV, draws), draws, settings)
        parts += [chosen_D.int(), logprobs_BV[rows_D, chosen_D].view(torch.int32)]
        if watched_DW.size:
            ids_DW = ids_X.view(len(draws), -1)
            parts.append(logprobs_BV[rows_D[:, None], ids_DW].view(torch.int32).flatten())
    if num_ranked:
        values_BK, ids_BK = ranked(logprobs_BV, num_ranked)
        parts += [ids_BK.int().flatten(), values_BK.view(torch.int32).flatten()]
    told = torch.cat(parts).cpu().numpy()  # where the host waits
    return _outcomes(told, wanted, watched_DW, num_ranked)


def _outcomes(
    told: NDArray[np.int32], wanted: Sequence[Wanted], watched_DW: NDArray[np.int64], num_ranked: int
) -> list[RowOutcome]:
    """Takes apart what came back."""
    num_draws, num_watched = watched_DW.shape
    sizes = (num_draws, num_draws, watched_DW.size, len(wanted) * num_ranked)
    chosen, logprobs, watched, ids, values = np.split(told, np.cumsum(sizes))
    tokens, of_tokens = chosen.tolist(), logprobs.view(np.float32).tolist()
    of_watched = watched.view(np.float32).reshape(num_draws, num_watched).tolist()
    ranked_B = [
        tuple(zip(row_ids, row_values, strict=True))
        for row_ids, row_values in zip(
            ids.reshape(len(wanted), num_ranked).tolist(),
            values.view(np.float32).reshape(len(wanted), num_ranked).tolist(),
            strict=True,
        )
    ]
    of_draws = zip(
        tokens,
        of_tokens,
        of_watched,
        ((b, draw.params) for b, one in enumerate(wanted) for draw in one.draws),
        strict=True,
    )
    sampled = (
        Sampled(token, logprob, ranked_B[b][: p.top_logprobs], tuple(watched[: len(p.watch_ids)]))
        for token, logprob, watched, (b, p) in of_draws
    )
    return [
        RowOutcome(tuple(islice(sampled, len(one.draws))), best[: one.num_ranked])
        for one, best in zip(wanted, ranked_B, strict=True)
    ]


def _watched(draws: Sequence[Draw]) -> NDArray[np.int64]:
    """[D, W]: the ids that each draw watches, and token 0 behind these."""
    lists = [draw.params.watch_ids for draw in draws]
    watched_DW = np.zeros((len(draws), max(map(len, lists), default=0)), np.int64)
    for row_W, ids in zip(watched_DW, lists, strict=True):
        row_W[: len(ids)] = ids
    return watched_DW


def _settings(draws: Sequence[Draw]) -> list[NDArray[Any]]:
    """Of the draws by chance: which they are, keys, top_k, top_p, temperatures [S]."""
    drawn = [(d, draw, draw.params) for d, draw in enumerate(draws) if draw.params.temperature != 0]
    return [
        np.array([d for d, _, _ in drawn], np.int64),
        np.array([draw.key for _, draw, _ in drawn], np.uint64).view(np.int64),
        np.array([p.top_k for _, _, p in drawn], np.int64),
        np.array([p.top_p for _, _, p in drawn], np.float64),
        np.array([max(p.temperature, COLDEST) for _, _, p in drawn], np.float32),
    ]


def _chosen(logits_DV: Tensor, draws: Sequence[Draw], settings: Sequence[Tensor]) -> Tensor:
    """Tokens [D]: the best ones where nothing is left to chance."""
    drawn_S, *of_draws = settings
    truncates = any(
        draw.params.temperature != 0 and (draw.params.top_k or draw.params.top_p < 1) for draw in draws
    )
    if len(drawn_S) == len(draws):
        return _drawn(logits_DV, truncates, *of_draws)
    chosen_D = logits_DV.argmax(-1)
    if not len(drawn_S):
        return chosen_D
    chosen_S = _drawn(logits_DV.index_select(0, drawn_S), truncates, *of_draws)
    return chosen_D.index_copy(0, drawn_S, chosen_S)


def _drawn(
    logits_SV: Tensor,
    truncates: bool,
    keys_S: Tensor,
    top_k_S: Tensor,
    top_p_S: Tensor,
    temperatures_S: Tensor,
) -> Tensor:
    """Tokens [S]."""
    scaled_SV = (logits_SV - logits_SV.amax(-1, keepdim=True)) / temperatures_S[:, None]
    if truncates:
        scaled_SV = truncated(scaled_SV, top_k_S, top_p_S)
    weights_SN = block_weights(scaled_SV)
    blocks_N = torch.arange(weights_SN.shape[1], device=logits_SV.device)
    scores_SN = weights_SN.double().log() + gumbel_noise(keys_S[:, None], blocks_N)
    first_S1 = scores_SN.argmax(-1, keepdim=True) * BLOCK_LEN

    tokens_ST = first_S1 + torch.arange(BLOCK_LEN, device=logits_SV.device)
    inside_ST = tokens_ST < scaled_SV.shape[1]
    logits_ST = scaled_SV.gather(1, torch.where(inside_ST, tokens_ST, 0)).double()
    scores_ST = logits_ST + gumbel_noise(keys_S[:, None], TOKENS_FROM + tokens_ST)
    best_S = scores_ST.masked_fill(~inside_ST, float("-inf")).argmax(-1)
    return first_S1[:, 0] + best_S


def allowed(logits_DV: Tensor, draws: Sequence[Draw]) -> Tensor:
    """The logits with those tokens at −∞ that a draw's grammar does not let come next. Rows without one stay
    as they are. The host waits for nothing: it knows the grammars."""
    said = [(d, draw.grammar.bits()) for d, draw in enumerate(draws) if draw.grammar is not None]
    bounded = [(d, bits) for d, bits in said if bits is not None]
    if not bounded:
        return logits_DV
    rows_G, bits_GN = np.array([d for d, _ in bounded]), np.stack([bits for _, bits in bounded])
    rows, bits = DeviceArrays([rows_G, bits_GN.reshape(-1)], logits_DV.device).tensors
    places_32 = torch.arange(32, dtype=torch.int32, device=logits_DV.device)
    may_GN32 = (bits.view(len(bounded), -1, 1) >> places_32) & 1
    may_GV = may_GN32.flatten(1)[:, : logits_DV.shape[1]].bool()
    kept_GV = logits_DV.index_select(0, rows).masked_fill(~may_GV, float("-inf"))
    return logits_DV.index_copy(0, rows, kept_GV)


def ranked(logprobs_BV: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Log-probabilities and ids [B, count] of the best tokens, best first, of equally likely ones the smaller
    id first: which of these ``topk`` takes is up to the device, so it is asked for integers that differ, the
    bits of a float (in the order of floats) in front of those of the id."""
    bits_BV = logprobs_BV.view(torch.int32)
    rising_BV = torch.where(bits_BV < 0, bits_BV ^ 0x7FFFFFFF, bits_BV)
    ids_V = torch.arange(logprobs_BV.shape[1], device=logprobs_BV.device)
    best_BK = ((rising_BV.long() << 32) | (_LOW - ids_V)).topk(count).values
    ids_BK = _LOW - (best_BK & _LOW)
    return logprobs_BV.gather(1, ids_BK), ids_BK


def truncated(logits_BV: Tensor, top_k_B: Tensor, top_p_B: Tensor) -> Tensor:
    """``sampling.truncate`` of every row: sorted as a whole, so that nobody asks how many are kept."""
    vocab = logits_BV.shape[1]
    values_BV, ids_BV = logits_BV.sort(dim=-1, descending=True, stable=True)
    limits_B = torch.where(top_k_B > 0, top_k_B.clamp(max=vocab), vocab)
    among_BV = torch.arange(vocab, device=logits_BV.device) < limits_B[:, None]
    masses_BV = values_BV.double().masked_fill(~among_BV, float("-inf"))
    probs_BV = (masses_BV - masses_BV.logsumexp(-1, keepdim=True)).exp()
    before_BV = probs_BV.cumsum(-1) - probs_BV  # mass of the more likely ones; the first token always stays
    kept_BV = among_BV & ((top_p_B[:, None] >= 1) | (before_BV < top_p_B[:, None]) | (before_BV <= 0))
    return torch.empty_like(logits_BV).scatter_(1, ids_BV, values_BV.masked_fill(~kept_BV, float("-inf")))


def block_weights(scaled_BV: Tensor) -> Tensor:
    """[B, N]; the last block may be a short one."""
    whole = scaled_BV.shape[1] // BLOCK_LEN * BLOCK_LEN
    weights_BV = scaled_BV.exp()
    parts = [weights_BV[:, :whole].reshape(len(scaled_BV), -1, BLOCK_LEN).sum(-1)] if whole else []
    rest = [weights_BV[:, whole:].sum(-1, keepdim=True)] if whole < scaled_BV.shape[1] else []
    return torch.cat([*parts, *rest], 1)


def gumbel_noise(keys: Tensor, counters: Tensor) -> Tensor:
    """``sampling.gumbel_noise`` in int64, whose products wrap around to the same bits."""
    bits = keys + (counters + 1) * _STEP
    bits = (bits ^ _shifted(bits, 30)) * _MIX_1
    bits = (bits ^ _shifted(bits, 27)) * _MIX_2
    bits = _shifted(bits ^ _shifted(bits, 31), 12)
    uniform = (bits.double() + 0.5) * 2.0**-52
    return -(-uniform.log()).log()


def _shifted(bits: Tensor, count: int) -> Tensor:
    """To the right, as if there were no sign."""
    return (bits >> count) & ((1 << (64 - count)) - 1)
