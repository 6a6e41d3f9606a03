"""The benchmark of metrics measures what it says."""

from __future__ import annotations

from load_tests.metrics.__main__ import MetricsPlan, measure


def test_every_measurement_is_made() -> None:
    by_name = {m.name: m for m in measure(MetricsPlan(runs=1, samples=2, tokens=4))}
    assert set(by_name) == {"observation", "count", "look", "answer_counted", "answer_counted_over_alone"}
    assert by_name["answer_counted"].baseline is not None
