"""Sampling where the logits are draws what sampling on the host draws."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.engine.decoding import sampling
from shared.engine.decoding.device_sampling import BLOCK_LEN, gumbel_noise, sample_on_device, truncated
from shared.engine.decoding.sampling import Draw, sample, truncate
from shared.generation.asked import SamplingParams

VOCABS = (7, BLOCK_LEN, 3 * BLOCK_LEN + 77)
params = st.builds(
    SamplingParams,
    temperature=st.sampled_from((0.0, 0.3, 1.0, 1e-30)),
    top_k=st.sampled_from((0, 1, 5, 4000)),
    top_p=st.sampled_from((1.0, 0.9, 0.2, 1e-9)),
    seed=st.integers(0, 1 << 40),
    top_logprobs=st.sampled_from((0, 0, 3, 20)),
    watch_ids=st.sampled_from(((), (), (6,), (1, 6, 1))),
)
draws = st.lists(st.builds(Draw, params, st.integers(0, 9), st.integers(0, 9999)), min_size=1, max_size=6)


def logits(seed: int, rows: int, vocab: int, ties: bool) -> torch.Tensor:
    noise = 3 * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))
    return noise.round() if ties else noise


@settings(max_examples=40, deadline=None)
@given(draws=draws, vocab=st.sampled_from(VOCABS), seed=st.integers(0, 99), ties=st.booleans())
def test_equal_tokens_and_logprobs(draws: list[Draw], vocab: int, seed: int, ties: bool) -> None:
    logits_BV = logits(seed, len(draws), vocab, ties)
    ours = sample_on_device(logits_BV, [(draw.params, draw.key) for draw in draws])
    for mine, theirs in zip(ours, sample(logits_BV, draws), strict=True):
        token_id, logprob, top, watched = astuple(theirs)
        assert (mine[0], mine[1], mine[3]) == (token_id, logprob, watched)
        assert [value for _, value in mine[2]] == [value for _, value in top]
        if not ties:
            assert mine[2] == top


def test_the_noise_has_the_same_bits() -> None:
    keys = np.array([0, 1, (1 << 64) - 1, 0xDEADBEEF12345678], np.uint64)
    counters = np.array([0, 511, 1 << 32, (1 << 32) + 151_935])
    ours = gumbel_noise(torch.from_numpy(keys.view(np.int64))[:, None], torch.from_numpy(counters))
    theirs = sampling.gumbel_noise(keys[:, None], counters)
    assert np.allclose(ours.numpy(), theirs, rtol=1e-14, atol=0)


@pytest.mark.parametrize(("top_k", "top_p"), [(0, 0.7), (3, 1.0), (50, 0.5), (1, 1e-9), (9999, 0.999)])
def test_the_same_tokens_are_kept(top_k: int, top_p: float) -> None:
    logits_BV = logits(1, 3, 700, ties=True)
    ours = truncated(logits_BV, torch.full((3,), top_k), torch.full((3,), top_p, dtype=torch.double))
    assert torch.equal(ours, torch.stack([truncate(row, top_k, top_p) for row in logits_BV]))
