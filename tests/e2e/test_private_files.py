"""What a running stack writes, and what it writes it into."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from services.kv_store.tiers.memory_directory import memory_directory
from tests.e2e.conftest import SECRET
from tests.e2e.stack import Stack

pytestmark = pytest.mark.e2e


def usable_by_others(root: Path) -> list[Path]:
    return [
        path for path in (root, *root.rglob("*")) if path.lstat().st_mode & 0o077 and not path.is_symlink()
    ]


def test_nobody_but_the_services_user_can_use_what_they_keep(stack: Stack) -> None:
    assert len(list(stack.data_dir.rglob("*.arrow"))) > 6
    assert usable_by_others(stack.data_dir) == []
    memory = memory_directory(stack.data_dir / "kv")
    assert memory.is_dir()
    assert usable_by_others(memory) == []


def test_nobody_else_comes_to_rays_session_directory_which_ray_opens_to_all(stack: Stack) -> None:
    assert Path(stack.state.ray_dir).stat().st_mode & 0o777 == 0o700


def test_no_file_holds_a_secret_of_the_settings(stack: Stack) -> None:
    def holding(root: Path) -> Iterator[Path]:
        for path in root.rglob("*"):
            if path.is_file() and not path.is_symlink() and SECRET.encode() in path.read_bytes():
                yield path

    assert [*holding(stack.data_dir), *holding(Path(stack.state.ray_dir))] == []
