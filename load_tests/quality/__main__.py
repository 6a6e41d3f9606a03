"""Reads the command line, asks, and shows and writes what came of it: ``python -m load_tests.quality
--help``."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cluster.paths import DEMO_ASSETS
from load_tests.benchmark import json_option, new_parser, option
from load_tests.quality.bench import QualityBench
from load_tests.quality.findings import findings, likenesses, measurements, scores
from load_tests.quality.ledger import LAST_LAYER, Ledger
from load_tests.quality.modes import BASELINES, CONTROLS, ClipSetting, label_of, parse_clips, parse_controls
from load_tests.quality.show import show
from load_tests.quality.trials import Shapes, Trial, draw_trials
from shared.engine.kv.encodings import EXACT
from shared.errors import KvquiltError
from shared.generation.modes import ReuseMode
from shared.identity import ids_hash
from shared.measuring.judge import judge
from shared.measuring.report import write_report

_CONTEXTS_AT_ONCE = 8
ABOUT = """What chunk reuse costs in right answers, and what recomputing a part of the tokens wins back.

Documents about invented things of one kind are cut so that only the first chunk names the thing. A question
whose evidence is spread names the thing and asks what a later chunk states, as do the later chunks of the
other documents: without the chunk in front nobody can tell which is meant. Other questions are about first
chunks. All names are unseen in training.

Every question is asked in every mode. cacheclip recomputes the windows that the auxiliary model attends to,
about --ratio of the context's tokens; the modes of --controls recompute, question by question, as many.
(cacheblend computes all tokens in its first two layers besides, as it is defined.) A right answer holds the
asked-for value as whole words.

  python -m load_tests.quality --questions 100                          a first impression
  python -m load_tests.quality --minutes 8 --answers build/quality.jsonl --json build/quality.json
                                                                        as far as it comes in 8 minutes; run
                                                                        again to go on
  python -m load_tests.quality --answers build/quality.jsonl --verdict build/quilt.verdict.json
                                                                        what mode auto is to do: the mode that
                                                                        computes least and, its interval
                                                                        considered, is worse by --tolerance at
                                                                        most
  python -m load_tests.quality --cacheclip budget/stitched,paper/stitched,budget/each --controls
  query_attention
                                                                        groupings and readings against each
                                                                        other

p is McNemar's exact test of each mode against cacheclip, on the same questions. Intervals (95 %) resample
contexts. Won back is (mode - reordered) / (full - reordered); it is left out where the interval of that loss
holds 0."""


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 measured, 2 wrong input, 130 interrupted."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 150)
    errors = Console(stderr=True, highlight=False)
    try:
        args = _parser().parse_args(argv)
        torch.set_num_threads(args.threads)
        _measure(args, console, errors)
    except KvquiltError as error:
        errors.print(f"quality: {error.detail}", style="red", soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        errors.print("interrupted; with --answers the same command goes on from here")
        return 130
    return 0


def _measure(args: argparse.Namespace, console: Console, errors: Console) -> None:
    shapes = Shapes(tuple(args.passages), tuple(args.chars))
    bench = QualityBench(args.model, args.auxiliary, args.ratio, args.cacheclip)
    settings = {
        "seed": args.seed,
        "ratio": args.ratio,
        "controls_as": args.cacheclip[0].label,
        "agreement_with": LAST_LAYER,
        **dataclasses.asdict(shapes),
    }
    modes = (*BASELINES, *args.controls, *args.cacheclip)
    ledger = Ledger(args.answers, {**settings, **bench.fingerprints})
    trials = list(draw_trials(args.seed, args.questions, shapes))
    try:
        _ask_all(bench, ledger, trials, modes, args.minutes, errors)
    finally:
        bench.close()
    wanted = {trial.number for trial in trials}
    answers = [answer for answer in ledger.answers if answer.context in wanted]
    found, alike = findings(answers, [label_of(mode) for mode in modes]), likenesses(answers, args.ratio)
    show(console, found, alike)
    if args.verdict is not None:
        verdict = judge(
            scores(found),
            args.tolerance,
            args.ratio,
            bench.fingerprints["primary"],
            ids_hash(bench.prompts.prefix_ids),
            EXACT,
        )
        verdict.write(args.verdict)
        console.print(f"verdict: {verdict.mode}, in {args.verdict}", soft_wrap=True)
    if args.json is not None:
        details = {"settings": settings, "findings": [dataclasses.asdict(f) for f in found]}
        write_report(args.json, list(measurements(found, alike)), details, threads=args.threads)


def _ask_all(
    bench: QualityBench,
    ledger: Ledger,
    trials: Sequence[Trial],
    modes: Sequence[ReuseMode | ClipSetting],
    minutes: float | None,
    errors: Console,
) -> None:
    """Asks what the ledger lacks, until the time is up."""
    began = time.monotonic()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("contexts"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=errors) as progress:
        task = progress.add_task("asking", total=len(trials))
        for first in range(0, len(trials), _CONTEXTS_AT_ONCE):
            batch = trials[first : first + _CONTEXTS_AT_ONCE]
            if minutes is not None and time.monotonic() - began > minutes * 60:
                errors.print("the time is up; the same command goes on from here")
                return
            missing = {
                mode: [t for t in batch if not ledger.holds(label_of(mode), t.number)] for mode in modes
            }
            needed = {trial.number for lacking in missing.values() for trial in lacking}
            prepared = {trial.number: bench.prepare(trial) for trial in batch if trial.number in needed}
            for mode, lacking in missing.items():
                progress.update(task, description=f"asking {label_of(mode)}")
                for answers in bench.ask(mode, [prepared[trial.number] for trial in lacking]):
                    ledger.add(answers)
            progress.advance(task, len(batch))


def _parser() -> argparse.ArgumentParser:
    parser = new_parser("load_tests.quality", ABOUT)
    model = DEMO_ASSETS / "model"
    option(parser, "--model", str(model), "directory of the primary model")
    option(parser, "--auxiliary", str(model / "auxiliary"), "directory of the auxiliary model")
    option(parser, "--questions", 2500, "at least so many with spread evidence")
    option(parser, "--ratio", 0.2, "of the tokens, to be recomputed")
    option(parser, "--controls", ",".join(CONTROLS), "which", type=parse_controls)
    forms = "forms, GROUPING/READING; the controls take as many as the first"
    option(parser, "--cacheclip", "budget/stitched", forms, type=parse_clips)
    bounds = {"type": int, "nargs": 2, "metavar": ("LEAST", "MOST")}
    option(parser, "--passages", (4, 6), "per context", **bounds)
    option(parser, "--chars", (160, 300), "per passage", **bounds)
    option(parser, "--seed", 0, "of contexts and questions")
    parser.add_argument("--minutes", type=float, help="stop after this long")
    option(parser, "--threads", 1, "of torch; the demo models are too small to share out")
    parser.add_argument(
        "--answers", type=Path, help="keep answers here as they come, and go on from those that are there"
    )
    parser.add_argument(
        "--verdict", type=Path, help="write here what requests of mode auto are to do with this model"
    )
    option(parser, "--tolerance", 0.01, "how much worse than full that may be")
    json_option(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
