"""Makes the tables and lines that the command line prints: values in, rich renderables out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from shared.answer import AnswerUsage, Citation
from shared.clients.health import ServiceHealth

# Name and seconds.
from shared.documents import DocumentInfo
from shared.generation.told import Timings, Usage

_WIDEST = 100_000
STAGES: tuple[tuple[str, Callable[[Timings], float]], ...] = (
    ("retrieve", lambda t: t.retrieve_s),
    ("queue", lambda t: t.queue_s),
    ("load", lambda t: t.load_s),
    ("prefill", lambda t: t.prefill_s),
    ("first token", lambda t: t.first_token_s),
    ("decode", lambda t: t.decode_s),
    ("total", lambda t: t.total_s),
)


def status_table(services: Sequence[ServiceHealth]) -> Table:
    """A service that is ready but cannot do something is degraded, and says what; one of another cluster says
    first where it is."""
    table = Table("service", "state", "", box=None, pad_edge=False)
    for service in services:
        state = Text("degraded", "yellow") if service.detail else Text("ready", "green")
        in_order = sorted(service.facts.items(), key=lambda fact: (fact[0] != "remote", fact))
        facts = ", ".join(f"{key} {value}" for key, value in in_order)
        shown = state if service.ready else Text("not ready", "red")
        table.add_row(service.service, shown, Text(service.detail or facts))
    return table


def documents_table(documents: Sequence[DocumentInfo]) -> Table:
    names = ("collection", "document", "title", "chunks", "kv_context", "readers", "")
    table = Table(*names, box=None, pad_edge=False)
    for d in documents:
        note = "" if d.current else "made for another model"
        cells = (d.collection, d.document_id, d.title, str(d.num_chunks), d.kv_context, _readers(d), note)
        table.add_row(*map(Text, cells))
    return table


def _readers(document: DocumentInfo) -> str:
    sections = (f"{one.heading}: {', '.join(one.readers)}" for one in document.sections)
    return "; ".join([", ".join(document.readers) or "everybody", *sections])


def print_whole(console: Console, table: Table) -> None:
    """No cell is cut or folded, however narrow the screen: what is shown can be copied."""
    for column in table.columns:
        column.no_wrap = True
    needed = console.measure(table, options=console.options.update(width=_WIDEST)).maximum
    Console(file=console.file, width=needed, force_terminal=console.is_terminal).print(table)


def timings_table(usage: AnswerUsage) -> Table:
    """Stages in milliseconds. They overlap: the first token's time contains retrieval, load and prefill."""
    table = stages_table()
    table.add_row("", *stage_cells(usage.timings))
    return table


def usage_line(u: Usage) -> str:
    chosen = f", {u.selected_tokens} of them chosen by {u.reuse}" if u.selected_tokens else ""
    drafted = f", {u.accepted_tokens} of them drafted" if u.accepted_tokens else ""
    said = f" ({u.conversation_tokens} of earlier turns)" if u.conversation_tokens else ""
    adapter = f"; adapter {u.adapter}" if u.adapter else ""
    return (
        f"{u.prompt_tokens} prompt tokens: {u.reused_tokens} reused{said}, "
        f"{u.recomputed_tokens} computed{chosen}; {u.generated_tokens} generated{drafted}{adapter}"
    )


def citation_line(citations: Sequence[Citation]) -> str:
    return "; ".join(map(_cited, citations)) or "none"


def _cited(c: Citation) -> str:
    """With what was not retrieved, but is known to the chunk's KV."""
    where = ", ".join(filter(None, (c.heading, f"block {c.block}" if c.block else "")))
    besides = f", conditioned on {c.conditioned_on}" if c.conditioned_on else ""
    return f"{c.document_id}{f' ({where})' if where else ''} [{c.hit + 1}]{besides}"


def stages_table(*counts: str) -> Table:
    """A row's name, a column per count (``name unit``), then one per stage; what is counted stands below the
    name."""
    # all of it in 80 columns
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("", no_wrap=True)
    for name, unit in (*(count.split() for count in counts), *((name, "ms") for name, _ in STAGES)):
        table.add_column(f"{name}\n{unit}", justify="right", no_wrap=True)
    return table


def stage_cells(timings: Timings) -> list[str]:
    """Milliseconds, without the unit."""
    values = [of(timings) * 1000 for _, of in STAGES]
    return [f"{value:.0f}" if value >= 10 or value == 0 else f"{value:.1f}" for value in values]
