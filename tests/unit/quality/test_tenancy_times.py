"""What times tell of which texts are known: sure guesses, coins, and what lies between."""

from __future__ import annotations

import numpy as np
import pytest

from load_tests.tenancy.timing import attack, auc, permutation_p

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("new", "known", "expected"),
    [([3.0, 4.0], [1.0, 2.0], 1.0), ([1.0, 2.0], [3.0, 4.0], 0.0), ([1.0, 2.0], [1.0, 2.0], 0.5)],
)
def test_a_guess_by_the_shorter_time(new: list[float], known: list[float], expected: float) -> None:
    assert auc(np.array(new), np.array(known)) == expected


def test_times_that_are_much_shorter_tell() -> None:
    found = attack(RNG.normal(0.1, 0.01, 40), RNG.normal(0.05, 0.01, 40))
    assert found.tells
    assert found.auc.low > 0.9
    assert 40 < found.saved_ms.low < found.saved_ms.value < found.saved_ms.high < 60


def test_times_of_the_same_kind_do_not_tell() -> None:
    found = attack(RNG.normal(0.1, 0.01, 40), RNG.normal(0.1, 0.01, 40))
    assert not found.tells
    assert found.auc.low < 0.5 < found.auc.high


def test_longer_times_tell_as_well() -> None:
    found = attack(RNG.normal(0.05, 0.01, 40), RNG.normal(0.1, 0.01, 40))
    assert found.tells
    assert found.auc.high < 0.1


def test_labels_that_mean_nothing_have_any_p() -> None:
    same = np.full(10, 0.1)
    assert permutation_p(same, same, np.random.Generator(np.random.Philox(0))) == 1.0
