"""Measures the engine against stock transformers at a public model's shape, with random weights, in one run.

    python -m load_tests.engine --shape qwen2-0.5b --context 4096,8192 --question 128 --json build/engine.json
    python -m load_tests.engine --context 4096 --context 10000 --chunk 1024
    python -m load_tests.engine --device cuda --shape qwen2-7b --context 8192 --json build/engine.json
    python -m load_tests.engine --device cuda --report gpu --json build/gpu.json

Times to first token: of transformers with nothing cached and with exactly this prefix cached; of the engine
with the chunks' KV resident (in another order each time) and in files. Decoding: one question, eight and 32
over one context. Sharing: many requests over mostly the same chunks. What ``batch_invariant``, sampling,
mode ``ape`` and an adapter cost, what int8 weights bring.
Chunks whose KV comes late: the engine's choice, against always loading and always computing.
Speculation, on against off: an answer that quotes its context, one that does not, and one that is misled.
Prefilling documents as chains, each chunk behind those in front of it, against the same chunks alone: times,
beside how much more there is to compute.
On a GPU, elsewhere by --parts: steps of many branches over one context, and batches of requests with their KV
resident or brought from host memory (TurboRAG, Table 4). Each beside this machine's limit (measured matrix
products and memory reads) and, for the first token, the kernels' ceiling (each alone at its shapes). Only
ratios of one run mean anything.
--report gpu settles in at most 9 minutes what the engine reaches on a GPU, at the shapes of Qwen2-7B and
SmolLM2-135M, beside what it aims at; parts that fail are told, and what is known is written after each.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence

from load_tests.benchmark import numbers, option
from load_tests.engine.command import Measure, case_of, run, shape_parser
from load_tests.engine.compare import (
    Runs,
    compare,
    compare_adapter,
    compare_ape,
    compare_batches,
    compare_branches,
    compare_chains,
    compare_disk,
    compare_invariant,
    compare_late,
    compare_sampled,
    compare_sharing,
    compare_speculation,
    compare_weights,
)
from load_tests.engine.gpu_report import run_gpu_report
from load_tests.engine.sharing import Crowd
from shared.measuring.case import Case
from shared.measuring.rates import Rates
from shared.measuring.report import Measurement

_COSTS = ("invariant", "sampled", "ape", "adapter")
_BOTH = ("compare", "disk", "sharing", *_COSTS, "speculation", "late", "chains")
CPU_PARTS = (*_BOTH, "weights")
GPU_PARTS = (*_BOTH, "branches", "batches")
# the last two take long on a CPU, and are left out there unless asked for
PARTS = (*CPU_PARTS, *GPU_PARTS[-2:])


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    args = parser.parse_args(argv)
    return run(parser, argv, _plan) if args.report is None else run_gpu_report(args)


def _plan(args: argparse.Namespace) -> Measure:
    on_gpu = args.device.startswith("cuda")
    args.parts = args.parts or (GPU_PARTS if on_gpu else CPU_PARTS)
    if on_gpu and "weights" in args.parts:
        raise ValueError("--parts: weights measures int8 weights, which are for CPUs; leave it out")
    more = {"decode": args.decode, "compile": args.compile}
    cases = [case_of(args, context, **more) for context in args.context or [4096]]
    shared = [case_of(args, context, question=16, **more) for context in args.shared]
    return lambda rates: _measure(cases, shared, rates, args)


def _measure(
    cases: Sequence[Case], shared: Sequence[Case], rates: Rates, args: argparse.Namespace
) -> Iterator[Measurement]:
    runs = Runs(args.cold_runs, args.runs)
    if "compare" in args.parts:
        for case in cases:
            yield from compare(case, rates, runs)
    if "disk" in args.parts:
        yield compare_disk(cases[0], runs)
    if "sharing" in args.parts:
        crowded = Case(cases[0].shape, 8192, 16, 16, prefix=0, device=args.device, threads=args.threads)
        yield from compare_sharing(Crowd(crowded), rates, args.cold_runs)
    if "invariant" in args.parts:
        yield from compare_invariant(cases[0], runs)
    if "weights" in args.parts:
        yield from compare_weights(cases[0], rates, runs)
    if "sampled" in args.parts:
        yield compare_sampled(cases[0], runs)
    if "ape" in args.parts:
        yield from compare_ape(cases[0], runs)
    if "adapter" in args.parts:
        yield from compare_adapter(cases[0], runs)
    if "speculation" in args.parts:
        yield from compare_speculation(cases[0], runs)
    if "late" in args.parts:
        yield from compare_late(cases[0], args.delays, runs)
    if "chains" in args.parts:
        yield from compare_chains(cases[0], args.documents, runs)
    if "branches" in args.parts:
        for case in shared:
            yield from compare_branches(case, args.branches, rates, runs)
    if "batches" in args.parts:
        for case in cases:
            yield from compare_batches(case, args.batches, rates, runs)


def _parts(text: str) -> list[str]:
    parts = text.split(",")
    if unknown := set(parts) - set(PARTS):
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: not among {', '.join(PARTS)}")
    return parts


def _seconds(text: str) -> list[float]:
    found = [float(part) for part in text.split(",")]
    if not all(0 <= seconds < float("inf") for seconds in found):
        raise argparse.ArgumentTypeError(f"must be finite and at least 0, got {text}")
    return found


def _parser() -> argparse.ArgumentParser:
    parser = shape_parser("load_tests.engine", __doc__)
    parser.add_argument(
        "--context",
        type=numbers,
        action="extend",
        help="tokens, of any number; several: 4096,8192, or the option again (default: 4096)",
    )
    option(parser, "--decode", 32, "tokens to decode for the rates")
    parser.add_argument(
        "--parts",
        type=_parts,
        help=f"some of {','.join(PARTS)} (default: {','.join(CPU_PARTS)}; with a GPU {','.join(GPU_PARTS)})",
    )
    option(parser, "--branches", [1, 2, 4, 8, 16, 32], "of part branches", type=numbers)
    option(parser, "--shared", [1024, 8192, 32_768], "contexts of part branches", type=numbers)
    option(parser, "--batches", [1, 2, 4, 8], "of part batches", type=numbers)
    option(parser, "--delays", [0.1, 0.5, 1.0, 5.0], "seconds, of part late", type=_seconds)
    option(parser, "--documents", 2, "of part chains, each of the first --context")
    option(parser, "--runs", 9, "of what is fast")
    option(parser, "--cold-runs", 3, "of what is slow")
    parser.add_argument(
        "--report", choices=["gpu"], help="in the place of --parts; of --shape and sizes it goes by its own"
    )
    parser.add_argument("--compile", action="store_true", help="on a GPU: layers by torch.compile")
    return parser


if __name__ == "__main__":
    sys.exit(main())
