"""Runs `make demo`: the whole system on this machine in a few minutes, from nothing to a few tables: exact
answers of the tiny model, first tokens at a real model's size, and a real model's answers (``demo_docs``).

Everything it starts, it takes down again, whatever happens. Data and report lie in ``build/``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cluster.cli.answer_output import WholeAnswer, collect
from cluster.cli.console import usage_line
from cluster.cli.sources import find_sources
from cluster.local.demo_docs import run_docs_demo
from cluster.local.demo_session import (
    Answers,
    answered,
    fresh_stack,
    ingest_sources,
    show_answers,
)
from cluster.paths import DEMO_ASSETS
from services.training.demo_documents import DemoQuestion
from shared.answer import Inquiry, RetrievalOptions
from shared.clients.doors import rag_client
from shared.generation.modes import ReuseMode
from shared.measuring.report import Measurement, write_report
from shared.request import RequestContext

DATA_DIR = Path("build/demo")
COLLECTION = "demo"
SHOWN = 3
MODES = (ReuseMode.FULL, ReuseMode.REORDERED, ReuseMode.CACHECLIP)


@dataclass(frozen=True, slots=True)
class Asked:
    """One question, answered with every reuse mode."""

    question: DemoQuestion
    answers: Answers

    def style(self, mode: ReuseMode) -> str:
        return "green" if self.is_correct(mode) else "red"

    def is_correct(self, mode: ReuseMode) -> bool:
        return normalized(self.question.answer) in normalized(self.answers[mode].text().text)


def run_demo(console: Console, report_path: Path, keep: bool) -> None:
    """
    Raises:
        KvquiltError: a service failed; everything has been taken down.
    """
    questions = shipped_questions()
    console.rule("six services on this machine")
    with fresh_stack(console, DATA_DIR, keep) as target:
        asked, many = asyncio.run(_use(console, target, questions))
    console.rule("the same question, without and with stored KV")
    for a in asked[:SHOWN]:
        show_answers(console, a.question.question, a.answers, a.style)
    show_many(console, many, questions)
    correct = [measure_answers(asked, mode) for mode in MODES[1:]]
    show_correct(console, asked)
    # Only now: the services would compete for the processors.
    ttft, facts = measure_engine(console)
    write_report(report_path, [ttft, *correct], **facts)
    if real := run_docs_demo(console, keep):
        write_report(report_path, [ttft, *correct, *real], **facts)
    console.print(f"\nreport: {report_path}", style="dim")


def shipped_questions() -> list[DemoQuestion]:
    text = (DEMO_ASSETS / "questions.json").read_text(encoding="utf-8")
    return [DemoQuestion(**question) for question in json.loads(text)]


async def _use(
    console: Console, target: str, questions: Sequence[DemoQuestion]
) -> tuple[list[Asked], WholeAnswer]:
    sources = find_sources([DEMO_ASSETS / "documents"]).files
    console.rule(f"ingesting {len(sources)} documents")
    await ingest_sources(console, target, COLLECTION, sources)
    async with rag_client(target) as client:
        texts = tuple(q.question for q in questions)
        answers = await answered(console, client, COLLECTION, texts, MODES)
        shared = RetrievalOptions(k=5)  # several questions need more passages between them than one
        inquiry = Inquiry(COLLECTION, texts[:SHOWN], retrieval=shared)
        many = await collect(client.answer(RequestContext.create(), inquiry))
    return list(map(Asked, questions, answers)), many


def show_many(console: Console, many: WholeAnswer, questions: Sequence[DemoQuestion]) -> None:
    console.rule("several questions over one context, decoded together")
    assert many.usage is not None
    for text in sorted(many.texts, key=lambda t: t.question):
        answer = (text.text.strip(), "green")
        console.print(
            Text.assemble((questions[text.question].question, "bold"), "  ", answer), soft_wrap=True
        )
    console.print(usage_line(many.usage.usage), style="dim")


def show_correct(console: Console, asked: Sequence[Asked]) -> None:
    told = ", ".join(f"{fraction_correct(asked, mode):.0%} with {mode}" for mode in MODES)
    console.print(f"\ncorrect answers to {len(asked)} questions: {told}")


def measure_answers(asked: Sequence[Asked], mode: ReuseMode) -> Measurement:
    """Fraction of all questions whose answer holds the expected one; the baseline is ``full``."""
    correct, full = fraction_correct(asked, mode), fraction_correct(asked, ReuseMode.FULL)
    name = "answers_correct" if not mode.recomputes else f"answers_correct_{mode}"
    ratio = correct / full if full else None
    return Measurement(
        name,
        correct,
        "fraction",
        baseline=full,
        ratio=ratio,
        limit=1.0,
        fraction_of_limit=correct,
        n=len(asked),
    )


def fraction_correct(asked: Sequence[Asked], mode: ReuseMode) -> float:
    return sum(a.is_correct(mode) for a in asked) / len(asked)


def measure_engine(console: Console) -> tuple[Measurement, dict[str, float]]:
    from cluster.local.ttft import CASE, compare_ttft

    console.rule("what reuse buys at a real model's size")
    sizes = f"{len(CASE.chunk_lens)} chunks of {CASE.chunk_len} tokens"
    console.print(f"Qwen2-0.5B's shape with random weights, {sizes}", style="dim")
    with console.status("building the model") as status:
        result = compare_ttft(on_step=status.update)
    table = Table(
        "engine, placements known to first token", "ms", "", box=None, pad_edge=False, header_style="dim"
    )
    for name, ms, meaning in result.lines():
        table.add_row(name, f"{ms:.0f}", meaning)
    console.print(table)
    return result.measurement, asdict(result.rates)


def normalized(text: str) -> str:
    return " ".join(text.casefold().replace(",", " ").rstrip(". \n").split())
