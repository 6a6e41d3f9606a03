"""Shows how far the services are while `kvquilt up` waits for them, and what each is doing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cluster.local.state import StackState

PLAIN_PAUSE_S = 10.0
_DOING = {
    "kv_store": "reads what is stored",
    "retrieval": "opens the index and its embedder",
    "generator": "loads the model and checks it",
    "selector": "loads the auxiliary model",
    "ingestion": "loads the tokenizer",
    "gateway": "answers when the others do",
}
_UP = ("running", "ready")


@contextmanager
def start_progress(
    console: Console, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[StackState], None]]:
    """A live line per service while the stack starts; where the output is no terminal, a plain line per
    change and, every ``PLAIN_PAUSE_S``, one that says what is waited for."""
    began = clock()
    if not console.is_terminal:
        yield _Plain(console, clock).show
        return
    with Live(console=console, transient=True) as live:
        yield lambda state: live.update(Group(_services(state), _waiting(state, clock() - began)))


class _Plain:
    def __init__(self, console: Console, clock: Callable[[], float]) -> None:
        self._console, self._clock = console, clock
        self._began = self._told = clock()
        self._shown: dict[str, str] = {}

    def show(self, state: StackState) -> None:
        changed = {name: value for name, value in state.services.items() if self._shown.get(name) != value}
        for name, value in changed.items():
            if value in _UP:
                self._console.print(f"{name}: {value}")
        self._shown |= changed
        now = self._clock()
        if now - self._told >= PLAIN_PAUSE_S and waited_for(state):
            self._console.print(_waiting(state, now - self._began), soft_wrap=True)
            self._told = now


def waited_for(state: StackState) -> dict[str, str]:
    """Service → what it is doing, or why it is not ready."""
    pending = {name: value for name, value in state.services.items() if value != "ready"}
    if pending and all(value == "waiting" for value in pending.values()):
        return {"Ray": "starts"}
    return {name: _doing(name, value, state.model) for name, value in pending.items()}


def _doing(name: str, value: str, model: str) -> str:
    if value == "running":
        return "runs, and is asked whether it is ready"
    if value not in ("waiting", "deploying", "not_started"):
        return value
    doing = _DOING.get(name, value)
    downloads = name in ("generator", "ingestion") and not Path(model).is_dir()
    return f"{doing}; {model} may have to be downloaded first" if downloads else doing


def _waiting(state: StackState, elapsed_s: float) -> Text:
    told = "; ".join(f"{name} ({doing})" for name, doing in waited_for(state).items())
    return Text(f"{elapsed_s:.0f} s, waiting for {told}" if told else f"{elapsed_s:.0f} s", "dim")


def _services(state: StackState) -> Table:
    table = Table("service", "state", box=None, pad_edge=False)
    for name, value in state.services.items():
        table.add_row(name, Text(value, "green" if value == "ready" else "yellow"))
    return table
