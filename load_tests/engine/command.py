"""Runs a benchmark of a model of a public shape from the command line: the machine's limits before and after
it, a line per measurement, the report and its picture."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from load_tests.benchmark import json_option, new_parser, option, printed, say
from load_tests.plot import write_plot
from shared.measuring.case import CHUNK_LEN, Case
from shared.measuring.rates import Rates, measure_rates
from shared.measuring.report import Measurement, write_report
from shared.measuring.shapes import SHAPES

Measure = Callable[[Rates], Iterator[Measurement]]


def shape_parser(name: str, about: str | None) -> argparse.ArgumentParser:
    """With the options that ``case_of`` and ``run`` read; ``--context`` is for each benchmark to add."""
    parser = new_parser(name, about)
    option(parser, "--shape", "qwen2-0.5b", "of a public model", choices=sorted(SHAPES))
    option(parser, "--chunk", CHUNK_LEN, "tokens of a chunk")
    option(parser, "--question", 128, "tokens after the context")
    option(parser, "--device", "cpu", "cpu or cuda")
    option(parser, "--threads", 0, "of torch; 0: as many as there are cores")
    json_option(parser)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="where to write a picture of it (SVG)")
    return parser


def case_of(args: argparse.Namespace, context: int, **more: Any) -> Case:
    """
    Raises:
        ValueError: names the option that makes no sense.
    """
    sizes = {
        "question": args.question,
        "chunk_len": args.chunk,
        "device": args.device,
        "threads": args.threads,
    }
    return Case(SHAPES[args.shape], context, **sizes | more)


def run(
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    plan: Callable[[argparse.Namespace], Measure],
    facts: Sequence[str] = ("shape",),
) -> int:
    """``plan``: what is measured, or a ``ValueError`` that names the option; ``facts``: options that the
    report names. Exit codes: 0 measured, 2 wrong input."""
    args = parser.parse_args(argv)
    try:
        measure = plan(args)
        check_there(args.device)
    except ValueError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    if args.threads:
        torch.set_num_threads(args.threads)
    rates = limits(args.device)
    measurements = printed(measure(rates))
    print("\nwhen all was done (limits mean something only if this is what it was in the beginning):")
    after = limits(args.device)
    told = {name: getattr(args, name) for name in facts}
    if args.json:
        write_report(args.json, measurements, **told, **asdict(rates), flops_after=after.flops)
    if args.plot:
        write_plot(args.plot, measurements, f"{', '.join(map(str, told.values()))}, {args.device}")
    return 0


def check_there(device: str) -> None:
    """
    Raises:
        ValueError: it is a GPU, and there is none.
    """
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError("--device: there is no CUDA device here; leave it out to measure on the CPU")


def limits(device: str) -> Rates:
    """Measured now, and printed."""
    say("the machine's limits")
    rates = measure_rates(device)
    print(f"{'matrix products':34} {rates.flops / 1e12:12.3f} TFLOP/s")
    print(f"{'memory reads':34} {rates.bytes_per_s / 1e9:12.1f} GB/s")
    return rates
