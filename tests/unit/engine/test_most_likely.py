"""The most likely tokens of rows of logits, and the logarithms of their sums, against torch's."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shared.engine.decoding import most_likely as module
from shared.engine.decoding.most_likely import library, most_likely

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(params=["compiled", "torch"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "torch":
        monkeypatch.setattr(module, "library", lambda: None)
    elif library() is None:
        pytest.skip("this processor or installation has no kernels of logits")
    return str(request.param)


def logits(num_rows: int, width: int, seed: int = 0) -> torch.Tensor:
    """Rounded, so that some are equal."""
    torch.manual_seed(seed)
    return (torch.randn(num_rows, width) * 4).bfloat16().float()


@given(num_rows=st.integers(1, 5), width=st.integers(1, 300), seed=st.integers(0, 1 << 20))
def test_ids_and_sums_are_those_of_torch(num_rows: int, width: int, seed: int) -> None:
    logits_BV = logits(num_rows, width, seed)
    ids_B, log_sums_B = most_likely(logits_BV)
    assert ids_B.tolist() == logits_BV.argmax(-1).tolist()
    torch.testing.assert_close(log_sums_B.double(), logits_BV.double().logsumexp(-1), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("width", [49_152, 151_936])
def test_a_whole_vocabulary(kind: str, width: int) -> None:
    logits_BV = logits(3, width)
    ids_B, log_sums_B = most_likely(logits_BV)
    assert ids_B.tolist() == logits_BV.argmax(-1).tolist()
    torch.testing.assert_close(log_sums_B.double(), logits_BV.double().logsumexp(-1), rtol=2e-6, atol=0)


@pytest.mark.parametrize("width", [1, 16, 17, 64, 65, 1000])
def test_of_equally_likely_tokens_the_first(kind: str, width: int) -> None:
    ids_B, log_sums_B = most_likely(torch.full((2, width), -3.0))
    assert ids_B.tolist() == [0, 0]
    assert log_sums_B.tolist() == pytest.approx([math.log(width) - 3] * 2)


def test_a_row_is_what_it_is_alone(kind: str) -> None:
    logits_BV = logits(7, 1000)
    together = most_likely(logits_BV)
    alone = [most_likely(logits_BV[b : b + 1]) for b in range(7)]
    for all_rows, rows in zip(together, zip(*alone, strict=True), strict=True):
        assert torch.equal(all_rows, torch.cat(rows))


def test_impossible_tokens_weigh_nothing(kind: str) -> None:
    logits_BV = torch.full((2, 100), -math.inf)
    logits_BV[0, 37], logits_BV[1, [5, 99]] = 3.0, torch.tensor([-200.0, 2.0])
    ids_B, log_sums_B = most_likely(logits_BV)
    assert (ids_B.tolist(), log_sums_B.tolist()) == ([37, 99], [3.0, 2.0])


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_row_with_something_that_is_no_number_shows_it(kind: str, wrong: float) -> None:
    logits_BV = logits(2, 100)
    logits_BV[1, 41] = wrong
    ids_B, log_sums_B = most_likely(logits_BV)
    assert ids_B[1] == 41
    assert not math.isfinite(log_sums_B[1])
    assert math.isfinite(log_sums_B[0])


def test_rows_with_gaps_between_them(kind: str) -> None:
    wide_BV = logits(4, 200)
    expected = most_likely(wide_BV[:, :100].contiguous())
    assert all(torch.equal(a, b) for a, b in zip(most_likely(wide_BV[:, :100]), expected, strict=True))
