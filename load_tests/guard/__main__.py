"""Reads kept answers, and prints for every pair of cheap ways what their disagreement would catch:
``python -m load_tests.guard --help``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from load_tests.benchmark import exit_code, json_option, new_parser, option
from load_tests.guard.disagreement import (
    LEAST_CAUGHT,
    MOST_ALARMS,
    Guard,
    by_mode,
    guards,
    read_answers,
)
from shared.measuring.report import Measurement, write_report

ABOUT = """Whether two cheap ways of answering that disagree tell when reuse loses an answer.

For every pair of modes: of the questions that the reference (full over whole blocks) answers and the first
mode does not, the share on which the two modes' answers differ in their words by more than a threshold
(caught), and of all other questions the same share (false alarms). Printed is the threshold that catches most
with 15 % of false alarms at most. A guard that asks both and recomputes more where they differ is worth
building from 60 % caught on.

  python -m load_tests.quality --answers build/quality.jsonl --minutes 60
  python -m load_tests.guard --answers build/quality.jsonl
  python -m load_tests.guard --answers build/quality.jsonl --kinds cross_document"""


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 computed, 2 wrong input."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)

    def compute() -> None:
        args = _parser().parse_args(argv)
        kinds = tuple(filter(None, args.kinds.split(",")))
        pairs = guards(by_mode(read_answers(args.answers), kinds))
        wanted = (one for one in pairs if args.served in ("", one.served))
        found = sorted(wanted, key=lambda one: one.caught, reverse=True)
        _show(console, found, args.rows)
        if args.json is not None:
            write_report(args.json, list(_measurements(found)), {"kinds": list(kinds)}, threads=1)

    return exit_code("guard", Console(stderr=True, highlight=False), compute)


def _show(console: Console, found: Sequence[Guard], num_rows: int) -> None:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("served", "beside it", "questions", "losses", "caught", "false alarms", "any difference"):
        table.add_column(name, justify="left" if name in ("served", "beside it") else "right")
    for one in found[:num_rows]:
        caught, alarms = one.differing
        table.add_row(
            one.served,
            one.second,
            str(one.num_questions),
            str(one.num_losses),
            f"{one.caught:.1%}",
            f"{one.alarms:.1%}",
            f"{caught:.1%} at {alarms:.1%}",
        )
    console.print(table)
    enough = [one for one in found if one.caught >= LEAST_CAUGHT]
    console.print(
        f"{len(enough)} of {len(found)} pairs catch {LEAST_CAUGHT:.0%} of the losses at {MOST_ALARMS:.0%} "
        "false alarms or fewer"
    )


def _measurements(found: Sequence[Guard]) -> Iterator[Measurement]:
    for one in found:
        name = f"{one.served}_and_{one.second}"
        yield Measurement(f"caught_{name}", one.caught, "fraction", n=one.num_losses)
        yield Measurement(f"alarms_{name}", one.alarms, "fraction", n=one.num_questions - one.num_losses)


def _parser() -> argparse.ArgumentParser:
    parser = new_parser("load_tests.guard", ABOUT)
    parser.add_argument(
        "--answers", type=Path, required=True, metavar="FILE", help="as load_tests.quality keeps them"
    )
    option(parser, "--kinds", "", "only questions of these kinds; empty: all")
    option(parser, "--served", "", "only pairs in which this mode is served, such as reordered_0; empty: all")
    option(parser, "--rows", 20, "pairs that are shown, the best first")
    json_option(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
