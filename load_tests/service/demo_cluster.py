"""Starts the demo cluster for one run: a data directory and ports of its own, taken down whatever
happens."""

from __future__ import annotations

import asyncio
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from rich.console import Console

from cluster.cli.sources import find_sources
from cluster.cli.startup import start_progress
from cluster.local import launcher
from cluster.local.demo_session import demo_config, ingest_sources
from cluster.local.state import StackState
from cluster.paths import DEMO_ASSETS
from shared.errors import KvquiltError


@contextmanager
def demo_cluster(shape: str | None, console: Console, **settings: Any) -> Iterator[StackState]:
    """Address and more of a demo cluster. ``shape``: of a model with random weights in place of the demo
    model; ``settings``: that differ, ``data_dir`` among them.

    Raises:
        KvquiltError: a service failed to start.
    """
    scratch = Path(tempfile.mkdtemp(prefix="kvquilt-load-"))
    data_dir = Path(settings.pop("data_dir", scratch / "data"))
    with terminated_like_interrupted():
        try:
            more = settings | ({"model": str(_model_of(shape, scratch / "model", console))} if shape else {})
            with start_progress(console) as on_progress:  # when this fails, its log stays: the error names it
                state = launcher.start(demo_config(data_dir, **more), on_progress)
        except KvquiltError:
            shutil.rmtree(scratch / "model", ignore_errors=True)
            raise
        except BaseException:
            _remove(data_dir, scratch, console)
            raise
        try:
            yield state
        finally:
            _remove(data_dir, scratch, console)


@contextmanager
def demo_towns(console: Console, collection: str, **settings: Any) -> Iterator[StackState]:
    """As ``demo_cluster`` of the demo model, with the demo's towns in ``collection``."""
    with demo_cluster(None, console, **settings) as state:
        sources = find_sources([DEMO_ASSETS / "documents" / "towns"])
        asyncio.run(ingest_sources(console, state.target, collection, sources.files))
        yield state


def _remove(data_dir: Path, scratch: Path, console: Console) -> None:
    with console.status("taking the cluster down"):
        launcher.stop(data_dir)
    shutil.rmtree(scratch, ignore_errors=True)


def _model_of(shape: str, directory: Path, console: Console) -> Path:
    from shared.measuring.shapes import SHAPES, save_model

    with console.status(f"building a model of the shape of {shape}"):
        save_model(SHAPES[shape], directory)
    return directory


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """SIGTERM ends a Python process on the spot, and would leave the cluster running."""

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
