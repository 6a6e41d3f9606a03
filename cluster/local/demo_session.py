"""Starts a stack, fills and asks it, and shows what it answered: what all parts of the demo do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from cluster.cli.answer_output import WholeAnswer, collect
from cluster.cli.console import citation_line, stage_cells, stages_table
from cluster.cli.ingest_command import ingest_files
from cluster.cli.remote import ingest_client
from cluster.cli.sources import SourceFile
from cluster.cli.startup import start_progress
from cluster.config import QuiltConfig, load_quilt
from cluster.local import launcher
from cluster.models.names import DEMO
from shared.answer import Inquiry
from shared.clients.rag import RagClient
from shared.errors import InternalError
from shared.generation.modes import ReuseMode
from shared.generation.orders import Reuse
from shared.request import RequestContext

Answers = Mapping[ReuseMode, WholeAnswer]


def demo_config(data_dir: Path, **more: Any) -> QuiltConfig:
    """The demo model, unless ``more`` says otherwise; a data directory and ports of its own, so that it
    disturbs nothing."""
    ports = {name: launcher.free_port() for name in ("grpc_port", "http_port")}
    return load_quilt({"model": DEMO, "data_dir": str(data_dir.absolute())} | ports | more, {})


def start_stack(console: Console, config: QuiltConfig) -> str:
    """Returns where it is called."""
    with start_progress(console) as on_progress:
        state = launcher.start(config, on_progress)
    console.print(f"ready at {state.target}; log in {state.log_path}", soft_wrap=True)
    return state.target


async def ingest_sources(
    console: Console, target: str, collection: str, sources: Sequence[SourceFile]
) -> None:
    """
    Raises:
        InternalError: one of them could not be ingested.
    """
    async with ingest_client(target) as client:
        summary = await ingest_files(
            console, lambda batch: client.upsert(RequestContext.create(), collection, batch), sources
        )
    summary.print(console)
    if summary.failed:
        raise InternalError("the demo's own documents could not be ingested")


async def answered(client: RagClient, collection: str, question: str, mode: ReuseMode) -> WholeAnswer:
    inquiry = Inquiry(collection, (question,), Reuse(mode))
    return await collect(client.answer(RequestContext.create(), inquiry))


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
