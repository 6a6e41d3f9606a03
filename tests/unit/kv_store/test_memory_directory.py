from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from services.kv_store.config import KvStoreConfig, MemoryConfig
from services.kv_store.tiers.builder import Machine, OwnTiers
from services.kv_store.tiers.chunk_files import verified
from services.kv_store.tiers.local import LocalTier
from services.kv_store.tiers.memory_directory import (
    MemoryDirectory,
    memory_directory,
    modest_capacity,
    remove_what_was_left,
)
from tests.kv_chunks import chunk_bytes, chunk_id_of


def test_a_directory_belongs_to_one_agent_at_a_time(tmp_path: Path) -> None:
    first = MemoryDirectory.claim(tmp_path / "memory")
    assert first is not None
    assert MemoryDirectory.claim(tmp_path / "memory") is None
    remove_what_was_left(tmp_path / "memory")
    assert first.path.is_dir()
    first.remove()
    assert not first.path.exists()
    assert MemoryDirectory.claim(tmp_path / "memory") is not None


def test_what_a_killed_agent_left_is_used_or_removed(tmp_path: Path) -> None:
    killed = MemoryDirectory.claim(tmp_path / "memory")
    assert killed is not None
    (killed.path / "file").write_bytes(b"x")
    os.close(killed._lock_fd)  # as the end of a process does
    remove_what_was_left(tmp_path / "nothing")
    remove_what_was_left(tmp_path / "memory")
    assert not (tmp_path / "memory").exists()


def test_a_link_and_a_file_of_that_name_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "file").write_bytes(b"x")
    for name in ("link", "file"):
        assert MemoryDirectory.claim(tmp_path / name) is None
    assert not list((tmp_path / "elsewhere").iterdir())


def test_nodes_with_directories_of_their_own_have_memory_of_their_own(tmp_path: Path) -> None:
    a, b = (memory_directory(tmp_path / name, tmp_path) for name in "ab")
    assert a != b
    assert a == memory_directory(tmp_path / "b" / ".." / "a", tmp_path)


def test_a_capacity_that_nobody_set_is_modest(tmp_path: Path) -> None:
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    assert 0 < modest_capacity(tmp_path) <= min(2 << 30, free)


@pytest.mark.parametrize("capacity", [None, 0, 1000])
def test_the_tiers_of_a_node_are_as_its_settings_say(tmp_path: Path, capacity: int | None) -> None:
    memory = MemoryConfig(str(tmp_path / "memory"), capacity)
    config = KvStoreConfig(str(tmp_path / "data"), memory=memory, disk_capacity_bytes=5000)
    own = OwnTiers(tmp_path / "data", config, objects=True)
    assert [s.tier for s in own.disk.stats()] == ["disk", "pending"]
    assert own.disk.capacity_bytes == 5000
    if capacity == 0:
        assert own.memory is None
    else:
        assert own.memory is not None
        expected = modest_capacity(tmp_path) if capacity is None else 1000
        assert own.memory.capacity_bytes == pytest.approx(expected, rel=0.1)  # others use the disk, too
    own.remove_memory()
    own.remove_memory()
    assert not (tmp_path / "memory").exists()


@dataclass
class Unlocked:
    """A directory that anybody may claim, as one of an agent that was killed."""

    path: Path

    def __post_init__(self) -> None:
        self.path.mkdir(exist_ok=True)

    def remove(self) -> None:
        shutil.rmtree(self.path)


def keep(tier: LocalTier, chunk_id: str, truth: bool) -> None:
    staged = tier.staging.new()
    staged.write_bytes(chunk_bytes(chunk_id))
    assert tier.keep(chunk_id, staged, verified(staged, chunk_id), truth=truth)


@pytest.mark.parametrize("primary", [True, False])
def test_of_what_a_killed_agent_had_in_memory_that_stays_which_the_disk_has(
    tmp_path: Path, primary: bool
) -> None:
    config = KvStoreConfig(str(tmp_path / "data"), memory=MemoryConfig(str(tmp_path / "memory")))
    machine = Machine(claim=Unlocked)
    killed = OwnTiers(tmp_path / "data", config, not primary, machine)
    mine, gone = chunk_id_of(0), chunk_id_of(1)
    assert killed.memory is not None
    for chunk_id in (mine, gone):
        keep(killed.disk, chunk_id, truth=primary)
        keep(killed.memory, chunk_id, truth=False)
    killed.disk.remove(gone)
    own = OwnTiers(tmp_path / "data", config, not primary, machine)
    assert own.memory is not None
    assert [c.chunk_id for c in own.memory.copies()] == [mine]
    own.memory.check_invariants()
