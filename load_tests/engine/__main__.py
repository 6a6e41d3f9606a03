"""The engine against stock transformers at a public model's shape, with random weights, in one run.

    python -m load_tests.engine --shape qwen2-0.5b --context 4096,8192 --question 128 --json build/engine.json
    python -m load_tests.engine --context 4096 --context 10000 --chunk 1024
    python -m load_tests.engine --device cuda --shape qwen2-7b --context 8192 --json build/engine.json

Times to first token: of transformers with nothing cached and with exactly this prefix cached; of the engine
with the chunks' KV resident (in another order each time) and in files. Decoding: one question, and eight over
one context. Sharing: many requests over mostly the same chunks. What ``batch_invariant`` costs, and sampling.
On a GPU, elsewhere by --parts: steps of many branches over one context, and batches of requests with their KV
resident or brought from host memory (TurboRAG, Table 4). Each beside this machine's limit (measured matrix
products and memory reads) and, for the first token, the kernels' ceiling (each alone at its shapes). Only
ratios of one run mean anything.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from load_tests.engine.case import CHUNK_LEN, Case
from load_tests.engine.compare import (
    Runs,
    compare,
    compare_batches,
    compare_branches,
    compare_disk,
    compare_invariant,
    compare_sharing,
)
from load_tests.engine.plot import write_plot
from load_tests.engine.sampled import compare_sampled
from load_tests.engine.sharing import Crowd
from shared.measuring.rates import Rates, measure_rates
from shared.measuring.report import Measurement, write_report
from shared.measuring.shapes import SHAPES

PARTS = ("compare", "disk", "sharing", "invariant", "sampled", "branches", "batches")
CPU_PARTS = (
    "compare",
    "disk",
    "sharing",
    "invariant",
    "sampled",
)  # unless asked for: the others take long there


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    args.parts = args.parts or (PARTS if args.device.startswith("cuda") else CPU_PARTS)
    args.context = args.context or [4096]
    try:
        cases = [_case(args, context, args.question) for context in args.context]
        shared = [_case(args, context, 16) for context in args.shared]
    except ValueError as error:
        print(f"load_tests.engine: {error}", file=sys.stderr)
        return 2
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        print(
            "load_tests.engine: --device: there is no CUDA device here; leave it out to measure on the CPU",
            file=sys.stderr,
        )
        return 2
    if args.threads:
        torch.set_num_threads(args.threads)
    _say("the machine's limits")
    rates = measure_rates(args.device)
    print(
        f"{'matrix products':34} {rates.flops / 1e12:12.3f} TFLOP/s\n{'memory reads':34} "
        f"{rates.bytes_per_s / 1e9:12.1f} GB/s"
    )
    measurements = []
    for measurement in _measure(cases, shared, rates, Runs(args.cold_runs, args.runs), args):
        print(line(measurement), flush=True)
        measurements.append(measurement)
    if args.json:
        write_report(args.json, measurements, shape=args.shape, **asdict(rates))
    if args.plot:
        write_plot(args.plot, measurements, f"{args.shape}, {args.device}")
    return 0


def _measure(
    cases: Sequence[Case], shared: Sequence[Case], rates: Rates, runs: Runs, args: argparse.Namespace
) -> Iterator[Measurement]:
    if "compare" in args.parts:
        for case in cases:
            yield from compare(case, rates, runs, _say)
    if "disk" in args.parts:
        yield compare_disk(cases[0], runs, _say)
    if "sharing" in args.parts:
        crowd = Crowd(cases[0].shape, threads=args.threads, device=args.device)
        yield from compare_sharing(crowd, rates, args.cold_runs, _say)
    if "invariant" in args.parts:
        yield from compare_invariant(cases[0], runs, _say)
    if "sampled" in args.parts:
        yield compare_sampled(cases[0], runs.decode, _say)
    if "branches" in args.parts:
        for case in shared:
            yield from compare_branches(case, args.branches, rates, runs, _say)
    if "batches" in args.parts:
        for case in cases:
            yield from compare_batches(case, args.batches, rates, runs, _say)


def _case(args: argparse.Namespace, context: int, question: int) -> Case:
    return Case(
        SHAPES[args.shape],
        context,
        question,
        args.decode,
        args.chunk,
        device=args.device,
        threads=args.threads,
        compile=args.compile,
    )


def line(m: Measurement) -> str:
    ratio = "" if m.ratio is None or m.baseline is None else f"{m.ratio:6.2f} x {m.baseline:.4g}"
    reached = [f"{fraction:.0%} of the {name}" for name, fraction in _fractions(m) if fraction is not None]
    spread = f"({m.min:.4g} to {m.max:.4g}, n = {m.n})"
    work = "" if m.tflop is None else f"{m.tflop:.4g} TFLOP"
    return f"{m.name:34} {m.value:12.4g} {m.unit:8} {work:14} {ratio:22} {', '.join(reached):42} {spread}"


def _fractions(m: Measurement) -> tuple[tuple[str, float | None], ...]:
    return ("limit", m.fraction_of_limit), ("kernels' ceiling", m.fraction_of_ceiling)


def _say(step: str) -> None:
    print(f"… {step}", file=sys.stderr)


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _parts(text: str) -> list[str]:
    parts = text.split(",")
    if unknown := set(parts) - set(PARTS):
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: not among {', '.join(PARTS)}")
    return parts


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m load_tests.engine", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    shapes = sorted(SHAPES)
    parser.add_argument(
        "--shape", choices=shapes, default="qwen2-0.5b", help="of a public model (default: %(default)s)"
    )
    parser.add_argument(
        "--context",
        type=_numbers,
        action="extend",
        help="tokens, of any number; several: 4096,8192, or the option again (default: 4096)",
    )
    parser.add_argument(
        "--chunk", type=int, default=CHUNK_LEN, help="tokens of a chunk (default: %(default)s)"
    )
    parser.add_argument(
        "--question", type=int, default=128, help="tokens after the context (default: %(default)s)"
    )
    parser.add_argument(
        "--decode", type=int, default=32, help="tokens to decode for the rates (default: %(default)s)"
    )
    parser.add_argument(
        "--parts",
        type=_parts,
        help=f"some of {','.join(PARTS)} (default: {','.join(CPU_PARTS)}; with a GPU all)",
    )
    parser.add_argument(
        "--branches", type=_numbers, default=[1, 2, 4, 8, 16, 32], help="of part branches (default: 1 to 32)"
    )
    parser.add_argument(
        "--shared",
        type=_numbers,
        default=[1024, 8192, 32_768],
        help="contexts of part branches (default: 1k to 32k)",
    )
    parser.add_argument(
        "--batches", type=_numbers, default=[1, 2, 4, 8], help="of part batches (default: 1 to 8)"
    )
    parser.add_argument("--runs", type=int, default=9, help="of what is fast (default: %(default)s)")
    parser.add_argument("--cold-runs", type=int, default=3, help="of what is slow (default: %(default)s)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=0, help="of torch; 0: as many as there are cores")
    parser.add_argument("--compile", action="store_true", help="on a GPU: layers by torch.compile")
    parser.add_argument("--json", type=Path, help="where to write the report")
    parser.add_argument("--plot", type=Path, help="where to write a picture of it (SVG)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
