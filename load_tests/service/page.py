"""Writes the HTML report: one file, no scripts, nothing loaded from elsewhere."""

from __future__ import annotations

from html import escape
from pathlib import Path

from load_tests.benchmark import line
from load_tests.service.compare import comparison_table, differences
from load_tests.service.outcome import Outcome
from load_tests.service.result import STAGES
from load_tests.service.terminal import quality_line, rates_table, selecting_table, stages_table
from shared.measuring.html_page import html_list, html_table, write_html
from shared.measuring.svg import Axis, Series, bar_chart, line_chart


def write_page(path: Path, outcome: Outcome) -> None:
    limits = ", ".join(f"{name} ≤ {ms:.0f} ms" for name, ms in outcome.limits_ms.items())
    words = ", ".join(f"{name} {value}" for name, value in outcome.load.items())
    body = [
        "<h1>Load test</h1>",
        f"<p>{escape(outcome.level)} at {escape(outcome.target)}: {escape(words)}.<br>",
        f"SLO {escape(outcome.slo)}: {outcome.slo_fraction:.0%} of the requests with {escape(limits)}. ",
        "Every time runs from the instant at which the request was meant to be sent.</p>",
        html_list([*map(line, outcome.measurements()), *map(quality_line, outcome.quality)]),
        '<div class="plots">',
        *plots(outcome),
        "</div>",
        html_table(rates_table(outcome)),
        "<p>Medians of the service's own timings, and where the prompt's KV came from:</p>",
        html_table(stages_table(outcome)),
    ]
    if (selectors := selecting_table(outcome)) is not None:
        body += ["<p>What chose the tokens that were computed anew:</p>", html_table(selectors)]
    write_html(path, "Load test", body)


def write_comparison(path: Path, before: Outcome, after: Outcome) -> None:
    body = [
        "<h1>Load tests A and B</h1>",
        html_list([f"differs: {text}" for text in differences(before, after)]),
    ]
    body += [html_table(comparison_table(before, after))]
    for name, outcome in (("A", before), ("B", after)):
        body += [f"<h2>{name}</h2>", '<div class="plots">', *plots(outcome), "</div>"]
    write_html(path, "Load tests compared", body)


def plots(outcome: Outcome) -> list[str]:
    """Latency over rate, throughput over rate, distribution of TTFT, stages."""
    return [
        _latency_plot(outcome),
        _throughput_plot(outcome),
        _distribution_plot(outcome),
        _stages_plot(outcome),
    ]


def _latency_plot(outcome: Outcome) -> str:
    series = []
    for color, mode in enumerate(outcome.modes):
        for share, dashed in ((0.5, False), (0.9, True)):
            points = [(r.rate, r.metric_ms("ttft", share)) for r in outcome.of(mode) if r.ttft_ms]
            series.append(Series(f"{mode}, p{share * 100:.0f}", points, color, dashed, dots=True))
    x = Axis.over("requests per second", [r.rate for r in outcome.rates], log=True)
    if (limit := outcome.limits_ms.get("ttft")) is not None:
        series.append(Series("SLO", [(x.low, limit), (x.high, limit)], 6, dashed=True))
    y = Axis.over("ms", [value for line in series for _, value in line.points], log=True)
    return line_chart("TTFT over rate", x, y, series)


def _throughput_plot(outcome: Outcome) -> str:
    series = []
    for color, mode in enumerate(outcome.modes):
        answered = [(r.rate, r.throughput) for r in outcome.of(mode)]
        good = [(r.rate, r.goodput) for r in outcome.of(mode)]
        series.append(Series(f"{mode}, answered", answered, color, dots=True))
        series.append(Series(f"{mode}, within the SLO", good, color, dashed=True, dots=True))
    axis = Axis.over("requests per second", [r.rate for r in outcome.rates])
    series.append(Series("all of them", [(0, 0), (axis.high, axis.high)], 6, dashed=True))
    return line_chart("Throughput over rate", axis, axis, series)


def _distribution_plot(outcome: Outcome) -> str:
    chosen = [result for mode in outcome.modes for result in outcome.of(mode) if result.ttft_ms]
    series = [
        Series(
            f"{r.reuse} at {r.rate:.3g}/s ({len(r.ttft_ms)})",
            [(value, (i + 1) / len(r.ttft_ms)) for i, value in enumerate(r.ttft_ms)],
            outcome.modes.index(r.reuse),
            not r.holds,
        )
        for r in chosen
    ]
    x = Axis.over(
        "ms, logarithmic; dashed: beyond the SLO", [value for r in chosen for value in r.ttft_ms], log=True
    )
    return line_chart(
        "Share of answered requests with a TTFT of at most …", x, Axis("share", 0, 1.02), series
    )


def _stages_plot(outcome: Outcome) -> str:
    chosen = [
        best for mode in outcome.modes if (best := outcome.best(mode) or next(iter(outcome.of(mode)), None))
    ]
    bars = [
        (f"{r.reuse} at {r.rate:.3g}/s", [r.stages_ms.get(stage, 0.0) for stage in STAGES]) for r in chosen
    ]
    return bar_chart(
        "Stages of a request, medians", "ms", bars, [stage.removesuffix("_ms") for stage in STAGES]
    )
