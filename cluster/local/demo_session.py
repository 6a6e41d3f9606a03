"""Starts a stack, fills and asks it, and shows what it answered: what all parts of the demo do."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.text import Text

from cluster.cli.answer_output import WholeAnswer, collect
from cluster.cli.console import citation_line, stage_cells, stages_table
from cluster.cli.ingest_command import ingest_files
from cluster.cli.sources import SourceFile
from cluster.cli.startup import start_progress
from cluster.config import QuiltConfig, load_quilt
from cluster.local import launcher
from cluster.models.names import DEMO
from shared.answer import Inquiry
from shared.clients.doors import ingest_client
from shared.clients.rag import RagClient
from shared.errors import InternalError
from shared.generation.modes import ReuseMode
from shared.generation.orders import Reuse
from shared.request import RequestContext

Answers = Mapping[ReuseMode, WholeAnswer]

INGEST_DEADLINE_MS = 600_000  # pages of documentation for a real model, on a slow machine


def demo_config(data_dir: Path, **more: Any) -> QuiltConfig:
    """The demo model, unless ``more`` says otherwise; a data directory and ports of its own, so that it
    disturbs nothing."""
    ports = {name: launcher.free_port() for name in ("grpc_port", "http_port")}
    return load_quilt({"model": DEMO, "data_dir": str(data_dir.absolute())} | ports | more, {})


@contextmanager
def fresh_stack(console: Console, data_dir: Path, keep: bool, **more: Any) -> Iterator[str]:
    """Yields where it is called. Whatever happens, everything is taken down in the end, unless ``keep``."""
    launcher.stop(data_dir.absolute())
    shutil.rmtree(data_dir, ignore_errors=True)
    try:
        with start_progress(console) as on_progress:
            state = launcher.start(demo_config(data_dir, **more), on_progress)
        console.print(f"ready at {state.target}; log in {state.log_path}", soft_wrap=True)
        yield state.target
    finally:
        if not keep:
            with console.status("taking everything down"):
                launcher.stop(data_dir.absolute())


async def ingest_sources(
    console: Console, target: str, collection: str, sources: Sequence[SourceFile]
) -> None:
    """
    Raises:
        InternalError: one of them could not be ingested.
    """
    async with ingest_client(target) as client:
        summary = await ingest_files(
            console,
            lambda batch: client.upsert(
                RequestContext.create(deadline_ms=INGEST_DEADLINE_MS), collection, batch
            ),
            sources,
        )
    summary.print(console)
    if summary.failed:
        raise InternalError("the demo's own documents could not be ingested")


async def answered(
    console: Console,
    client: RagClient,
    collection: str,
    questions: Sequence[str],
    modes: Sequence[ReuseMode],
) -> list[Answers]:
    """Answers of each question, with each mode."""

    async def answer(question: str, mode: ReuseMode) -> WholeAnswer:
        inquiry = Inquiry(collection, (question,), Reuse(mode))
        return await collect(client.answer(RequestContext.create(), inquiry))

    await answer(questions[0], ReuseMode.REORDERED)  # pays for first uses: it is not shown
    return [
        {mode: await answer(question, mode) for mode in modes}
        for question in track(questions, "asking", console=console, transient=True)
    ]


def show_answers(
    console: Console, question: str, answers: Answers, style: Callable[[ReuseMode], str] = lambda mode: ""
) -> None:
    """One question's answers beside each other, with their sources, tokens and stages. ``style``: of the
    text."""
    console.print(Text(question, "bold"))
    table = stages_table("reused tokens", "computed tokens")
    for mode, answer in answers.items():
        assert answer.usage is not None
        text = answer.text()
        console.print(Text.assemble(f"  {mode:<10}", (text.text.strip(), style(mode))), soft_wrap=True)
        console.print(Text(f"  {'':<10}sources: {citation_line(text.citations)}", "dim"), soft_wrap=True)
        usage, timings = answer.usage.usage, answer.usage.timings
        table.add_row(mode, str(usage.reused_tokens), str(usage.recomputed_tokens), *stage_cells(timings))
        if usage.note:
            console.print(Text(f"  {'':<10}{usage.note}", "dim"), soft_wrap=True)
    console.print(table)
    console.print()
