"""Shows in the terminal: one line that lives while requests are under way, one per rate, and a table at the
end."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from itertools import product

from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

from load_tests.benchmark import line
from load_tests.service.driver import Progress
from load_tests.service.outcome import Outcome
from load_tests.service.quality import Agreement
from load_tests.service.result import STAGES, RateResult
from load_tests.service.sample import percentile
from load_tests.service.slo import METRICS

_LINE_EVERY_S = 30.0


class Terminal:
    """A ``Watcher``. Where the console is no terminal (a file, a pipe), the living line becomes one every
    half minute."""

    def __init__(self, console: Console, status: Status) -> None:
        self._console = console
        self._status = status
        self._printed_s = -math.inf

    def doing(self, what: str) -> None:
        self._status.update(what)
        self._print_if_no_terminal(what)

    def under_way(self, reuse: str, rate: float, progress: Progress) -> None:
        ended = progress.samples
        ttft = [value for sample in ended if (value := sample.metric_ms("ttft")) is not None]
        failed = sum(not sample.ok for sample in ended)
        so_far = f", TTFT p50 {duration(percentile(ttft, 0.5))}" if ttft else ""
        sent = len(ended) + len(progress.flights)
        flying = len(progress.flights)
        line = (
            f"{reuse} at {rate:.3g}/s: {sent} of {progress.planned} sent, {flying} in flight, "
            f"{failed} failed{so_far}"
        )
        self._status.update(line)
        if time.monotonic() - self._printed_s >= _LINE_EVERY_S:
            self._print_if_no_terminal(line)

    def measured(self, result: RateResult) -> None:
        verdict = ("within the SLO", "green") if result.holds else ("beyond the SLO", "red")
        shown = (
            f"{result.reuse} at {result.rate:.3g}/s: {result.num_good} of {result.num_requests} "
            "within every limit, "
        )
        early = "; stopped early" if result.stopped_early else ""
        self._console.print(Text.assemble(shown, verdict, early), soft_wrap=True)

    def _print_if_no_terminal(self, line: str) -> None:
        self._printed_s = time.monotonic()
        if not self._console.is_terminal:
            self._console.print(f"… {line}", style="dim", highlight=False, soft_wrap=True)


def show(console: Console, outcome: Outcome) -> None:
    """The whole outcome."""
    console.print()
    console.print(rates_table(outcome))
    console.print(stages_table(outcome))
    if (selectors := selecting_table(outcome)) is not None:
        console.print(selectors)
    limits = ", ".join(f"{name} {duration(ms)}" for name, ms in outcome.limits_ms.items())
    console.print(
        f"SLO {outcome.slo}: {outcome.slo_fraction:.0%} of the requests within {limits}; times run "
        "from the intended instant",
        style="dim",
        soft_wrap=True,
    )
    for result in outcome.rates:
        for status, detail in result.details.items():
            console.print(
                Text(f"{result.reuse} at {result.rate:.3g}/s, {status}: {detail}", "red"), soft_wrap=True
            )
    for agreed in outcome.quality:
        console.print(quality_line(agreed), soft_wrap=True)
    for measurement in outcome.measurements():
        console.print(line(measurement), soft_wrap=True)


def numbers_table(first: str, *names: str) -> Table:
    """Of rows that are called like their ``first`` cell."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column(first, no_wrap=True)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def rates_table(outcome: Outcome) -> Table:
    times = ("TTFT p50", "p90", "TPOT p50", "p90", "total p50", "p90")
    table = numbers_table("reuse", "rate/s", "requests", "good", "goodput/s", *times)
    table.add_column("errors", overflow="fold")
    for mode in outcome.modes:
        for result in outcome.of(mode):
            style = "bold" if result is outcome.best(mode) else "" if result.holds else "dim"
            table.add_row(*_rate_cells(result), style=style)
    return table


def stages_table(outcome: Outcome) -> Table:
    """Medians of the service's own timings, and where the prompt's KV came from."""
    stages = (*(stage.removesuffix("_ms").replace("_", " ") for stage in STAGES), "not engine")
    table = numbers_table("reuse", "rate/s", *stages, "resident", "loaded", "computed", "lag p99")
    for mode in outcome.modes:
        for result in outcome.of(mode):
            times = [duration(result.stages_ms.get(stage, 0.0)) for stage in STAGES]
            shares = [f"{result.tokens.share(name):.0%}" for name in ("resident", "loaded", "computed")]
            lag = duration(result.send_lag_ms)
            table.add_row(mode, f"{result.rate:.3g}", *times, duration(result.overhead_ms), *shares, lag)
    return table


def selecting_table(outcome: Outcome) -> Table | None:
    """Of the modes whose tokens a selector chooses; None: there are none."""
    times = ("waited p50", "p90", "loading", "encoding", "scoring", "total p50", "p90")
    table = numbers_table("selector", "rate/s", "selections/s", "busy", *times, "hidden")
    for mode in outcome.modes:
        for result in outcome.of(mode):
            if (of := result.selecting) is not None:
                cells = [f"{result.rate:.3g}", f"{of.per_s:.3g}", f"{of.busy:.0%}"]
                waited = [percentile(of.wait_ms, share) for share in (0.5, 0.9)]
                total = [percentile(of.total_ms, share) for share in (0.5, 0.9)]
                stages = [of.stages_ms[name] for name in ("load_ms", "encode_ms", "score_ms")]
                cells += map(duration, (*waited, *stages, *total))
                table.add_row(mode, *cells, f"{of.hidden:.0%}")
    return table if table.row_count else None


def quality_line(agreed: Agreement) -> str:
    return (
        f"{agreed.reuse} against full, {agreed.num_branches} answers: {agreed.same:.0%} the same, "
        f"{agreed.first:.0%} with the same first token, {agreed.leading:.0%} of the tokens before the "
        "first difference"
    )


def duration(ms: float) -> str:
    return f"{ms / 1000:.3g} s" if ms >= 999.5 else f"{ms:.3g} ms" if ms >= 0.1 or ms == 0 else f"{ms:.1g} ms"


def errors_of(statuses: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {status}" for status, count in sorted(statuses.items()) if status != "OK")


def _rate_cells(result: RateResult) -> Sequence[str]:
    times = [duration(result.metric_ms(name, share)) for name, share in product(METRICS, (0.5, 0.9))]
    return [
        result.reuse,
        f"{result.rate:.3g}",
        str(result.num_requests),
        f"{result.good_fraction:.0%}",
        f"{result.goodput:.3g}",
        *times,
        errors_of(result.statuses) + (" (stopped early)" if result.stopped_early else ""),
    ]
