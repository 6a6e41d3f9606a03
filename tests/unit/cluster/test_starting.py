"""What `kvquilt up` shows while it waits."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from cluster.cli.startup import start_progress, waited_for
from cluster.local.state import StackState

STATE = StackState(1, "starting", "t", "h", "log", "model", "ray")


def clock(*instants: float) -> Iterator[float]:
    yield from instants


def told(*steps: tuple[float, dict[str, str]], terminal: bool = False) -> str:
    """What is written when the services are found in these states at these instants."""
    out = io.StringIO()
    instants = clock(*([0.0] if terminal else [0.0, 0.0]), *(instant for instant, _ in steps))
    console = Console(file=out, width=120, force_terminal=terminal, color_system=None)
    with start_progress(console, instants.__next__) as on_progress:
        for _, services in steps:
            on_progress(replace(STATE, services=services))
    return out.getvalue()


def test_before_anything_runs_it_is_ray_that_is_waited_for() -> None:
    state = replace(STATE, services=dict.fromkeys(("kv_store", "generator"), "waiting"))
    assert waited_for(state) == {"Ray": "starts"}


def test_every_service_that_is_not_ready_is_named_with_what_it_does(tmp_path: Path) -> None:
    services = {"kv_store": "ready", "retrieval": "deploying", "generator": "running", "gateway": "no answer"}
    assert waited_for(replace(STATE, services=services, model=str(tmp_path))) == {
        "retrieval": "opens the index and its embedder",
        "generator": "runs, and is asked whether it is ready",
        "gateway": "no answer",
    }


def test_a_model_that_may_have_to_be_downloaded_is_named() -> None:
    state = replace(STATE, services={"generator": "deploying"}, model="Qwen/Qwen2.5-0.5B")
    assert "Qwen/Qwen2.5-0.5B may have to be downloaded first" in waited_for(state)["generator"]


def test_without_a_terminal_a_line_now_and_then_says_what_is_waited_for() -> None:
    loading = {"kv_store": "running", "gateway": "deploying"}
    lines = told(
        (1, loading), (5, loading), (12, loading), (13, loading), (14, {"gateway": "ready"})
    ).splitlines()
    assert lines == [
        "kv_store: running",
        "12 s, waiting for kv_store (runs, and is asked whether it is ready); "
        "gateway (answers when the others do)",
        "gateway: ready",
    ]


def test_a_terminal_shows_it_below_the_services() -> None:
    shown = told((0, {"kv_store": "running"}), (7, {"kv_store": "deploying"}), terminal=True)
    assert "7 s, waiting for kv_store (reads what is stored)" in shown
