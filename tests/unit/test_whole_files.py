"""Files that are replaced as a whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shared.whole_files import replacing


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_the_new_file_takes_the_place_of_the_old_one_when_it_is_whole(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with replacing(path, mode) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == mode
    assert os.listdir(tmp_path) == ["file"]


def test_what_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail() -> None:
        with replacing(path) as file:
            file.write(b"half")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_it_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    sync, replace = os.fsync, os.replace

    def synced(number: int) -> None:
        done.append("directory" if os.path.isdir(f"/proc/self/fd/{number}") else "file")
        sync(number)

    def replaced(source: str, target: str | Path) -> None:
        done.append("replace")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    with replacing(tmp_path / "file") as file:
        file.write(b"new")
    assert done == ["file", "replace", "directory"]
