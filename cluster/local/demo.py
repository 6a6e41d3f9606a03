"""Runs `make demo`: the whole system on this machine in a few minutes, from nothing to two tables.

Everything it starts, it takes down again, whatever happens. Data and report lie in ``build/``.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from cluster.cli.answer_output import WholeAnswer, collect
from cluster.cli.console import citation_line, stage_cells, stages_table, usage_line
from cluster.cli.ingest_command import ingest_files
from cluster.cli.remote import ingest_client, rag_client
from cluster.cli.sources import find_sources
from cluster.cli.startup import start_progress
from cluster.config import QuiltConfig, load_quilt
from cluster.local import launcher
from cluster.models.names import DEMO
from cluster.paths import DEMO_ASSETS
from services.training.demo_documents import DemoQuestion
from shared.answer import Inquiry, RetrievalOptions
from shared.errors import InternalError
from shared.generation.modes import ReuseMode
from shared.generation.orders import Reuse
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
    answers: Mapping[ReuseMode, WholeAnswer]

    def is_correct(self, mode: ReuseMode) -> bool:
        return normalized(self.question.answer) in normalized(self.answers[mode].text().text)


def run_demo(console: Console, report_path: Path, keep: bool) -> None:
    """
    Raises:
        KvquiltError: a service failed; everything has been taken down.
    """
    questions = shipped_questions()
    launcher.stop(DATA_DIR.absolute())
    shutil.rmtree(DATA_DIR, ignore_errors=True)
    try:
        target = _start(console)
        asked, many = asyncio.run(_use(console, target, questions))
    finally:
        if not keep:
            with console.status("taking everything down"):
                launcher.stop(DATA_DIR.absolute())
    show_answers(console, asked[:SHOWN])
    show_many(console, many, questions)
    correct = [measure_answers(asked, mode) for mode in MODES[1:]]
    show_correct(console, asked)
    # Only now: the services would compete for the processors.
    ttft, facts = measure_engine(console)
    write_report(report_path, [ttft, *correct], **facts)
    console.print(f"\nreport: {report_path}", style="dim")


def shipped_questions() -> list[DemoQuestion]:
    text = (DEMO_ASSETS / "questions.json").read_text(encoding="utf-8")
    return [DemoQuestion(**question) for question in json.loads(text)]


def _start(console: Console) -> str:
    console.rule("six services on this machine")
    with start_progress(console) as on_progress:
        state = launcher.start(demo_config(DATA_DIR), on_progress)
    console.print(f"ready at {state.target}; log in {state.log_path}", soft_wrap=True)
    return state.target


async def _use(
    console: Console, target: str, questions: Sequence[DemoQuestion]
) -> tuple[list[Asked], WholeAnswer]:
    await _ingest(console, target)
    async with rag_client(target) as client:

        async def answer(question: str, mode: ReuseMode) -> WholeAnswer:
            return await collect(
                client.answer(RequestContext.create(), Inquiry(COLLECTION, (question,), Reuse(mode)))
            )

        # the first request pays for first uses: it is not shown
        await answer(questions[0].question, ReuseMode.REORDERED)
        asked = [
            Asked(q, {mode: await answer(q.question, mode) for mode in MODES})
            for q in track(questions, "asking", console=console, transient=True)
        ]
        texts = tuple(q.question for q in questions[:SHOWN])
        shared = RetrievalOptions(k=5)  # several questions need more passages between them than one
        many = await collect(
            client.answer(RequestContext.create(), Inquiry(COLLECTION, texts, retrieval=shared))
        )
    return asked, many


async def _ingest(console: Console, target: str) -> None:
    sources = find_sources([DEMO_ASSETS / "documents"]).files
    console.rule(f"ingesting {len(sources)} documents")
    async with ingest_client(target) as client:
        summary = await ingest_files(
            console, lambda batch: client.upsert(RequestContext.create(), COLLECTION, batch), sources
        )
    summary.print(console)
    if summary.failed:
        raise InternalError("the demo's own documents could not be ingested")


def show_answers(console: Console, asked: Sequence[Asked]) -> None:
    console.rule("the same question, without and with stored KV")
    for a in asked:
        console.print(Text(a.question.question, "bold"))
        table = stages_table("reused tokens", "computed tokens")
        for mode, answer in a.answers.items():
            assert answer.usage is not None
            text = answer.text()
            console.print(
                Text.assemble(f"  {mode:<10}", (text.text.strip(), "green" if a.is_correct(mode) else "red")),
                soft_wrap=True,
            )
            console.print(Text(f"  {'':<10}sources: {citation_line(text.citations)}", "dim"), soft_wrap=True)
            usage, timings = answer.usage.usage, answer.usage.timings
            table.add_row(mode, str(usage.reused_tokens), str(usage.recomputed_tokens), *stage_cells(timings))
            if usage.note:
                console.print(Text(f"  {'':<10}{usage.note}", "dim"), soft_wrap=True)
        console.print(table)
        console.print()


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


def demo_config(data_dir: Path, **more: Any) -> QuiltConfig:
    """The demo model; a data directory and ports of its own, so that it disturbs nothing."""
    ports = {name: launcher.free_port() for name in ("grpc_port", "http_port")}
    return load_quilt({"model": DEMO, "data_dir": str(data_dir.absolute())} | ports | more, {})


def normalized(text: str) -> str:
    return " ".join(text.casefold().replace(",", " ").rstrip(". \n").split())
