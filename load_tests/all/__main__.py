"""Runs every benchmark, each in a process of its own, and writes one page of what they measured.

    python -m load_tests.all --out docs/benchmarks         hours; goes on where it was broken off
    python -m load_tests.all --only auth,seals --again     these two, although they have reports
    python -m load_tests.all --list

Nothing else should run on the machine meanwhile. A benchmark that fails is told, and the others go on; the
exit code is 1 then.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from load_tests.all.page import write_page
from load_tests.all.plan import BENCHMARKS, Benchmark
from load_tests.all.runs import read, run
from load_tests.benchmark import new_parser


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    if args.list:
        for benchmark in BENCHMARKS:
            print(f"{benchmark.name:16} {benchmark.about}")
        return 0
    failed = 0
    for number, outcome in enumerate(run(args.only, args.out, args.again), 1):
        took = "measured before" if outcome.seconds is None else f"{outcome.seconds / 60:.1f} min"
        told = f"failed: {outcome.error}" if outcome.error else took
        print(f"{number}/{len(args.only)} {outcome.benchmark.name}: {told}", flush=True)
        failed += bool(outcome.error)
        write_page(args.out, read(args.out, BENCHMARKS))
    print(args.out / "index.md")
    return 1 if failed else 0


def _named(text: str) -> list[Benchmark]:
    by_name = {benchmark.name: benchmark for benchmark in BENCHMARKS}
    names = text.split(",")
    for name in names:
        if name not in by_name:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(by_name)}")
    return [by_name[name] for name in names]


def _parser() -> argparse.ArgumentParser:
    parser = new_parser("load_tests.all", __doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"), help="default: %(default)s")
    parser.add_argument(
        "--only", type=_named, default=list(BENCHMARKS), metavar="NAMES", help="of these, by commas"
    )
    parser.add_argument("--again", action="store_true", help="also what has a report already")
    parser.add_argument("--list", action="store_true", help="name the benchmarks and what they measure")
    return parser


if __name__ == "__main__":
    sys.exit(main())
