"""Reads the command line, asks, and shows and writes what came of it: ``python -m load_tests.quality
--help``."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from cluster.gate.answering import Models
from cluster.gate.decision import DEFAULT_ALPHA, DEFAULT_TOLERANCE
from cluster.gate.evaluation import Evaluation, shapes_of
from cluster.gate.modes import (
    CONTROLS,
    OTHERS,
    Comparison,
    parse_clips,
    parse_controls,
    parse_others,
    parse_ratios,
)
from cluster.gate.show import show
from cluster.gate.tasks import KINDS, parse_kinds
from cluster.models.names import DEMO
from cluster.models.resolution import resolve_model
from cluster.models.settings import located_auxiliary, model_settings
from load_tests.benchmark import exit_code, json_option, new_parser, option
from services.ingestion.config import IngestionConfig
from shared.config import load
from shared.errors import ConfigError
from shared.kv_types import KvContext
from shared.measuring.report import write_report
from shared.prompt_config import PromptConfig
from shared.verdicts import keep_verdict

ABOUT = """What chunk reuse costs in right answers, and what recomputing some tokens wins back or destroys.

Documents about invented things of one kind are cut so that only the first chunk names the thing, and
ingested as --kv-context says, by ingestion's own blocks and chains. A question whose evidence is spread names
the thing and asks what a later chunk states, as do the later chunks of the other documents: without the chunk
in front nobody can tell which is meant. All names are unseen in training.

  spread           all chunks, shuffled, as retrieval gives them
  document_order   all chunks, in order
  partial          the evidence and about half of the other chunks, shuffled
  unnamed          the chunk that names the thing was not retrieved: title and chunks in front of a chunk say
                   what it is about
  in_front         the same, of documents without a title: only the chunks in front say it
  cross_document   the naming chunk is a document of its own, so no chunk's own document can help
  single           questions about what a naming chunk states itself
  unanswerable     the document that tells was not retrieved; right is who says so

The same names with _many: contexts of five and more documents. document_order, partial, in_front
and unanswerable are asked about every fourth context of few documents.

Every question is asked with closed book, over the whole blocks of the retrieved chunks in order
(whole_blocks, the upper mark), and in every mode at every ratio: MODE_RATIO, in percent. reordered_0 is
every mode at 0 %.
cacheclip recomputes the windows that the auxiliary model attends to; the modes of --controls recompute,
question by question, as many tokens. (cacheblend computes all tokens in its first two layers besides, as it
is defined.) Those of --others recompute none. A right answer holds the asked-for value as whole words. A kind
counts where whole blocks beat closed book by 20 points.

  python -m load_tests.quality --questions 100                          a first impression
  python -m load_tests.quality --minutes 8 --answers build/quality.jsonl --json build/quality.json
                                                                        as far as it comes in 8 minutes; run
                                                                        again to go on
  python -m load_tests.quality --ratios '' --kv-context none            what isolation costs; no recompute
  python -m load_tests.quality --model smollm2 --questions 60 --controls '' --ratios 0.2
                                                                        a real model: its chat template,
                                                                        chunks of 512 tokens, contexts of up
                                                                        to 7,168
  python -m load_tests.quality --answers build/quality.jsonl --verdict build/quilt.verdict.json
                                                                        what mode auto is to do: the mode that
                                                                        computes least and surely is worse
                                                                        than whole blocks by --tolerance at
                                                                        most; over conditioned KV never one
                                                                        that recomputes, unless that wins
                                                                        somewhere and destroys nowhere. Beside
                                                                        cacheclip the controls compute as much
                                                                        as it does, and not their ratio, so no
                                                                        verdict names them: kvquilt gate asks
                                                                        every mode as it is served
  python -m load_tests.quality --cacheclip budget/stitched,paper/stitched,budget/each --controls
  query_attention --ratios 0.2 --likeness                               groupings and readings against each
                                                                        other, and how alike auxiliary and
                                                                        primary judge

p is McNemar's exact test against cacheclip at the same ratio (without it: reordered), on the same questions.
Intervals (95 %) resample contexts. Won back is (mode - reordered) / (full - reordered); it is left out where
the interval of that loss holds 0."""


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 measured, 2 wrong input, 130 interrupted."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 180)
    errors = Console(stderr=True, highlight=False)

    def measure() -> None:
        args = _parser().parse_args(argv)
        torch.set_num_threads(args.threads)
        _measure(args, console, errors)

    return exit_code("quality", errors, measure, keeps_answers=True)


def _measure(args: argparse.Namespace, console: Console, errors: Console) -> None:
    models = _models(args)
    evaluation = Evaluation(
        models,
        Comparison(args.controls, args.cacheclip, args.ratios, args.others),
        args.questions,
        args.many,
        partial(
            shapes_of,
            passage_tokens=args.passage_tokens,
            documents=args.documents and tuple(args.documents),
            context_tokens=args.context_tokens,
            passages=tuple(args.passages),
            chars=tuple(args.chars),
        ),
        args.kinds,
        args.seed,
        args.threads,
        args.processes,
        args.minutes,
    )
    evaluated = evaluation.run(args.answers, errors)
    show(console, evaluated.found, evaluated.alike)
    if args.json is not None:
        write_report(args.json, evaluated.measurements(), evaluated.details(), threads=args.threads)
    if args.verdict is not None:
        verdict = evaluated.verdict(args.tolerance, args.alpha)
        keep_verdict(args.verdict, dataclasses.replace(verdict, made_s=time.time()))
        console.print(f"verdict: {verdict.advice}, in {args.verdict}", soft_wrap=True)


def _models(args: argparse.Namespace) -> Models:
    """
    Raises:
        ConfigError: there is no such model, or packets stand around chunks that are not isolated.
    """
    if args.packets and args.kv_context is not KvContext.NONE:
        raise ConfigError("--packets: are for isolated chunks; say --kv-context none")
    primary = resolve_model(args.model, "--model", os.environ)
    own = model_settings(primary)
    auxiliary = args.auxiliary
    if auxiliary is None:
        auxiliary = own.get("selector", {}).get("model", "")
    prompt = own.get("prompt", {}) | ({"packets": args.packets} if args.packets else {})
    ingestion = IngestionConfig(
        primary,
        chunk_tokens=args.chunk_tokens,
        kv_context=args.kv_context,
        kv_context_tokens=args.kv_context_tokens,
        prompt=load(PromptConfig, prompt, "prompt."),
    )
    return Models(
        primary,
        located_auxiliary(auxiliary, primary),
        ingestion,
        args.dtype,
        args.likeness,
        adapter=args.adapter,
        device=args.device,
    )


def _parser() -> argparse.ArgumentParser:
    parser = new_parser("load_tests.quality", ABOUT)
    option(parser, "--model", DEMO, "the primary: a name such as smollm2, a directory, a GGUF file")
    parser.add_argument(
        "--auxiliary",
        help="the auxiliary model, a directory or a folder of the model's; empty: none, and no cacheclip "
        "(default: the model's own)",
    )
    option(parser, "--dtype", "auto", "of the primary's weights and KV")
    option(parser, "--device", "cpu", "of the primary: cpu, cuda")
    option(parser, "--adapter", "", "directory of one that requests go with; empty: none")
    option(parser, "--packets", "", "directory of those that stand around chunks; they go with --kv-context "
           "none, and what computes tokens anew is left out")  # fmt: skip
    own = IngestionConfig("model")
    option(parser, "--kv-context", own.kv_context, "what chunks are computed behind", type=KvContext,
           choices=list(KvContext))  # fmt: skip
    option(parser, "--kv-context-tokens", 0, "most of them in front of a chunk; 0: as ingestion does")
    option(parser, "--chunk-tokens", own.chunk_tokens, "most of a chunk")
    option(parser, "--questions", 2500, "at least so many with spread evidence")
    parser.add_argument(
        "--many",
        type=int,
        help="at least so many with spread evidence over many documents (default: one per 20 --questions)",
    )
    option(parser, "--kinds", ",".join(KINDS), "which", type=parse_kinds)
    option(parser, "--ratios", "0.1,0.2,0.4", "of the tokens, to be recomputed", type=parse_ratios)
    option(parser, "--controls", ",".join(CONTROLS), "which", type=parse_controls)
    others = f"modes besides reordered that recompute nothing: {', '.join(OTHERS)}"
    option(parser, "--others", "", others, type=parse_others)
    forms = "forms, GROUPING/READING; the controls take as many as the first"
    option(parser, "--cacheclip", "budget/stitched", forms, type=parse_clips)
    bounds: dict[str, Any] = {"type": int, "nargs": 2, "metavar": ("LEAST", "MOST")}
    option(parser, "--passages", (4, 6), "per context of few documents", **bounds)
    parser.add_argument(
        "--documents", help="per context of many (default: 5 9; of filled passages 5 6)", **bounds
    )
    option(parser, "--chars", (160, 300), "per passage", **bounds)
    parser.add_argument(
        "--passage-tokens",
        type=int,
        help="fill passages up to so many with paragraphs about other things; 0: do not (default: 0 of the "
        "demo model, of others a little less than --chunk-tokens)",
    )
    option(parser, "--context-tokens", 0, "of the longest context; 0: what there is room for, at most 7168")
    option(parser, "--seed", 0, "of contexts and questions")
    parser.add_argument("--minutes", type=float, help="stop after this long")
    option(parser, "--threads", 1, "of torch in each process; the demo models are too small to share out")
    option(parser, "--processes", 0, "that ask at once; 0: as many as there are cores for")
    parser.add_argument("--likeness", action="store_true", help="also how alike auxiliary and primary judge")
    parser.add_argument(
        "--answers", type=Path, help="keep answers here as they come, and go on from those that are there"
    )
    parser.add_argument(
        "--verdict", type=Path, help="write here what requests of mode auto are to do with this model"
    )
    option(parser, "--tolerance", DEFAULT_TOLERANCE, "how much worse than whole blocks that may be")
    option(parser, "--alpha", DEFAULT_ALPHA, "the chance that a mode counts as good enough which is not")
    json_option(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
