"""Lets other people's benchmarks measure the HTTP door, unmodified: LMCache's `bench engine` and GuideLLM.

    make rulers                                            installs them beside .venv, then this
    python -m load_tests.rulers --tools build/tools/rulers
    … --permutations 3 --questions 3 --prompts 3           whether they run

On a stack of its own, whose model (SmolLM2) they ask by its name and a mode: what they paste is cut out of
their messages and reused. Each workload is run once with everything computed (`full`), then by each of the
--modes in the same stack; `auto` is what the model's verdict says, `full` without one:

    lmcache long-doc-permutator   the same random words as long documents, in many orders, one token each
    lmcache rag-qa-quality        the demo's questions with passages; answers between tags, scored by F1
    guidellm synchronous          prompts that paste 4 of 8 documents, each in an order of its own

Their own figures are printed; what does not run is quoted with its error.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import openai
from rich.console import Console

from cluster.models.names import SMOLLM2
from cluster.models.resolution import resolve_model
from load_tests.benchmark import at_least, exit_code, json_option, new_parser, option, printed, say
from load_tests.rulers.harnesses import Harnesses, Ruled
from load_tests.rulers.workloads import write_prompts, write_questions
from load_tests.service.demo_cluster import demo_cluster
from shared.errors import ConfigError
from shared.generation.modes import ReuseMode
from shared.generation.orders import Auto, mode_named
from shared.measuring.report import Measurement, write_report
from shared.prompt import PromptTokenizer

NAME = "load_tests.rulers"
PASTED, DOCUMENTS, PASSAGES = 4, 8, 4


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 measured, 2 wrong input, 130 interrupted."""
    parser = new_parser(NAME, __doc__)
    parser.add_argument("--tools", type=Path, required=True, help="the environment of `make rulers`")
    option(parser, "--model", SMOLLM2, "a name, a directory or a GGUF file, as of `kvquilt up`")
    option(parser, "--modes", f"{Auto.AUTO},{ReuseMode.REORDERED}", "that are compared with full")
    option(parser, "--context-tokens", 512, "of each document", type=at_least(64))
    option(parser, "--permutations", 10, "of LMCache's documents", type=at_least(2))
    option(parser, "--questions", 12, "of LMCache's quality workload", type=at_least(1))
    option(parser, "--prompts", 12, "of GuideLLM", type=at_least(1))
    option(parser, "--max-tokens", 64, "of every answer that is read", type=at_least(1))
    option(parser, "--seed", 0, "of documents and orders")
    json_option(parser)
    args = parser.parse_args(argv)
    return exit_code("rulers", Console(stderr=True, highlight=False), lambda: _measure(args))


def _measure(args: argparse.Namespace) -> None:
    modes = [mode_named(name, "--modes") for name in args.modes.split(",")]
    model = resolve_model(args.model, "--model", os.environ)
    prompts = PromptTokenizer.of_model(model)
    if prompts is None:
        raise ConfigError(f"--model: {args.model} has no tokenizer, and what they ask is text")
    with tempfile.TemporaryDirectory(prefix="kvquilt-rulers-") as folder:
        scratch = Path(folder)
        Harnesses(args.tools.absolute(), scratch, "").check()
        write_questions(scratch / "questions.json", args.questions, PASSAGES, args.seed)
        write_prompts(
            scratch / "prompts.jsonl",
            args.prompts,
            DOCUMENTS,
            PASTED,
            args.context_tokens,
            lambda text: len(prompts.encode(text)),
            args.seed,
        )
        with demo_cluster(None, Console(stderr=True, highlight=False), model=args.model) as state:
            harnesses = Harnesses(args.tools.absolute(), scratch, state.http)
            name = openai.OpenAI(base_url=f"{state.http}/v1", api_key="none").models.list().data[0].id
            arms = [f"{name}:{mode}" for mode in (ReuseMode.FULL, *modes)]
            for arm in arms:
                (scratch / arm).symlink_to(model)
            ruled = [told for arm in arms for told in _ruled(harnesses, arm, args)]
    measurements = printed(findings(ruled, arms[0]))
    if args.json:
        write_report(args.json, measurements)


def _ruled(harnesses: Harnesses, arm: str, args: argparse.Namespace) -> Iterator[Ruled]:
    scratch = harnesses.scratch
    say(f"{arm}: LMCache's long-doc-permutator")
    yield harnesses.permutator(arm, PASTED, args.context_tokens, args.permutations)
    say(f"{arm}: LMCache's rag-qa-quality")
    yield harnesses.rag_quality(arm, scratch / "questions.json", args.questions, args.max_tokens)
    say(f"{arm}: GuideLLM")
    yield harnesses.guidellm(arm, scratch / "prompts.jsonl", args.prompts, args.max_tokens)


def findings(ruled: Sequence[Ruled], full: str) -> Iterator[Measurement]:
    """Each figure of the other arms beside that of ``full``. What did not run is printed as it said."""
    by_arm = {(r.harness, r.workload, r.arm): r for r in ruled}
    for one in ruled:
        if one.error:
            print(f"{one.harness} {one.workload} {one.arm}: {one.error}")
        baseline = by_arm.get((one.harness, one.workload, full))
        if one.arm == full or baseline is None:
            continue
        for name, value in baseline.figures.items():
            if name in one.figures:
                yield _figure(one, name, value)


def _figure(one: Ruled, name: str, baseline: float) -> Measurement:
    value = one.figures[name]
    is_time = name.endswith("_ms")
    mode = one.arm.rpartition(":")[2]
    label = f"{one.harness}_{one.workload}_{mode}_{name.removesuffix('_ms')}".replace("-", "_")
    better = (baseline / value if value else None) if is_time else (value / baseline if baseline else None)
    return Measurement(label, value, "ms" if is_time else "share", baseline, better)


if __name__ == "__main__":
    sys.exit(main())
