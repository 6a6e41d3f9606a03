"""Reads the command line, simulates or measures, and shows and writes what came of it:
``python -m load_tests.routing --help``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from load_tests.benchmark import exit_code, json_option, new_parser, option, printed, say
from load_tests.plot import write_plot
from load_tests.routing import real_simulated
from load_tests.routing.breaks import breaks
from load_tests.routing.choosers import CHUNKS, WAYS, ByChunkCost
from load_tests.routing.findings import Findings, found, measurements, verdict
from load_tests.routing.plan import FULL, SMALL, DayPlan
from load_tests.routing.real_findings import measurements as real_measurements
from load_tests.routing.real_findings import verdict as real_verdict
from load_tests.routing.real_plan import SMOKE, RealPlan
from load_tests.routing.real_table import real_table
from load_tests.routing.simulator import Simulation
from shared.measuring.report import Measurement, write_report

ABOUT = """Three ways of choosing a replica for a question, on the same simulated day: as Serve does by
default (the shorter queue of two), by rendezvous hashing of the heaviest chunk with a load bound, and by what
the question's chunks cost at each replica (shared/routing, the code that routes).

The day has a Zipf law of subjects, a crowd about a subject that nobody asked about before, a tenth of the
nodes that vanish at once, and a restart of every replica. Replicas, links and reports are simulated; how long
a decision takes is measured. The same seed gives the same day and the same numbers, but for the latter.

  python -m load_tests.routing simulate --json build/routing.json --plot build/routing.svg   1,000 replicas
  python -m load_tests.routing simulate --ci                                                    32 replicas
  python -m load_tests.routing simulate --ci --breaks    where it ceases to pay, one change at a time

With `real`, two replicas or more on this machine answer the same questions once routed in each of these ways,
one stack after the other, with pools of a quarter of what is asked about again and again, and KV that comes
through a link as from other machines; then a quarter of the questions is about documents that nobody asked
about before. Loads, hits and times to the first token are measured, with 95 % intervals, and whether hits
decay meanwhile. For a quiet machine.

  python -m load_tests.routing real --json build/routing-real.json       13 minutes
  python -m load_tests.routing real --smoke                              whether it runs
  python -m load_tests.routing real --rounds 2                           there and back: a machine that drifts
  python -m load_tests.routing real --replicas 4                    together they hold what is asked about
  python -m load_tests.routing real --link-mb-per-s 0   KV that lies in the node's own memory and on its disk
  python -m load_tests.routing real --model demo --link-mb-per-s 0 --rate 4   KV that takes no time to load"""

REAL = RealPlan()
_REAL_NUMBERS = (
    *("subjects", "chunk_tokens", "pool_share", "zipf", "novel_share"),
    *("rounds", "steady", "novel", "rate", "link_mb_per_s"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 simulated or measured, 2 wrong input."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)

    def simulate() -> None:
        args = _parser().parse_args(argv)
        if args.what == "real":
            _measure(args, console)
            return
        plan = _plan(args)
        if args.breaks:
            results = printed(breaks(plan))
        else:
            ways = _ways(console, plan)
            results = printed(measurements(ways))
            console.print(verdict(ways))
        _write(args, results, plan)

    return exit_code("routing", Console(stderr=True, highlight=False), simulate)


def _parser() -> argparse.ArgumentParser:
    parser = new_parser("load_tests.routing", ABOUT)
    parser.add_argument("what", choices=["simulate", "real"], help="what to do")
    parser.add_argument("--ci", action="store_true", help="a small fleet: minutes become seconds")
    parser.add_argument("--breaks", action="store_true", help="where routing by chunks ceases to pay")
    for name, of in (("replicas", "num_replicas"), ("chunks", "num_chunks"), ("questions", "num_questions")):
        default = f"default: {getattr(FULL, of)}, --ci {getattr(SMALL, of)}"
        default += f"; real {REAL.replicas}, 8 at most" if name == "replicas" else ""
        parser.add_argument(f"--{name}", type=int, dest=of, help=default)
    parser.add_argument("--load", type=float, help=f"questions per replica and second (default: {FULL.load})")
    option(parser, "--seed", 0, "of everything that is drawn")
    real = parser.add_argument_group("real")
    real.add_argument("--smoke", action="store_true", help="few questions: whether it runs")
    real.add_argument("--model", help=f"a name or a directory, as of `kvquilt up` (default: {REAL.model})")
    for name in _REAL_NUMBERS:
        default = getattr(REAL, name)
        real.add_argument(f"--{name.replace('_', '-')}", type=type(default), help=f"default: {default}")
    json_option(parser)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="where to write a picture of it (SVG)")
    return parser


def _measure(args: argparse.Namespace, console: Console) -> None:
    """
    Raises:
        KvquiltError: an option makes no sense, or a stack did not start.
    """
    from load_tests.routing.real_stack import run_all  # brings Ray along

    names = ("model", "seed", *_REAL_NUMBERS)
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    if args.num_replicas is not None:
        given["replicas"] = args.num_replicas
    plan = replace(SMOKE if args.smoke else REAL, **given)
    runs = run_all(plan, Console(stderr=True, highlight=False))
    console.print(real_table(runs, plan))
    simulated = real_simulated.compared(plan, runs)
    results = printed((*real_measurements(runs, plan), *real_simulated.measurements(simulated)))
    for said in (*real_verdict(runs), *map(str, simulated)):
        console.print(said, soft_wrap=True)
    if args.json is not None:
        write_report(args.json, results, {"plan": asdict(plan)})


def _plan(args: argparse.Namespace) -> DayPlan:
    """
    Raises:
        InvalidRequest: an option makes no sense.
    """
    names = ("num_replicas", "num_chunks", "num_questions", "load", "seed")
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    return (SMALL if args.ci else FULL).but(**given)


def _ways(console: Console, plan: DayPlan) -> dict[str, Findings]:
    ways: dict[str, Findings] = {}
    for way in WAYS:
        say(f"{way.name}: {plan.num_questions} questions to {plan.num_replicas} replicas")
        chooser = way.make(plan)
        ways[way.name] = found(Simulation(plan, chooser).run())
        if isinstance(chooser, ByChunkCost):
            _show_counts(console, chooser)
    _show(console, ways)
    return ways


def _show(console: Console, ways: Mapping[str, Findings]) -> None:
    table = Table(box=None, pad_edge=False, header_style="dim")
    names = ("phase", "by", "questions", "hits", "loads each", "p50 ms", "p95 ms")
    for i, name in enumerate(names):
        table.add_column(name, justify="left" if i < 2 else "right")
    for phase in ways[CHUNKS.name].phases:
        for name, of_way in ways.items():
            one = of_way.phases[phase]
            numbers = (f"{one.hit_ratio:.1%}", f"{one.num_loads:.2f}")
            times = (f"{one.ttft_p50_ms:.1f}", f"{one.ttft_p95_ms:.1f}")
            table.add_row(phase.name, name, str(one.num_questions), *numbers, *times)
    console.print(table)


def _show_counts(console: Console, chooser: ByChunkCost) -> None:
    counts = chooser.counts()
    reasons = ", ".join(f"{reason.value} {count}" for reason, count in counts.decisions.most_common())
    reports = ", ".join(f"{outcome.value} {count}" for outcome, count in counts.reports.most_common())
    console.print(
        f"decided as {reasons}; reports {reports}; chunks not where they were told to be: "
        f"{counts.route_stale} of {counts.hits + counts.misses}"
    )


def _write(args: argparse.Namespace, results: Sequence[Measurement], plan: DayPlan) -> None:
    if args.json is not None:
        write_report(args.json, results, {"plan": asdict(plan)})
    if args.plot is not None:
        write_plot(args.plot, results, f"{plan.num_replicas} replicas, {plan.num_chunks} chunks")


if __name__ == "__main__":
    sys.exit(main())
