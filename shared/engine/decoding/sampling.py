"""From logits to the next tokens of a step's branches.

Noise is a function of (seed, path, position, token or block of tokens) alone, never of batch or order of
arrival: a branch samples the same tokens wherever and with whomever it runs. A draw has two stages, so that
it needs little noise::

    blocks of 512 token ids   each weighs Z_b = Σ exp(logit / T) of its kept tokens   P(b) = Z_b / Z
    tokens of the drawn one   each weighs w_t = exp(logit / T)                        P(t | b) = w_t / Z_b

Both by the Gumbel trick (argmax(log w + noise) is a draw from w), so a rounding error in the logits changes a
token only where two were about to tie. Shapes: B branches, V vocabulary, N blocks, T tokens of a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shared.engine.decoding.device_sampling import (
    BLOCK_LEN,
    COLDEST,
    TOKENS_FROM,
    allowed,
    block_weights,
    outcomes_on_device,
)
from shared.engine.decoding.draws import Draw, Ranked, RowOutcome, Sampled, Wanted

_FEW = 1024  # tokens that mostly hold top_p


def outcomes(logits_BV: Tensor, wanted: Sequence[Wanted]) -> list[RowOutcome]:
    """``logits_BV``: raw logits in float32, a row for each that something is wanted of. On a GPU all is
    worked out there, and waited for once.

    Log-probabilities are those of the raw logits, whatever temperature, truncation and grammars do to the
    choice.
    """
    if logits_BV.device.type == "cuda":
        return outcomes_on_device(logits_BV, wanted)
    logprobs_BV = torch.log_softmax(logits_BV, -1)
    rows = [b for b, one in enumerate(wanted) for _ in one.draws]
    draws = [draw for one in wanted for draw in one.draws]
    logits_DV = logits_BV if rows == list(range(len(wanted))) else logits_BV[rows]
    chosen = _chosen(allowed(logits_DV, draws), draws)
    logprobs = logprobs_BV[rows, chosen].tolist()
    ranked = ranked_rows(logprobs_BV, [one.most_ranked for one in wanted])
    sampled = (
        Sampled(token, logprob, ranked[b][: draw.params.top_logprobs], _watched(logprobs_BV, b, draw))
        for b, draw, token, logprob in zip(rows, draws, chosen, logprobs, strict=True)
    )
    return [
        RowOutcome(tuple(islice(sampled, len(one.draws))), best[: one.num_ranked])
        for one, best in zip(wanted, ranked, strict=True)
    ]


def sample(logits_BV: Tensor, draws: Sequence[Draw]) -> list[Sampled]:
    """``outcomes`` where one token is drawn from each row."""
    return [one.sampled[0] for one in outcomes(logits_BV, [Wanted((draw,)) for draw in draws])]


def truncate(logits_V: Tensor, top_k: int, top_p: float) -> Tensor:
    """Logits with all but the ``top_k`` most likely, and of those all but the smallest set that holds
    ``top_p``, at −∞. Of equally likely tokens the one with the smaller id is the more likely."""
    size = len(logits_V)
    count = top_k if 0 < top_k < size else size
    if count == size and top_p >= 1:
        return logits_V
    kept = _best(logits_V, count) if top_p >= 1 else _nucleus(logits_V, count, top_p)
    return torch.full_like(logits_V, float("-inf")).scatter_(0, kept, logits_V[kept])


def ranked_rows(logprobs_BV: Tensor, counts: Sequence[int]) -> list[Ranked]:
    """The so many best tokens of each row."""
    vocab = logprobs_BV.shape[1]
    most = min(max(counts, default=0), vocab)
    if not most:
        return [()] * len(counts)
    values_BK, ids_BK = (x.numpy() for x in logprobs_BV.topk(min(most + 1, vocab)))
    found: list[Ranked] = []
    for row_V, values_K, ids_K, count in zip(logprobs_BV.numpy(), values_BK, ids_BK, counts, strict=True):
        if 0 < count < vocab and (least := values_K[count - 1]) == values_K[-1]:  # others may be as likely
            above = ids_K[values_K > least]
            ids_K = np.concatenate([above, np.flatnonzero(row_V == least)[: count - len(above)]])
            values_K = row_V[ids_K]
        order = np.lexsort((ids_K, -values_K))[:count]
        found.append(tuple(zip(ids_K[order].tolist(), values_K[order].tolist(), strict=True)))
    return found


def _chosen(logits_DV: Tensor, draws: Sequence[Draw]) -> list[int]:
    drawn = [d for d, draw in enumerate(draws) if draw.params.temperature != 0]
    if len(drawn) == len(draws):
        return _draw(logits_DV, draws) if draws else []
    chosen: list[int] = logits_DV.numpy().argmax(-1).tolist()  # several times as fast as torch's
    if drawn:
        for d, token_id in zip(drawn, _draw(logits_DV[drawn], [draws[d] for d in drawn]), strict=True):
            chosen[d] = token_id
    return chosen


def _draw(logits_BV: Tensor, draws: Sequence[Draw]) -> list[int]:
    temperatures = [[max(draw.params.temperature, COLDEST)] for draw in draws]
    scaled_BV = logits_BV - logits_BV.amax(-1, keepdim=True)
    scaled_BV /= torch.tensor(temperatures)
    for row_V, draw in zip(scaled_BV, draws, strict=True):
        if draw.params.top_k or draw.params.top_p < 1:
            row_V.copy_(truncate(row_V, draw.params.top_k, draw.params.top_p))
    keys_B1 = np.array([[draw.key] for draw in draws], dtype=np.uint64)

    weights_BN = block_weights(scaled_BV).double().numpy()
    with np.errstate(divide="ignore"):  # a block without weight
        scores_BN = np.log(weights_BN) + gumbel_noise(keys_B1, np.arange(weights_BN.shape[1]))
    first_B1 = scores_BN.argmax(-1)[:, None] * BLOCK_LEN

    tokens_BT = first_B1 + np.arange(BLOCK_LEN)
    inside_BT = tokens_BT < scaled_BV.shape[1]
    columns_BT = torch.from_numpy(np.where(inside_BT, tokens_BT, 0))
    logits_BT = np.where(inside_BT, scaled_BV.gather(1, columns_BT).double().numpy(), -np.inf)
    best_B = (logits_BT + gumbel_noise(keys_B1, TOKENS_FROM + tokens_BT)).argmax(-1)
    return [int(token_id) for token_id in first_B1[:, 0] + best_B]


def gumbel_noise(keys: NDArray[np.uint64], counters: NDArray[np.int64]) -> NDArray[np.float64]:
    """Gumbel(0, 1) noise: for each key (broadcast) that of these counters, SplitMix64's stream from there."""
    bits = keys + (counters.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits = (bits ^ (bits >> np.uint64(31))) >> np.uint64(12)
    uniform = (bits.astype(np.float64) + 0.5) * 2.0**-52  # neither 0 nor 1
    noise: NDArray[np.float64] = -np.log(-np.log(uniform))
    return noise


def _best(logits_V: Tensor, count: int) -> Tensor:
    """Ids of the ``count`` most likely tokens, best first."""
    least = logits_V.topk(count).values[-1]
    above = (logits_V > least).nonzero()[:, 0]
    ids = torch.cat([above, (logits_V == least).nonzero()[: count - len(above), 0]])
    return ids[logits_V[ids].sort(descending=True, stable=True).indices]


def _nucleus(logits_V: Tensor, count: int, top_p: float) -> Tensor:
    """Ids of the smallest set that holds ``top_p`` of what the ``count`` most likely hold."""
    among = logits_V if count == len(logits_V) else logits_V[_best(logits_V, count)]
    total = among.double().logsumexp(0)
    num = min(count, _FEW)
    while True:
        ids = _best(logits_V, num)
        probs = (logits_V[ids].double() - total).exp()
        before = probs.cumsum(0) - probs  # mass of the more likely ones; the first token always stays
        kept = ids[(before < top_p) | (before <= 0)]
        if len(kept) < num or num == count:
            return kept
        num = min(count, 8 * num)


def _watched(logprobs_BV: Tensor, b: int, draw: Draw) -> tuple[float, ...]:
    ids = draw.params.watch_ids
    return tuple(logprobs_BV[b, list(ids)].tolist()) if ids else ()
