"""Draws from logits, without a model: their distribution, what they may depend on, and what they may cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch.utils._python_dispatch import TorchDispatchMode

from shared.engine.decoding.draws import Draw, Wanted
from shared.engine.decoding.sampling import BLOCK_LEN, gumbel_noise, sample, truncate
from shared.generation.asked import SamplingParams

VOCAB = 3 * BLOCK_LEN + 77  # blocks, and a short one
DRAWS = 20_000


def logits(seed: int, rows: int = 1, vocab: int = VOCAB, spread: float = 2.0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * spread


def truncated_slowly(logits_V: torch.Tensor, top_k: int, top_p: float) -> torch.Tensor:
    """The slow twin of ``truncate``: sorts the vocabulary."""
    sorted_V, order_V = logits_V.sort(descending=True, stable=True)
    if 0 < top_k < len(logits_V):
        sorted_V[top_k:] = float("-inf")
    if top_p < 1:
        probs_V = sorted_V.double().softmax(-1)
        before_V = probs_V.cumsum(-1) - probs_V
        sorted_V[(before_V >= top_p) & (before_V > 0)] = float("-inf")
    return torch.empty_like(logits_V).scatter_(0, order_V, sorted_V)


class Counting(TorchDispatchMode):
    """Names of the operations that torch runs, and the tensors of doubles that they make."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.doubles = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        self.names.append(str(func))
        if isinstance(out, torch.Tensor) and out.dtype is torch.float64:
            self.doubles = max(self.doubles, out.numel())
        return out


def counted(call: Callable[[], object]) -> Counting:
    with Counting() as counting:
        call()
    return counting


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.8, seed=1),
        SamplingParams(temperature=1.7, seed=2, top_k=40),
        SamplingParams(temperature=1.0, seed=3, top_p=0.7),
        SamplingParams(temperature=1.2, seed=4, top_k=300, top_p=0.9),
    ],
)
def test_draws_follow_the_softmax_over_the_kept_tokens(params: SamplingParams) -> None:
    row_V = logits(7)
    rows_BV = row_V.expand(500, -1)
    counts: Counter[int] = Counter()
    for start in range(0, DRAWS, 500):
        chosen = sample(rows_BV, [Draw(params, 3, start + i) for i in range(500)])
        counts.update(one.token_id for one in chosen)
    exact = truncated_slowly(row_V[0].double() / params.temperature, params.top_k, params.top_p).softmax(-1)
    assert all(exact[token] > 0 for token in counts), "a token that was cut off was drawn"
    common = (exact * DRAWS >= 5).nonzero()[:, 0].tolist()
    expected = [float(exact[token]) * DRAWS for token in common]
    observed = [float(counts[token]) for token in common]
    if DRAWS - sum(expected) > 1e-6:
        expected.append(DRAWS - sum(expected))
        observed.append(DRAWS - sum(observed))
    assert len(expected) > 10
    assert chisquare(observed, np.array(expected) * (sum(observed) / sum(expected))).pvalue > 1e-3


def test_noise_has_the_gumbel_distribution_and_does_not_repeat() -> None:
    noise = gumbel_noise(np.array([[1], [2]], dtype=np.uint64), np.arange(100_000))
    assert abs(noise.mean() - np.euler_gamma) < 0.01
    assert abs(noise.var() - np.pi**2 / 6) < 0.02
    assert abs(np.corrcoef(noise[0], noise[1])[0, 1]) < 0.02
    assert len(np.unique(noise)) == noise.size


@pytest.mark.parametrize("vocab", [3, BLOCK_LEN, VOCAB])
def test_a_branch_draws_the_same_alone_and_in_any_company(vocab: int) -> None:
    rows_BV = logits(11, 9, vocab)
    draws = [
        Draw(
            SamplingParams(temperature=0.5 + 0.2 * (b % 3) if b % 4 else 0.0, seed=b // 2, top_k=b % 2 * 9),
            b,
            40,
        )
        for b in range(9)
    ]
    together = sample(rows_BV, draws)
    assert together == [sample(rows_BV[b : b + 1], [draws[b]])[0] for b in range(9)]
    order = [4, 0, 8, 3]
    assert sample(rows_BV[order], [draws[b] for b in order]) == [together[b] for b in order]


def test_seed_path_and_position_each_change_what_is_drawn() -> None:
    flat_BV = torch.zeros(1, VOCAB)
    base = {"seed": 5, "path": 2, "position": 9}
    drawn = {
        tuple(sorted(fields.items())): sample(
            flat_BV,
            [Draw(SamplingParams(temperature=1.0, seed=fields["seed"]), fields["path"], fields["position"])],
        )[0].token_id
        for fields in (base, *({**base, name: base[name] + 1} for name in base))
    }
    assert len(set(drawn.values())) == 4


def test_a_rounding_error_in_the_logits_changes_no_draw() -> None:
    row_V = logits(13).expand(400, -1)
    draws = [Draw(SamplingParams(temperature=0.9, seed=1), 0, i) for i in range(400)]
    before = [one.token_id for one in sample(row_V, draws)]
    after = [one.token_id for one in sample(row_V + logits(14, 400, spread=1e-6), draws)]
    assert before == after


@given(
    st.lists(st.integers(-6, 6), min_size=1, max_size=60),
    st.integers(0, 70),
    st.floats(0.01, 1.0, exclude_min=True),
)
def test_truncation_keeps_what_its_slow_twin_keeps(values: list[int], top_k: int, top_p: float) -> None:
    row_V = torch.tensor(values, dtype=torch.float32) * 0.7
    kept, twin = truncate(row_V, top_k, top_p), truncated_slowly(row_V, top_k, top_p)
    different = (kept != twin).nonzero()[:, 0]
    if len(different):  # mass that reaches top_p but for rounding
        mass = float(row_V.double().softmax(-1)[kept.isfinite() & twin.isfinite()].sum())
        assert top_k or abs(mass - top_p) < 1e-9
        assert len(different) == 1


def test_a_flat_nucleus_is_found_beyond_the_most_likely_tokens() -> None:
    row_V = logits(17, vocab=40_000, spread=0.01)[0]
    assert torch.equal(truncate(row_V, 0, 0.95), truncated_slowly(row_V, 0, 0.95))


@pytest.mark.parametrize("temperature", [1e-46, 1e-6, 1e6])
def test_extreme_temperatures_draw_a_token(temperature: float) -> None:
    row_V = logits(19)
    (one,) = sample(row_V, [Draw(SamplingParams(temperature=temperature, seed=1), 0, 0)])
    assert 0 <= one.token_id < VOCAB
    if temperature < 1:
        assert one.token_id == int(row_V[0].argmax())


def test_a_draw_makes_no_vocabulary_of_noise() -> None:
    large = logits(23, vocab=50_000)
    counting = counted(lambda: sample(large, [Draw(SamplingParams(temperature=0.8), 0, 0)]))
    assert not [
        name for name in counting.names if "exponential" in name or "rand" in name or "uniform" in name
    ]
    assert counting.doubles <= BLOCK_LEN


def test_the_branches_of_a_step_are_drawn_together() -> None:
    def draw(num: int) -> Counting:
        rows_BV = logits(29, num)
        return counted(
            lambda: sample(rows_BV, [Draw(SamplingParams(temperature=0.8), b, 0) for b in range(num)])
        )

    assert len(draw(2).names) == len(draw(8).names) <= 30


@pytest.mark.parametrize(
    ("num_ranked", "of_draws", "most"), [(3, (), 3), (0, (2, 5), 5), (4, (2,), 4), (0, (0,), 0)]
)
def test_a_row_ranks_as_many_tokens_as_any_part_of_it_needs(
    num_ranked: int, of_draws: tuple[int, ...], most: int
) -> None:
    draws = tuple(Draw(SamplingParams(top_logprobs=n), 0, 0) for n in of_draws)
    wanted = Wanted(draws, num_ranked)
    assert (wanted.most_ranked, wanted.anything) == (most, True)
    assert not Wanted().anything
