"""Reads the command line, asks, and shows and writes what came of it: ``python -m load_tests.reading
--help``."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cluster.evaluation.arms import EvalArm, arms_of, parse_contexts, parse_modes
from cluster.models.names import SMOLLM2
from cluster.models.resolution import resolve_model
from cluster.models.settings import model_settings
from load_tests.benchmark import at_least, exit_code, json_option, new_parser, option
from load_tests.reading.articles import Article, read_articles
from load_tests.reading.bench import ReadingAnswer, ReadingBench
from load_tests.reading.contexts import ArticleShape, ReadingContext, draw_contexts
from load_tests.reading.findings import findings, measurements, show
from services.ingestion.config import DEFAULT_CONTEXT_TOKENS
from shared.config import load
from shared.engine import EngineConfig
from shared.measuring.answer_file import AnswerFile
from shared.measuring.report import write_report
from shared.prompt_config import PromptConfig

ABOUT = """How a real model reads real prose with reused KV: what is lost against computing everything
anew, with chunks prefilled alone, behind their title, or behind their document.

--data is a file in SQuAD's format that you bring: articles of paragraphs, with questions whose answers stand
in them. An article becomes a document, cut as ingestion cuts it. A context is --k chunks of one article,
shuffled; its questions have their answers in one of them each, and the others distract. Every question is
asked in every mode over every kind of KV, besides `full` and without any chunk (closed book).

An answer is scored as SQuAD does it. Found: one of the expected answers stands in it as whole words. KL is
that of the first token's distribution from that of `full`. Intervals (95 %) resample articles. First tokens
are timed with all questions of a context asked at once, all KV resident.

  python -m load_tests.reading --data dev.json --questions 300 --answers build/reading.jsonl
                                                     run again to go on
  python -m load_tests.reading --data dev.json --minutes 30 --modes reordered --kv-context document,none
  python -m load_tests.reading --data dev.json --modes reordered,cacheclip --auxiliary DIR"""


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 measured, 2 wrong input, 130 interrupted."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 190)
    errors = Console(stderr=True, highlight=False)

    def measure() -> None:
        args = _parser().parse_args(argv)
        if args.threads:
            torch.set_num_threads(args.threads)
        _measure(args, console, errors)

    return exit_code("reading", errors, measure, keeps_answers=True)


def _measure(args: argparse.Namespace, console: Console, errors: Console) -> None:
    articles = read_articles(args.data)
    shape = ArticleShape(args.chunk_tokens, args.context_tokens, args.k, args.per_context)
    model = resolve_model(args.model, "--model", os.environ)
    prompt = load(PromptConfig, model_settings(model).get("prompt", {}), "prompt.")
    config = load(EngineConfig, {"dtype": args.dtype, "device": args.device}, "--")
    bench = ReadingBench(model, prompt, shape, config, args.max_tokens, args.auxiliary)
    arms = list(arms_of(args.modes, args.kv_context, (args.ratio,)))
    settings = {
        "data": args.data.name,
        "seed": args.seed,
        "max_tokens": args.max_tokens,
        "primary": bench.fingerprint,
        "prompt": dataclasses.asdict(bench.prompts.template),
        "arms": [arm.label for arm in arms],
        **dataclasses.asdict(shape),
    }
    kept = AnswerFile(args.answers, settings)
    try:
        contexts = _ask_all(bench, kept, articles, shape, arms, args, errors)
    finally:
        bench.close()
    answers = [ReadingAnswer(**told) for line in kept.lines for told in line]
    found = findings([a for a in answers if a.context < len(contexts)], arms)
    if found is None:
        errors.print("no context has been asked about in every mode yet")
        return
    show(console, found)
    if args.json is not None:
        write_report(args.json, list(measurements(found)), {"settings": settings}, threads=args.threads)


def _ask_all(
    bench: ReadingBench,
    kept: AnswerFile,
    articles: Sequence[Article],
    shape: ArticleShape,
    arms: Sequence[EvalArm],
    args: argparse.Namespace,
    errors: Console,
) -> list[ReadingContext]:
    """Asks what is not kept yet, until the time is up; returns all contexts of the run. A line is all that
    was answered about one of them."""
    cut = {i: bench.cutter.cut(article) for i, article in enumerate(articles)}
    contexts = list(_enough(draw_contexts(articles, cut, shape, args.seed), args.questions))
    held = {line[0]["context"] for line in kept.lines}
    began = time.monotonic()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("questions"),
        TimeRemainingColumn(),
    )
    done = list(accumulate(len(context.questions) for context in contexts))
    with Progress(*columns, console=errors) as progress:
        task = progress.add_task("asking", total=done[-1] if done else 0)
        for context, num_asked in zip(contexts, done, strict=True):
            if args.minutes is not None and time.monotonic() - began > args.minutes * 60:
                errors.print("the time is up; the same command goes on from here")
                break
            if context.number not in held:
                answers = bench.ask(context, articles[context.article], cut[context.article], arms)
                kept.add([dataclasses.asdict(answer) for answer in answers])
            progress.update(task, completed=num_asked)
    return contexts


def _enough(contexts: Iterator[ReadingContext], num_questions: int) -> Iterator[ReadingContext]:
    """Whole contexts until there are so many questions."""
    asked = 0
    for context in contexts:
        yield context
        asked += len(context.questions)
        if asked >= num_questions:
            return


def _parser() -> argparse.ArgumentParser:
    parser = new_parser("load_tests.reading", ABOUT)
    parser.add_argument("--data", type=Path, required=True, metavar="FILE", help="in SQuAD's format")
    option(parser, "--model", SMOLLM2, "as of `kvquilt up`; its own quilt.yaml says the prompt")
    option(parser, "--questions", 300, "at least so many, if there are", type=at_least(1))
    option(parser, "--modes", "reordered,query_attention", "over each kind of KV", type=parse_modes)
    option(
        parser,
        "--kv-context",
        "none,header,document",
        "what chunks are prefilled behind",
        type=parse_contexts,
    )
    option(parser, "--ratio", 0.2, "of the tokens, where a mode recomputes")
    parser.add_argument("--auxiliary", default="", metavar="DIR", help="the model that selects for cacheclip")
    option(parser, "--chunk-tokens", 128, "most per chunk", type=at_least(32))
    option(parser, "--context-tokens", DEFAULT_CONTEXT_TOKENS, "most in front of a chunk", type=at_least(1))
    option(parser, "--k", 5, "chunks per context", type=at_least(1))
    option(parser, "--per-context", 6, "most questions about one", type=at_least(1))
    option(parser, "--max-tokens", 32, "per answer", type=at_least(1))
    option(parser, "--seed", 0, "of contexts and questions")
    option(parser, "--dtype", "auto", "of the model")
    option(parser, "--device", "cpu", "of the model")
    option(parser, "--threads", 0, "of torch; 0: its own choice")
    parser.add_argument("--minutes", type=float, help="stop after this long")
    parser.add_argument(
        "--answers", type=Path, help="keep answers here as they come, and go on from those that are there"
    )
    json_option(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
