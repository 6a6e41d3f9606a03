"""From logits to the next token.

Noise is a function of (seed, sample, position) alone, never of batch or order of arrival: a branch samples
the same tokens wherever and with whomever it runs. Shapes: V vocabulary.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch

from shared.generation.asked import SamplingParams


@dataclass(frozen=True, slots=True)
class Sampled:
    token_id: int
    logprob: float
    top_logprobs: tuple[tuple[int, float], ...]
    watched: tuple[float, ...] = ()


def sample(logits_V: torch.Tensor, params: SamplingParams, sample_index: int, position: int) -> Sampled:
    """``logits_V``: raw logits in float32. ``position``: index of the token among the branch's generated
    tokens.

    Log-probabilities are those of the raw logits, whatever temperature and truncation do to the choice.
    """
    logprobs_V = torch.log_softmax(logits_V, -1)
    if params.temperature == 0:
        token_id = int(logits_V.argmax())
    else:
        noise_V = gumbel_noise(len(logits_V), params.seed, sample_index, position)
        token_id = int(
            (truncate(logits_V / params.temperature, params.top_k, params.top_p).cpu() + noise_V).argmax()
        )
    watched = tuple(logprobs_V[list(params.watch_ids)].tolist()) if params.watch_ids else ()
    return Sampled(token_id, float(logprobs_V[token_id]), top(logprobs_V, params.top_logprobs), watched)


def truncate(logits_V: torch.Tensor, top_k: int, top_p: float) -> torch.Tensor:
    """Logits with all but the ``top_k`` most likely, and of those all but the smallest set that holds
    ``top_p``, at −∞."""
    if not (0 < top_k < len(logits_V)) and top_p >= 1:
        return logits_V
    sorted_V, order_V = logits_V.sort(descending=True, stable=True)
    if 0 < top_k < len(logits_V):
        sorted_V[top_k:] = float("-inf")
    probs_V = sorted_V.softmax(-1)
    before_V = probs_V.cumsum(-1) - probs_V  # mass of the more likely ones; the first token always stays
    sorted_V[(before_V >= top_p) & (before_V > 0)] = float("-inf")
    return torch.empty_like(logits_V).scatter_(0, order_V, sorted_V)


def gumbel_noise(size: int, seed: int, sample_index: int, position: int) -> torch.Tensor:
    """Gumbel(0, 1) noise [size]: argmax(logits + noise) is a draw from softmax(logits)."""
    key = hashlib.blake2b(f"{seed}/{sample_index}/{position}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(key, "little") >> 1)
    exponential_V = torch.empty(size, dtype=torch.float64).exponential_(generator=generator)
    return -exponential_V.clamp_min(1e-300).log().float()


def top(logprobs_V: torch.Tensor, count: int) -> tuple[tuple[int, float], ...]:
    """The ``count`` best tokens with their log-probabilities, best first."""
    if not count:
        return ()
    values, ids = logprobs_V.topk(min(count, len(logprobs_V)))
    return tuple(zip(ids.tolist(), values.tolist(), strict=True))
