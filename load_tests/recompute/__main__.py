"""Measures what CacheClip costs and saves: time to first token with the selection included, in one run, with
random weights.

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
from functools import partial

from load_tests.benchmark import numbers, option
from load_tests.engine.command import Measure, case_of, run, shape_parser
from load_tests.recompute.measurements import RecomputePlan, measure
from shared.generation.selection import Grouping, Reading
from shared.measuring.shapes import SHAPES

FACTS = ("shape", "auxiliary", "context", "chunk", "grouping", "reading")


def main(argv: Sequence[str] | None = None) -> int:
    return run(_parser(), argv, _plan, FACTS)


def _plan(args: argparse.Namespace) -> Measure:
    case, ratios = case_of(args, args.context), tuple(args.ratios)
    auxiliary, grouping, reading = SHAPES[args.auxiliary], Grouping(args.grouping), Reading(args.reading)
    return partial(measure, RecomputePlan(case, auxiliary, ratios, grouping, reading, args.runs))


def _parser() -> argparse.ArgumentParser:
    parser = shape_parser("load_tests.recompute", __doc__)
    option(parser, "--auxiliary", "smollm2-135m", "its shape", choices=sorted(SHAPES))
    option(parser, "--context", 8192, "tokens, of any number")
    option(parser, "--ratios", [0, 10, 20, 40, 100], "percentages", type=numbers)
    option(parser, "--grouping", "budget", "of tokens", choices=[form.value for form in Grouping])
    option(parser, "--reading", "stitched", "of the curve", choices=[reading.value for reading in Reading])
    option(parser, "--runs", 3, "of everything")
    return parser


if __name__ == "__main__":
    sys.exit(main())
