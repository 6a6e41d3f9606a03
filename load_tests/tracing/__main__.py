"""Measures what tracing costs an answer, by interleaved pairs.

python -m load_tests.tracing     on a stack of its own, with the demo's documents
python -m load_tests.tracing --pairs 400 --json build/tracing.json
python -m load_tests.tracing --target HOST:PORT -c NAME --question "…"     on a running system

The same question is asked twice, once with a trace of every stage and once without; which comes first
alternates. Spans go where the system sends them: of a stack of its own into files, or to --endpoint as well.
Printed are both medians, and the median of what was added with its 95 % interval.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncGenerator, Sequence

from rich.console import Console

from load_tests.benchmark import at_least, exit_code, json_option, new_parser, option, printed, say
from load_tests.service.demo_cluster import demo_towns
from load_tests.tracing.pairs import Pair, ask_in_pairs, findings
from shared.answer import AnswerEvent, Inquiry
from shared.clients.doors import rag_client
from shared.generation.asked import SamplingParams
from shared.generation.modes import ReuseMode
from shared.generation.orders import Reuse
from shared.measuring.report import write_report
from shared.request import RequestContext
from shared.tracing.traceparent import new_traceparent

NAME = "load_tests.tracing"
COLLECTION, QUESTION = "towns", "Who is the mayor of Almwick?"
WARM_UP = 8


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 measured, 2 wrong input, 130 interrupted."""
    parser = new_parser(NAME, __doc__)
    option(parser, "--pairs", 200, "pairs that are measured", type=at_least(2))
    option(parser, "--max-tokens", 32, "of every answer", type=at_least(1))
    option(parser, "--target", "", "a running system; otherwise a stack is started for this")
    option(parser, "--endpoint", "", "of a collector that the stack of its own sends spans to as well")
    parser.add_argument("-c", "--collection", default=COLLECTION, help="of the target")
    option(parser, "--question", QUESTION, "that is asked")
    json_option(parser)
    args = parser.parse_args(argv)
    return exit_code("tracing", Console(stderr=True, highlight=False), lambda: _measure(args))


def _measure(args: argparse.Namespace) -> None:
    if args.target:
        pairs = asyncio.run(_pairs(args, args.target))
    else:
        console = Console(stderr=True, highlight=False)
        tracing = {"tracing": {"endpoint": args.endpoint, "sample": 0.0}} if args.endpoint else {}
        with demo_towns(console, COLLECTION, **tracing) as state:
            pairs = asyncio.run(_pairs(args, state.target))
    measurements = printed(findings(pairs))
    if args.json:
        write_report(args.json, measurements)


async def _pairs(args: argparse.Namespace, target: str) -> list[Pair]:
    sampling = SamplingParams(max_tokens=args.max_tokens, ignore_eos=True)
    inquiry = Inquiry(args.collection, (args.question,), Reuse(ReuseMode.REORDERED), sampling, no_shadow=True)
    async with rag_client(target) as client:

        def ask(number: int, traced: bool) -> AsyncGenerator[AnswerEvent, None]:
            return client.answer(
                RequestContext.create(traceparent=new_traceparent() if traced else ""), inquiry
            )

        say(f"{WARM_UP} pairs that do not count")
        await ask_in_pairs(ask, WARM_UP)
        say(f"{args.pairs} pairs")
        return await ask_in_pairs(ask, args.pairs)


if __name__ == "__main__":
    sys.exit(main())
