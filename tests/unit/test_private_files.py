"""What the services write is for nobody but their own user."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.local.state import RunDirectory, StackState
from shared.private_files import keep_private, make_private, make_private_directory, open_private


@pytest.fixture(autouse=True)
def everybody_may_read() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def usable_by_others(root: Path) -> list[str]:
    paths = [root, *root.rglob("*")]
    return [str(p.relative_to(root.parent)) for p in paths if not p.is_symlink() and p.stat().st_mode & 0o077]


def test_what_a_process_makes_is_its_owners_alone_once_it_keeps_private(tmp_path: Path) -> None:
    keep_private()
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "file").write_text("x")
    assert usable_by_others(tmp_path / "made") == []


def test_what_an_earlier_version_left_is_taken_back_and_what_links_lead_to_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere, root = tmp_path / "elsewhere", tmp_path / "kv"
    (root / "chunks" / "ab").mkdir(parents=True)
    (root / "chunks" / "ab" / "file").write_text("x")
    (root / "tool").write_text("x")
    (root / "tool").chmod(0o755)
    elsewhere.mkdir()
    (elsewhere / "file").write_text("x")
    (root / "link").symlink_to(elsewhere)
    with caplog.at_level(logging.INFO):
        make_private(root)
    assert usable_by_others(root) == []
    assert (root / "tool").stat().st_mode & 0o777 == 0o700
    assert usable_by_others(elsewhere) == ["elsewhere", "elsewhere/file"]
    assert str(root) in caplog.text


def test_a_private_directory_is_not_walked_and_one_that_is_missing_stays_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "kv"
    make_private_directory(root / "deep")
    (root / "deep" / "file").write_text("x")
    root.chmod(0o700)
    with caplog.at_level(logging.INFO):
        make_private(root)
        make_private(tmp_path / "nothing")
    assert usable_by_others(root) == ["kv/deep/file"], "nobody comes through to it"
    assert not (tmp_path / "nothing").exists()
    assert not caplog.records


def test_directories_that_are_made_on_the_way_are_private_and_those_that_were_there_stay(
    tmp_path: Path,
) -> None:
    there = tmp_path / "there"
    there.mkdir(0o755)
    make_private_directory(there / "data" / "auth")
    assert usable_by_others(there) == ["there"]


def test_a_file_is_private_from_its_first_byte(tmp_path: Path) -> None:
    with open(tmp_path / "file", "w", opener=open_private) as file:
        assert os.fstat(file.fileno()).st_mode & 0o777 == 0o600


def test_what_a_running_stack_leaves_for_others_to_find_is_for_its_own_user(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "data")
    older = run.path / "config.json"
    older.parent.mkdir(parents=True)
    older.write_text('{"retrieval": {"milvus_token": "user:password"}}')
    with run.lock():
        run.write(StackState(1, "ready", "target", "http", "log", "model", str(tmp_path)))
    assert usable_by_others(run.path) == []
    assert usable_by_others(run.log_path.parent) == []
    assert not older.exists()
