"""What the command line prints: tables and the progress of a start. Values in, rich renderables out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cluster.local.state import StackState
from shared.answer import AnswerUsage, Citation
from shared.clients.health import ServiceHealth
from shared.generation.told import Timings, Usage

# Name and seconds.
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
    table = Table("service", "state", "", box=None, pad_edge=False)
    for service in services:
        state = Text("ready", "green") if service.ready else Text("not ready", "red")
        facts = ", ".join(f"{key} {value}" for key, value in sorted(service.facts.items()))
        table.add_row(service.service, state, service.detail or facts)
    return table


def timings_table(usage: AnswerUsage) -> Table:
    """Stages in milliseconds. They overlap: the first token's time contains retrieval, load and prefill."""
    table = stages_table("ms")
    table.add_row("", *stage_cells(usage.timings))
    return table


def usage_line(u: Usage) -> str:
    chosen = f", {u.selected_tokens} of them chosen by {u.reuse}" if u.selected_tokens else ""
    return (
        f"{u.prompt_tokens} prompt tokens: {u.reused_tokens} reused, {u.recomputed_tokens} computed{chosen}; "
        f"{u.generated_tokens} generated"
    )


def citation_line(citations: Sequence[Citation]) -> str:
    return (
        "; ".join(f"{c.document_id}{f' ({c.heading})' if c.heading else ''} [{c.hit + 1}]" for c in citations)
        or "none"
    )


def stages_table(*first: str) -> Table:
    """Columns ``first``, then one per stage."""
    # all of it in 80 columns
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for name in first:
        table.add_column(name, no_wrap=True)
    for name, _ in STAGES:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def stage_cells(timings: Timings) -> list[str]:
    """Milliseconds, without the unit."""
    values = [of(timings) * 1000 for _, of in STAGES]
    return [f"{value:.0f}" if value >= 10 or value == 0 else f"{value:.1f}" for value in values]


@contextmanager
def start_progress(console: Console) -> Iterator[Callable[[StackState], None]]:
    """A live line per service while the stack starts; one plain line per change where the output is no
    terminal."""
    shown: dict[str, str] = {}

    def plain(state: StackState) -> None:
        for name, value in state.services.items():
            if shown.get(name) != value and value in ("running", "ready"):
                console.print(f"{name}: {value}")
            shown[name] = value

    if not console.is_terminal:
        yield plain
        return
    with Live(console=console, transient=True) as live:
        yield lambda state: live.update(_services(state))


def _services(state: StackState) -> Table:
    table = Table("service", "state", box=None, pad_edge=False)
    for name, value in state.services.items():
        table.add_row(name, Text(value, "green" if value == "ready" else "yellow"))
    return table
