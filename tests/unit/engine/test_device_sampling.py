"""Sampling where the logits are draws what sampling on the host draws, and tells what that tells."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.engine.decoding import sampling
from shared.engine.decoding.device_sampling import BLOCK_LEN, gumbel_noise, outcomes_on_device, truncated
from shared.engine.decoding.draws import Draw, Ranked, Wanted
from shared.engine.decoding.sampling import outcomes, ranked_rows, truncate
from shared.generation.asked import SamplingParams
from tests.pretend_gpu import pretend_gpu

VOCABS = (7, BLOCK_LEN, 3 * BLOCK_LEN + 77)
params = st.builds(
    SamplingParams,
    temperature=st.sampled_from((0.0, 0.0, 0.3, 1.0, 1e-30)),
    top_k=st.sampled_from((0, 1, 5, 4000)),
    top_p=st.sampled_from((1.0, 0.9, 0.2, 1e-9)),
    seed=st.integers(0, (1 << 64) - 1),
    top_logprobs=st.sampled_from((0, 0, 3, 20)),
    watch_ids=st.sampled_from(((), (), (6,), (1, 6, 1))),
)
draws = st.lists(st.builds(Draw, params, st.integers(0, 9), st.integers(0, 9999)), max_size=3)
wanted = st.builds(Wanted, draws.map(tuple), st.sampled_from((0, 0, 2, 9000))).filter(
    lambda one: one.anything
)
rows = st.lists(wanted, min_size=1, max_size=6)


def logits(seed: int, rows: int, vocab: int, ties: bool, least: float = -1e9) -> torch.Tensor:
    """What is below ``least`` is impossible."""
    noise_BV = 3 * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))
    noise_BV = noise_BV.round() if ties else noise_BV
    highest_B1 = noise_BV.amax(-1, keepdim=True)
    return noise_BV.masked_fill((noise_BV < least) & (noise_BV < highest_B1), float("-inf"))


@settings(max_examples=120, deadline=None)
@given(
    rows=rows,
    vocab=st.sampled_from(VOCABS),
    seed=st.integers(0, 99),
    ties=st.booleans(),
    least=st.sampled_from((-1e9, 0.0, 4.0, 100.0)),
)
def test_equal_tokens_and_logprobs(
    rows: list[Wanted], vocab: int, seed: int, ties: bool, least: float
) -> None:
    logits_BV = logits(seed, len(rows), vocab, ties, least)
    ours, theirs = outcomes_on_device(logits_BV, rows), outcomes(logits_BV, rows)
    assert ours == theirs
    for one, asked in zip(ours, rows, strict=True):
        assert len(one.sampled) == len(asked.draws)
        assert len(one.ranked) == min(asked.num_ranked, vocab)
        assert all(
            len(sampled.top_logprobs) == min(draw.params.top_logprobs, vocab)
            for sampled, draw in zip(one.sampled, asked.draws, strict=True)
        )


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.sampled_from((-np.inf, -2.0, -0.5, 0.0)), min_size=1, max_size=40),
    counts=st.tuples(st.integers(0, 50), st.integers(0, 50)),
)
def test_of_equally_likely_tokens_the_smaller_id_comes_first(
    values: list[float], counts: tuple[int, int]
) -> None:
    row_V = torch.tensor(values)
    logprobs_BV = torch.stack([row_V, row_V.flip(0)])
    for values_V, count, found in zip(logprobs_BV, counts, ranked_rows(logprobs_BV, counts), strict=True):
        assert found == by_sorting(values_V, count)


def by_sorting(values_V: torch.Tensor, count: int) -> Ranked:
    return tuple(sorted(enumerate(values_V.tolist()), key=lambda one: (-one[1], one[0]))[:count])


def test_a_row_of_impossible_tokens_is_the_same_nonsense_everywhere() -> None:
    logits_BV = torch.full((4, 600), float("-inf"))
    asked = [
        SamplingParams(temperature=t, top_k=k, seed=1) for t, k in ((0.0, 0), (1.0, 0), (1.0, 9), (0.5, 1))
    ]
    rows = [Wanted((Draw(one, 0, 0),)) for one in asked]
    for found in (outcomes_on_device(logits_BV, rows), outcomes(logits_BV, rows)):
        assert [one.sampled[0].token_id for one in found] == [0, 0, 0, 0]
        assert all(np.isnan(one.sampled[0].logprob) for one in found)


def test_several_tokens_of_a_row_are_those_of_rows_alike() -> None:
    """A question's first tokens: as many draws as samples."""
    logits_BV = logits(3, 2, 1000, ties=False)
    asked = [SamplingParams(temperature=1.0, seed=s, top_logprobs=2) for s in range(4)]
    many = [Wanted(tuple(Draw(one, nth, 0) for nth, one in enumerate(asked))), Wanted(num_ranked=3)]
    single = [Wanted((draw,)) for draw in many[0].draws]
    apart = outcomes(logits_BV[:1].expand(4, -1), single)
    for found in (outcomes(logits_BV, many), outcomes_on_device(logits_BV, many)):
        assert found[0].sampled == tuple(one.sampled[0] for one in apart)
        assert found[1].ranked == by_sorting(logits_BV[1].log_softmax(-1), 3)


def test_one_copy_goes_there_and_one_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = SamplingParams(temperature=0.7, top_k=9, top_p=0.9, top_logprobs=3, watch_ids=(4, 2))
    greedy = SamplingParams(top_logprobs=1)
    rows = [
        Wanted((Draw(asked, 0, 0), Draw(greedy, 1, 0))),
        Wanted(num_ranked=4),
        Wanted((Draw(asked, 2, 7),)),
    ]
    logits_BV = logits(5, 3, 1000, ties=False)
    with pretend_gpu(monkeypatch) as gpu:
        there_BV = logits_BV.to("cuda")
        before = list(gpu.crossings)
        found = outcomes(there_BV, rows)
        crossed = gpu.crossings[len(before) :]
    assert [one.way for one in crossed] == ["there", "back"]
    assert [one.waits for one in crossed] == [False, True]
    assert found == outcomes(logits_BV, rows)


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
