"""``sampling`` where the logits are: the same draws from the same noise, all rows at once, and the host waits
once.

Integers of the noise are the same bits (64-bit products wrap around on every device), floats may differ by
their last rounding, so that a token changes only where two were about to tie. Shapes: B rows, V vocabulary, N
blocks, T tokens of a block, K top logprobs, W watched.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from shared.engine.device_arrays import DeviceArrays, integers
from shared.generation.asked import SamplingParams

BLOCK_LEN = 512
TOKENS_FROM = 1 << 32  # of a branch's noise, what is in front belongs to blocks
COLDEST = 1e-30  # below it float32 has no number for the temperature
_STEP, _MIX_1, _MIX_2 = (
    np.array([number], np.uint64).view(np.int64).item()
    for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)

Drawn = tuple[int, float, tuple[tuple[int, float], ...], tuple[float, ...]]


def sample_on_device(logits_BV: Tensor, draws: Sequence[tuple[SamplingParams, int]]) -> list[Drawn]:
    """``logits_BV``: raw logits in float32, a row for each draw, which is what is asked and the key of its
    noise. Returns what ``Sampled`` is made of."""
    vocab, device = logits_BV.shape[1], logits_BV.device
    logprobs_BV = torch.log_softmax(logits_BV, -1)
    chosen_B = logits_BV.argmax(-1)
    drawn = [b for b, (params, _) in enumerate(draws) if params.temperature != 0]
    if len(drawn) == len(draws):
        chosen_B = _draw(logits_BV, draws)
    elif drawn:
        rows = integers(drawn, device)
        chosen_B = chosen_B.index_copy(0, rows, _draw(logits_BV[rows], [draws[b] for b in drawn]))
    num_top = min(max((params.top_logprobs for params, _ in draws), default=0), vocab)
    num_watched = max((len(params.watch_ids) for params, _ in draws), default=0)
    parts = [chosen_B[:, None].int(), logprobs_BV.gather(1, chosen_B[:, None]).view(torch.int32)]
    if num_top:
        values_BK, ids_BK = logprobs_BV.topk(num_top)
        parts += [values_BK.view(torch.int32), ids_BK.int()]
    if num_watched:
        watched = [(*p.watch_ids, *(0,) * (num_watched - len(p.watch_ids))) for p, _ in draws]
        ids_BW = integers([i for ids in watched for i in ids], device).view(len(draws), -1)
        parts.append(logprobs_BV.gather(1, ids_BW).view(torch.int32))
    told = torch.cat(parts, 1).cpu().numpy()  # where the host waits
    chosen, logprob, values, ids, watched_BW = np.split(told, np.cumsum([1, 1, num_top, num_top]), axis=1)
    floats = [x.view(np.float32).tolist() for x in (logprob, values, watched_BW)]
    return [
        (
            int(chosen[b, 0]),
            floats[0][b][0],
            tuple(zip(ids[b, : params.top_logprobs].tolist(), floats[1][b], strict=False)),
            tuple(floats[2][b][: len(params.watch_ids)]),
        )
        for b, (params, _) in enumerate(draws)
    ]


def _draw(logits_BV: Tensor, draws: Sequence[tuple[SamplingParams, int]]) -> Tensor:
    """Tokens [B]."""
    params = [one for one, _ in draws]
    temperatures = np.array([max(one.temperature, COLDEST) for one in params], np.float32)
    keys = np.array([key for _, key in draws], np.uint64).view(np.int64)
    top_k, top_p = (np.array(list(x)) for x in ((p.top_k for p in params), (float(p.top_p) for p in params)))
    numbers = DeviceArrays([keys, top_k.astype(np.int64), top_p, temperatures], logits_BV.device)
    keys_B, top_k_B, top_p_B, temperatures_B = numbers.tensors
    scaled_BV = (logits_BV - logits_BV.amax(-1, keepdim=True)) / temperatures_B[:, None]
    if any(one.top_k or one.top_p < 1 for one in params):
        scaled_BV = truncated(scaled_BV, top_k_B, top_p_B)
    weights_BN = block_weights(scaled_BV)
    blocks_N = torch.arange(weights_BN.shape[1], device=logits_BV.device)
    scores_BN = weights_BN.double().log() + gumbel_noise(keys_B[:, None], blocks_N)
    first_B1 = scores_BN.argmax(-1, keepdim=True) * BLOCK_LEN

    tokens_BT = first_B1 + torch.arange(BLOCK_LEN, device=logits_BV.device)
    inside_BT = tokens_BT < scaled_BV.shape[1]
    logits_BT = scaled_BV.gather(1, torch.where(inside_BT, tokens_BT, 0)).double()
    scores_BT = logits_BT + gumbel_noise(keys_B[:, None], TOKENS_FROM + tokens_BT)
    best_B = scores_BT.masked_fill(~inside_BT, float("-inf")).argmax(-1)
    return first_B1[:, 0] + best_B


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
