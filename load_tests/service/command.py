"""Reads the command line of the load test, and runs it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from cluster.paths import DEMO_ASSETS
from load_tests.benchmark import at_least, json_option, option
from load_tests.service.arrivals import read_trace
from load_tests.service.compare import show_comparison
from load_tests.service.outcome import read_outcome, write_outcome
from load_tests.service.page import write_comparison, write_page
from load_tests.service.plan import LoadPlan, options_of, parse_rates, parse_reuse, read_questions
from load_tests.service.slo import parse_slo
from load_tests.service.terminal import show
from shared.config import API_KEY
from shared.errors import InvalidRequest, KvquiltError
from shared.request import READERS_STREAM_INTERVAL_MS

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
    console, errors = Console(highlight=False), Console(stderr=True, highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=FILE_WIDTH)
    try:
        args = _parser().parse_args(argv)
        return _compare(args, console) if args.compare else _measure(args, console)
    except KvquiltError as error:
        errors.print(f"load test: {error.detail}", style="red", soft_wrap=True)
        return 2 if isinstance(error, InvalidRequest) else 1
    except KeyboardInterrupt:
        errors.print("interrupted")
        return 130


def _measure(args: argparse.Namespace, console: Console) -> int:
    from load_tests.service.demo_cluster import demo_cluster
    from load_tests.service.setting import Setting, library_tpot_ms, machine_limits, run_against

    plan, setting = plan_of(args), Setting.of_options(args)
    with contextlib.ExitStack() as stack:
        target = args.target
        if not target:
            # Nothing is drafted of random weights: they fall into loops, whose text is easily guessed.
            settings = {"generator": {"engine": {"speculation": 0}}} if args.shape else {}
            demo = stack.enter_context(demo_cluster(args.shape, console, **settings))
            target, setting = demo.target, replace(setting, http=args.http or demo.http)
        outcome = asyncio.run(run_against(target, setting, plan, console, args.slo))
        if args.shape and not args.target:
            with console.status("the engine as a library, beside the cluster"):
                outcome = replace(outcome, beside_tpot_ms=library_tpot_ms(setting, args.shape))
    facts: dict[str, float] = {}
    if args.shape:  # only now: the services would compete for the processors
        with console.status("the machine's limits"):
            outcome, facts = machine_limits(outcome, setting, args.shape)
        if not args.target:
            with console.status("the engine as a library"):
                outcome = replace(outcome, library_tpot_ms=library_tpot_ms(setting, args.shape))
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
    if args.duration_s <= 0:
        raise InvalidRequest(f"--duration: must be positive, got {args.duration_s:g}")
    if not 0 <= args.warmup < 1:
        raise InvalidRequest(f"--warmup: a share of the arrivals, from 0 to below 1, got {args.warmup:g}")
    return LoadPlan(**options_of(LoadPlan, args) | {"slo": parse_slo(args.slo, args.slo_fraction)})


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InvalidRequest(message)


def _parser() -> argparse.ArgumentParser:
    """An option whose value has a place in a plan has its name as ``dest`` (``options_of``)."""
    parser = _Parser(
        prog="python -m load_tests.service",
        description=ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _target_options(parser.add_argument_group("target"))
    _arrival_options(parser.add_argument_group("arrivals"))
    _judging_options(parser.add_argument_group("what counts"))
    _asking_options(parser.add_argument_group("what is asked"))
    reports = parser.add_argument_group("reports")
    json_option(reports)
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
        "--http",
        default="",
        metavar="URL",
        help="answer: the target's HTTP address (`kvquilt status`), for first tokens over HTTP beside gRPC; "
        "default: the demo cluster's own, of another target it is not measured",
    )
    option(group, "--tenant", "load-test", "whose documents and chunks these are, where nobody has a key")
    group.add_argument(
        "--key-file", type=Path, metavar="FILE", help=f"holds the key to call with; default: {API_KEY}"
    )
    group.add_argument(
        "--shape",
        choices=("smollm2-135m", "qwen2-0.5b"),
        help=(
            "serve a model of this shape with random weights in the demo cluster; with --target: "
            "what it serves"
        ),
    )
    option(group, "--level", "auto", "see above", choices=("auto", "answer", "generate"))


def _arrival_options(group: argparse._ArgumentGroup) -> None:
    option(
        group,
        "--rate",
        "1",
        "requests per second, such as 1,2,4; auto: search the highest that meets the SLO",
        type=parse_rates,
        dest="rates",
        metavar="RATES",
    )
    group.add_argument(
        "--trace",
        type=lambda file: read_trace(Path(file)),
        default=(),
        metavar="FILE",
        help="instants in seconds, one per line, instead of --rate",
    )
    option(group, "--duration", 30.0, "of the arrivals of one rate", dest="duration_s", metavar="S")
    _count(group, "--requests", 20, "at least so many per rate of a search", "min_requests")
    option(group, "--warmup", 0.1, "first arrivals that do not count", metavar="SHARE")
    option(group, "--seed", 0, "of arrivals and requests: the same seed, the same run")
    _count(group, "--max-in-flight", 512, "safety: beyond it a request counts as NOT_SENT", "max_in_flight")


def _judging_options(group: argparse._ArgumentGroup) -> None:
    option(group, "--slo", "ttft:2x", "limits: ttft:500ms,tpot:50ms,total:5s, or twice the unloaded of full")
    option(group, "--slo-fraction", 0.9, "of requests that must meet every limit", metavar="SHARE")
    option(group, "--reuse", "reordered", "modes to compare, such as full,reordered", type=parse_reuse)
    option(group, "--precision", 1.15, "factor within which a search finds the rate")
    _count(group, "--quality", 4, "requests repeated with full; 0: none", "num_quality", least=0)
    _count(group, "--streams", 8, "for the overhead per token; 0: not", "num_streams", least=0)


def _asking_options(group: argparse._ArgumentGroup) -> None:
    _count(group, "--k", 0, "chunks per request; 0: 8, or the service's own at level answer", "k", least=0)
    option(group, "--zipf", 1.0, "popularity of chunks (questions): 0 all alike", type=at_least(0.0))
    _count(group, "--generated", 16, "tokens per answer", "num_generated")
    together = "tokens within so many milliseconds come in one message; 0: each in its own"
    _count(group, "--stream-interval", READERS_STREAM_INTERVAL_MS, together, "stream_interval_ms", least=0)
    _count(group, "--questions-per-request", 1, "over one context", "num_questions")
    _count(group, "--chunk-tokens", 512, "generate: chunk length", "chunk_len")
    _count(group, "--question-tokens", 64, "generate: question length", "question_len")
    _count(group, "--corpus", 64, "generate: different chunks", "corpus")
    vocab = "generate: ids are below it; 0: the shape's vocabulary, else 256"
    _count(group, "--vocab", 0, vocab, "vocab", least=0)
    group.add_argument(
        "--documents", type=Path, metavar="DIR", help="answer: ingested first (default: the demo's)"
    )
    group.add_argument(
        "--questions",
        type=lambda file: read_questions(Path(file)),
        default=str(DEMO_ASSETS / "questions.json"),
        metavar="FILE",
        help='answer: one per line, or JSON [{"question": …}] (default: the demo\'s)',
    )
    option(group, "--collection", "load-test", "answer: where documents go")


def _count(
    group: argparse._ArgumentGroup, name: str, default: int, help: str, dest: str, least: int = 1
) -> None:
    option(group, name, default, help, type=at_least(least), dest=dest, metavar="N")
