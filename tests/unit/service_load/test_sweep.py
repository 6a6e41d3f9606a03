from __future__ import annotations

import pytest

from load_tests.service.sweep import highest_rate
from tests.virtual_time import run_virtually


def search(capacity: float, start: float, **options: float) -> tuple[float | None, list[float]]:
    probed: list[float] = []

    async def holds(rate: float) -> bool:
        probed.append(rate)
        return rate <= capacity

    return run_virtually(highest_rate(holds, start, **options)), probed  # type: ignore[arg-type]


@pytest.mark.parametrize("start", [0.5, 7.0, 64.0])
@pytest.mark.parametrize("capacity", [0.9, 7.3, 30.0])
def test_the_capacity_is_found_to_within_the_precision(capacity: float, start: float) -> None:
    found, probed = search(capacity, start, precision=1.1, max_probes=30)
    assert found is not None
    assert capacity / 1.1 <= found <= capacity
    assert len(probed) <= 14
    assert len(set(probed)) == len(probed), "no rate is measured twice"


def test_nothing_is_found_where_nothing_holds() -> None:
    found, probed = search(0.0, 1.0, max_probes=5)
    assert found is None
    assert probed == [1.0, 0.5, 0.25, 0.125, 0.0625]


def test_a_search_ends_after_so_many_probes_with_what_it_knows() -> None:
    found, probed = search(1e9, 1.0, max_probes=4)
    assert found == 8.0
    assert len(probed) == 4
