from __future__ import annotations

import statistics
from itertools import pairwise
from pathlib import Path

import pytest

from load_tests.service.arrivals import poisson, read_trace
from shared.errors import InvalidRequest


@pytest.mark.parametrize("rate", [0.05, 3.0, 400.0])
def test_the_mean_rate_is_exact(rate: float) -> None:
    arrivals = poisson(rate, 500, seed=3)
    assert len(arrivals) == 500
    assert list(arrivals) == sorted(arrivals)
    assert arrivals[0] >= 0
    assert arrivals[-1] <= 500 / rate


def test_gaps_scatter_like_those_of_a_poisson_process() -> None:
    gaps = [b - a for a, b in pairwise(poisson(10.0, 20_000, seed=1))]
    assert statistics.mean(gaps) == pytest.approx(0.1, rel=0.02)
    assert statistics.stdev(gaps) == pytest.approx(0.1, rel=0.03)  # exponential: as much scatter as mean
    assert sum(gap > 0.2 for gap in gaps) / len(gaps) == pytest.approx(2.718281828**-2, rel=0.05)


def test_the_same_seed_gives_the_same_pattern_at_every_rate() -> None:
    slow, fast = poisson(1.0, 50, seed=7), poisson(4.0, 50, seed=7)
    assert fast == pytest.approx([instant / 4 for instant in slow])
    assert poisson(1.0, 50, seed=8) != slow


def test_a_trace_starts_with_its_first_arrival(tmp_path: Path) -> None:
    (tmp_path / "trace").write_text("# seconds\n12.5, a comment\n\n10\n11\n")
    assert read_trace(tmp_path / "trace") == (0.0, 1.0, 2.5)


@pytest.mark.parametrize(("text", "named"), [("1\nsoon\n", "line 2"), ("# nothing\n", "no arrival")])
def test_a_bad_trace_is_refused_by_line(tmp_path: Path, text: str, named: str) -> None:
    (tmp_path / "trace").write_text(text)
    with pytest.raises(InvalidRequest, match=named):
        read_trace(tmp_path / "trace")
    with pytest.raises(InvalidRequest, match="No such file"):
        read_trace(tmp_path / "missing")
