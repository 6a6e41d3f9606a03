"""The command line of the load test."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from load_tests.service.arrivals import read_trace
from load_tests.service.compare import show_comparison
from load_tests.service.outcome import read_outcome, write_outcome
from load_tests.service.page import write_comparison, write_page
from load_tests.service.plan import LoadPlan, parse_rates, parse_reuse
from load_tests.service.slo import parse_slo
from load_tests.service.terminal import show
from shared.errors import InvalidRequest, KvquiltError

FILE_WIDTH = 140  # tables keep their columns when they go into a file
ABOUT = """Load test of a running kvquilt over gRPC: requests arrive in an open loop (nobody waits for answers), every time
runs from the instant at which a request was meant to be sent, errors are counted by status code and miss the SLO.

Without --target the demo cluster is started for this run and taken down afterwards. Two levels:
  answer     Rag/Answer, the whole pipeline; documents are ingested first (default where the model has a tokenizer)
  generate   Generation/Generate by token ids, for exact control; chunks are prefilled first (default with --shape)

  python -m load_tests.service --rate 1,2,4                         the demo model, answers at three rates
  python -m load_tests.service --shape smollm2-135m --rate auto --reuse full,reordered --slo ttft:2x --html build/load.html
                                                                    the highest rate that each mode sustains, on this machine
  python -m load_tests.service --target HOST:PORT --rate 1,2,4 --slo ttft:500ms,tpot:50ms --json build/load.json
  python -m load_tests.service --compare before.json after.json     what changed between two runs

docs/load-testing.md says what every number means."""  # noqa: E501


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 measured, 1 the target failed, 2 wrong input, 3 no rate met the SLO, 130 interrupted."""
    args = _parser().parse_args(argv)
    console, errors = Console(highlight=False), Console(stderr=True, highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=FILE_WIDTH)
    try:
        return _compare(args, console) if args.compare else _measure(args, console)
    except KvquiltError as error:
        errors.print(f"load test: {error.detail}", style="red", soft_wrap=True)
        return 2 if isinstance(error, InvalidRequest) else 1
    except KeyboardInterrupt:
        errors.print("interrupted")
        return 130


def _measure(args: argparse.Namespace, console: Console) -> int:
    from load_tests.service.demo_cluster import demo_cluster
    from load_tests.service.setting import Setting, machine_limits, run_against

    plan, setting = plan_of(args), Setting.of_options(args)
    with contextlib.ExitStack() as stack:
        target = args.target or stack.enter_context(demo_cluster(args.shape, console))
        outcome = asyncio.run(run_against(target, setting, plan, console, args.slo))
    facts: dict[str, float] = {}
    if args.shape:  # only now: the services would compete for the processors
        with console.status("the machine's limits"):
            outcome, facts = machine_limits(outcome, setting, args.shape)
    show(console, outcome)
    if args.json:
        write_outcome(args.json, outcome, **facts)
    if args.html:
        write_page(args.html, outcome)
    return 0 if any(outcome.best(mode) for mode in outcome.modes) else 3


def _compare(args: argparse.Namespace, console: Console) -> int:
    before, after = map(read_outcome, args.compare)
    show_comparison(console, before, after)
    if args.html:
        write_comparison(args.html, before, after)
    return 0


def plan_of(args: argparse.Namespace) -> LoadPlan:
    """
    Raises:
        InvalidRequest: names the option.
    """
    if args.duration <= 0 or args.requests < 1 or args.max_in_flight < 1:
        raise InvalidRequest("--duration, --requests and --max-in-flight must be positive")
    if not 0 <= args.warmup < 1:
        raise InvalidRequest(f"--warmup: a share of the arrivals, from 0 to below 1, got {args.warmup:g}")
    return LoadPlan(
        slo=parse_slo(args.slo, args.slo_fraction),
        reuse=parse_reuse(args.reuse),
        rates=parse_rates(args.rate),
        trace=read_trace(args.trace) if args.trace else (),
        duration_s=args.duration,
        min_requests=args.requests,
        warmup=args.warmup,
        num_quality=args.quality,
        num_streams=args.streams,
        max_in_flight=args.max_in_flight,
        precision=args.precision,
        seed=args.seed,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m load_tests.service",
        description=ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _target_options(parser.add_argument_group("target"))
    _arrival_options(parser.add_argument_group("arrivals"))
    _judging_options(parser.add_argument_group("what counts"))
    _asking_options(parser.add_argument_group("what is asked"))
    reports = parser.add_argument_group("reports")
    reports.add_argument(
        "--json", type=Path, metavar="FILE", help="the report, in the form of every benchmark"
    )
    reports.add_argument("--html", type=Path, metavar="FILE", help="a page with plots, in one file")
    reports.add_argument(
        "--compare", type=Path, nargs=2, metavar=("A.json", "B.json"), help="compare two reports, and stop"
    )
    return parser


def _target_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--target", default="", metavar="HOST:PORT", help="a running system; default: start the demo cluster"
    )
    group.add_argument(
        "--tenant", default="load-test", help="whose documents and chunks these are (default %(default)s)"
    )
    group.add_argument(
        "--shape",
        choices=("smollm2-135m", "qwen2-0.5b"),
        help=(
            "serve a model of this shape with random weights in the demo cluster; with --target: "
            "what it serves"
        ),
    )
    group.add_argument(
        "--level",
        choices=("auto", "answer", "generate"),
        default="auto",
        help="see above (default %(default)s)",
    )


def _arrival_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--rate",
        default="1",
        help="requests per second, such as 1,2,4; auto: search the highest that meets the SLO (default 1)",
    )
    group.add_argument(
        "--trace", type=Path, metavar="FILE", help="instants in seconds, one per line, instead of --rate"
    )
    group.add_argument(
        "--duration", type=float, default=30.0, metavar="S", help="of the arrivals of one rate (default 30)"
    )
    group.add_argument(
        "--requests",
        type=int,
        default=20,
        metavar="N",
        help="at least so many per rate of a search (default 20)",
    )
    group.add_argument(
        "--warmup",
        type=float,
        default=0.1,
        metavar="SHARE",
        help="first arrivals that do not count (default 0.1)",
    )
    group.add_argument(
        "--seed",
        type=int,
        default=0,
        help="of arrivals and requests: the same seed, the same run (default 0)",
    )
    group.add_argument(
        "--max-in-flight",
        type=int,
        default=512,
        metavar="N",
        help="safety: beyond it a request counts as NOT_SENT (default 512)",
    )


def _judging_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--slo",
        default="ttft:2x",
        help=(
            "limits: ttft:500ms,tpot:50ms,total:5s, or ttft:2x, twice the unloaded of full (default ttft:2x)"
        ),
    )
    group.add_argument(
        "--slo-fraction",
        type=float,
        default=0.9,
        metavar="SHARE",
        help="of requests that must meet every limit (default 0.9)",
    )
    group.add_argument(
        "--reuse", default="reordered", help="modes to compare, such as full,reordered (default %(default)s)"
    )
    group.add_argument(
        "--precision",
        type=float,
        default=1.15,
        help="factor within which a search finds the rate (default 1.15)",
    )
    group.add_argument(
        "--quality", type=int, default=4, metavar="N", help="requests repeated with full; 0: none (default 4)"
    )
    group.add_argument(
        "--streams", type=int, default=8, metavar="N", help="for the overhead per token; 0: not (default 8)"
    )


def _asking_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--k",
        type=int,
        default=0,
        help="chunks per request (default: 8, or the service's own at level answer)",
    )
    group.add_argument(
        "--zipf", type=float, default=1.0, help="popularity of chunks (questions): 0 all alike (default 1)"
    )
    group.add_argument(
        "--generated", type=int, default=16, metavar="N", help="tokens per answer (default 16)"
    )
    group.add_argument(
        "--questions-per-request", type=int, default=1, metavar="N", help="over one context (default 1)"
    )
    group.add_argument(
        "--chunk-tokens", type=int, default=512, metavar="N", help="generate: chunk length (default 512)"
    )
    group.add_argument(
        "--question-tokens", type=int, default=64, metavar="N", help="generate: question length (default 64)"
    )
    group.add_argument(
        "--corpus", type=int, default=64, metavar="N", help="generate: different chunks (default 64)"
    )
    group.add_argument(
        "--vocab",
        type=int,
        default=0,
        metavar="N",
        help="generate: ids are below it (default: the shape's vocabulary, else 256)",
    )
    group.add_argument(
        "--documents", type=Path, metavar="DIR", help="answer: ingested first (default: the demo's)"
    )
    group.add_argument(
        "--questions",
        type=Path,
        metavar="FILE",
        help='answer: one per line, or JSON [{"question": …}] (default: the demo\'s)',
    )
    group.add_argument(
        "--collection", default="load-test", help="answer: where documents go (default %(default)s)"
    )


if __name__ == "__main__":
    sys.exit(main())
