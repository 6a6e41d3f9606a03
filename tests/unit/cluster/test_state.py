"""The lock decides whether a stack runs; the state file only describes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.local.state import RAY_DIR_PREFIX, RunDirectory, StackState
from shared.errors import Conflict


def state(ray_dir: Path) -> StackState:
    return StackState(
        1,
        "ready",
        "127.0.0.1:9000",
        "http://127.0.0.1:8000",
        "log",
        "model",
        str(ray_dir),
        {"gateway": "ready"},
    )


def test_a_state_reads_back_equal(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    with run.lock():
        run.write(state(tmp_path))
        assert run.running() == state(tmp_path)


def test_a_state_without_a_holder_of_the_lock_is_a_dead_stacks(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    with run.lock():
        run.write(state(tmp_path))
    assert run.running() is None


def test_a_second_holder_is_refused_and_the_first_ones_end_frees_the_lock(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    with run.lock():
        assert run.is_locked()
        with pytest.raises(Conflict, match=str(tmp_path)):
            run.lock()
    assert not run.is_locked()
    run.lock().close()


def test_asking_a_directory_that_never_ran_creates_nothing(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "new")
    assert run.running() is None
    assert not (tmp_path / "new").exists()


def test_clearing_removes_rays_scratch_space_and_nothing_that_is_not_ours(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "data")
    ours, foreign = tmp_path / f"{RAY_DIR_PREFIX}abc", tmp_path / "precious"
    for directory in (ours, foreign):
        directory.mkdir()
        with run.lock():
            run.write(state(directory))
        run.clear()
    assert not ours.exists()
    assert foreign.exists()
    assert run.read() is None


def test_a_damaged_state_file_counts_as_none(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    with run.lock():
        (run.path / "state.json").write_text("{", encoding="utf-8")
        assert run.running() is None
