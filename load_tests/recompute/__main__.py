"""What CacheClip costs and saves: time to first token with the selection included, in one run, with random
weights.

    python -m load_tests.recompute --context 8192 --question 128 --ratios 0,10,20,40,100 --json
    build/recompute.json
    python -m load_tests.recompute --device cuda --shape qwen2-7b --json build/recompute.json

``--device`` is the primary's; the auxiliary stays on the CPU, as a selector's does.

First tokens of the engine's own ``full`` and ``reordered``, and of CacheClip at each percentage: both
tokenizers read the chunks, the auxiliary's KV is read from its store, the auxiliary scores, windows are
ranked and mapped, then the engine recomputes what was chosen; the primary's KV is resident. Each beside this
machine's limit (measured matrix products and memory reads) for what that percentage really recomputes. Then
where the time goes at 20 %, the selection by both readings, and what it adds to a loading of the primary's KV
that takes longer. That loading waits, it does not compute: two who compute share the processors, and hide
nothing. Only ratios of one run mean anything.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from load_tests.engine.__main__ import line
from load_tests.engine.case import CHUNK_LEN, Case
from load_tests.engine.plot import write_plot
from load_tests.recompute.measurements import RecomputePlan, measure
from shared.generation.selection import Grouping, Reading
from shared.measuring.rates import Rates, measure_rates
from shared.measuring.report import write_report
from shared.measuring.shapes import SHAPES


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    try:
        plan = _plan(args)
    except ValueError as error:
        print(f"load_tests.recompute: {error}", file=sys.stderr)
        return 2
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        print(
            "load_tests.recompute: --device: there is no CUDA device here; leave it out for the CPU",
            file=sys.stderr,
        )
        return 2
    if args.threads:
        torch.set_num_threads(args.threads)
    _say("the machine's limits")
    rates = measure_rates(args.device)
    _print_rates(rates)
    measurements = []
    for measurement in measure(plan, rates, _say):
        print(line(measurement), flush=True)
        measurements.append(measurement)
    after = measure_rates(args.device)
    print("\nwhen all was done (limits mean something only if this is what it was in the beginning):")
    _print_rates(after)
    if args.json:
        facts = {
            "shape": args.shape,
            "auxiliary": args.auxiliary,
            "context": args.context,
            "chunk": args.chunk,
            "grouping": args.grouping,
            "reading": args.reading,
        }
        write_report(args.json, measurements, **facts, **asdict(rates), flops_after=after.flops)
    if args.plot:
        write_plot(args.plot, measurements, f"{args.shape}, selected by {args.auxiliary}")
    return 0


def _plan(args: argparse.Namespace) -> RecomputePlan:
    shape = SHAPES[args.shape]
    case = Case(
        shape, args.context, args.question, chunk_len=args.chunk, device=args.device, threads=args.threads
    )
    grouping, reading = Grouping(args.grouping), Reading(args.reading)
    return RecomputePlan(case, SHAPES[args.auxiliary], tuple(args.ratios), grouping, reading, args.runs)


def _print_rates(rates: Rates) -> None:
    print(
        f"{'matrix products':34} {rates.flops / 1e12:12.3f} TFLOP/s\n{'memory reads':34} "
        f"{rates.bytes_per_s / 1e9:12.1f} GB/s"
    )


def _say(step: str) -> None:
    print(f"… {step}", file=sys.stderr)


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m load_tests.recompute", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    shapes, groupings, readings = (
        sorted(SHAPES),
        [form.value for form in Grouping],
        [reading.value for reading in Reading],
    )
    parser.add_argument(
        "--shape", choices=shapes, default="qwen2-0.5b", help="of the primary (default: %(default)s)"
    )
    parser.add_argument(
        "--auxiliary", choices=shapes, default="smollm2-135m", help="its shape (default: %(default)s)"
    )
    parser.add_argument(
        "--context", type=int, default=8192, help="tokens, of any number (default: %(default)s)"
    )
    parser.add_argument(
        "--chunk", type=int, default=CHUNK_LEN, help="tokens of a chunk (default: %(default)s)"
    )
    parser.add_argument(
        "--question", type=int, default=128, help="tokens after the context (default: %(default)s)"
    )
    parser.add_argument(
        "--ratios", type=_numbers, default=[0, 10, 20, 40, 100], help="percentages (default: 0,10,20,40,100)"
    )
    parser.add_argument("--grouping", choices=groupings, default="budget", help="default: %(default)s")
    parser.add_argument(
        "--reading", choices=readings, default="stitched", help="of the curve (default: %(default)s)"
    )
    parser.add_argument("--runs", type=int, default=3, help="of everything (default: %(default)s)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=0, help="of torch; 0: as many as there are cores")
    parser.add_argument("--json", type=Path, help="where to write the report")
    parser.add_argument("--plot", type=Path, help="where to write a picture of it (SVG)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
