from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from services.kv_store.blobs.disk import Disk
from services.kv_store.tiers.chunk_files import verified
from services.kv_store.tiers.chunk_names import blob_of
from services.kv_store.tiers.local import LocalTier
from shared.errors import InvalidRequest, NotFound, StorageFull
from shared.kv_format import ChunkFile, verify_chunk
from tests.kv_chunks import chunk_bytes, chunk_id_of, newer_chunk_bytes
from tests.unit.kv_store.disks import Crash, DyingDisk, FullDisk, QuickDisk, SmallDisk

A, B, C, D = (chunk_id_of(n) for n in range(4))
SIZE = len(chunk_bytes(A))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def tier_in(directory: Path, disk: Disk | None = None, **settings: object) -> LocalTier:
    return LocalTier("disk", directory, disk=disk or QuickDisk(), primary_name="pending", **settings)  # type: ignore[arg-type]


def stage(tier: LocalTier, chunk_id: str, seed: int = 0) -> Path:
    path = tier.staging.new()
    path.write_bytes(chunk_bytes(chunk_id, seed))
    return path


def keep(tier: LocalTier, chunk_id: str, seed: int = 0, truth: bool = False) -> bool:
    staged = stage(tier, chunk_id, seed)
    try:
        return tier.keep(chunk_id, staged, verified(staged, chunk_id), truth=truth)
    finally:
        tier.staging.discard(staged)


def ids(tier: LocalTier) -> set[str]:
    return {c.chunk_id for c in tier.copies()}


@pytest.mark.parametrize("truth", [False, True])
def test_what_was_kept_is_opened_by_its_path(tmp_path: Path, truth: bool) -> None:
    tier = tier_in(tmp_path)
    assert keep(tier, A, truth=truth)
    opened = tier.open(A)
    assert opened is not None
    assert (opened.exists, opened.size_bytes, opened.tier, opened.progress) == (True, SIZE, "disk", "")
    ChunkFile.open(opened.path, opened.layers).close()
    assert tier.open(B) is None
    assert b"".join(tier.read(A)) == chunk_bytes(A)
    with pytest.raises(NotFound):
        next(tier.read(B))
    assert not list(tier.staging.directory.iterdir())
    tier.check_invariants()


def test_the_truth_replaces_a_copy_and_a_copy_never_the_truth(tmp_path: Path) -> None:
    tier = tier_in(tmp_path)
    assert keep(tier, A, seed=1)
    assert keep(tier, A, seed=2, truth=True)
    assert not keep(tier, A, seed=3)
    assert b"".join(tier.read(A)) == chunk_bytes(A, 2)
    assert len(list(tmp_path.rglob("*.arrow"))) == 1
    tier.check_invariants()


def test_where_nothing_is_evicted_there_are_primary_copies_only(tmp_path: Path) -> None:
    tier = tier_in(tmp_path)
    keep(tier, A, truth=True)
    keep(tier, B)
    assert [tier.primary_blobs.stat(blob_of(c)) is not None for c in (A, B)] == [True, False]


def test_what_is_demoted_is_a_copy_unless_it_was_replaced_meanwhile(tmp_path: Path) -> None:
    tier = tier_in(tmp_path)
    for chunk_id in (A, B):
        keep(tier, chunk_id, seed=1, truth=True)
    versions = {c: tier.version(c) for c in (A, B, C)}
    keep(tier, B, seed=2, truth=True)
    for chunk_id, version in versions.items():
        tier.demote(chunk_id, version)
    assert {(c.chunk_id, c.primary) for c in tier.copies()} == {(A, False), (B, True)}
    assert [(s.tier, s.num_chunks) for s in tier.stats()] == [("disk", 1), ("pending", 1)]
    opened = tier.open(A)
    assert opened is not None
    assert verify_chunk(opened.path)
    tier.check_invariants()


def test_who_was_told_where_a_kept_chunk_is_finds_it_there_for_a_while_after_it_was_demoted(
    tmp_path: Path,
) -> None:
    tier = tier_in(tmp_path)
    keep(tier, A, truth=True)
    told = tier.open(A)
    assert told is not None
    tier.demote(A, tier.version(A))
    assert verify_chunk(told.path)
    tier.check_invariants()
    tier.leave(A)
    tier.leave(A)
    assert not Path(told.path).exists()
    tier.check_invariants()

    keep(tier, B, truth=True)
    tier.demote(B, tier.version(B))
    keep(tier, B, seed=2, truth=True)
    tier.leave(B)
    assert b"".join(tier.read(B)) == chunk_bytes(B, 2)
    tier.demote(B, tier.version(B))
    tier.remove(B)
    assert not list(tmp_path.rglob(f"{B}*"))
    tier.check_invariants()


def test_copies_make_room_for_others_and_the_truth_for_nobody(tmp_path: Path, clock: Clock) -> None:
    tier = tier_in(tmp_path, capacity_bytes=2 * SIZE, clock=clock)
    assert all(keep(tier, c) for c in (A, B, C))
    assert ids(tier) == {B, C}
    assert keep(tier, A, truth=True)
    assert keep(tier, D, truth=True)
    assert ids(tier) == {A, D}
    assert not keep(tier, B)
    with pytest.raises(StorageFull):
        keep(tier, B, truth=True)
    assert tier.num_evictions == 3
    tier.check_invariants()


def test_who_is_replaced_where_there_is_no_room_left_needs_no_more_than_it_had(tmp_path: Path) -> None:
    tier = tier_in(tmp_path, capacity_bytes=2 * SIZE)
    assert all(keep(tier, c) for c in (A, B))
    assert keep(tier, A, seed=2)
    assert keep(tier, B, seed=2, truth=True)
    assert ids(tier) == {A, B}
    tier.check_invariants()


def test_what_is_pinned_or_was_opened_lately_is_not_evicted(tmp_path: Path, clock: Clock) -> None:
    tier = tier_in(tmp_path, capacity_bytes=2 * SIZE, lease_s=60, clock=clock)
    keep(tier, A)
    keep(tier, B)
    tier.pin(frozenset([A]))
    tier.open(B)
    assert tier.leased(B)
    assert not tier.leased(A)
    assert not keep(tier, C)
    assert tier.stats()[0].pinned_bytes == SIZE
    clock.now = 60.0
    assert keep(tier, C)
    assert ids(tier) == {A, C}
    tier.check_invariants()


def test_a_file_that_is_being_read_may_be_evicted_deleted_or_replaced(tmp_path: Path, clock: Clock) -> None:
    tier = tier_in(tmp_path, capacity_bytes=SIZE, lease_s=1, clock=clock)
    keep(tier, A, seed=1)
    opened = tier.open(A)
    assert opened is not None
    clock.now = 5.0
    with ChunkFile.open(opened.path) as reader:
        keep(tier, A, seed=2)
        keep(tier, B)
        tier.remove(A)
        assert os.pread(reader._fd, 1 << 20, 0) == chunk_bytes(A, 1)
    with pytest.raises(NotFound):
        ChunkFile.open(opened.path)


def test_reserved_room_is_nobody_elses(tmp_path: Path) -> None:
    tier = tier_in(tmp_path, capacity_bytes=2 * SIZE)
    first, second = tier.reserve(SIZE), tier.reserve(SIZE)
    assert first is not None
    assert second is not None
    assert tier.reserve(1) is None
    assert not keep(tier, A)
    first.release()
    first.release()
    assert keep(tier, A)
    assert keep(tier, B)
    assert ids(tier) == {B}
    tier.check_invariants()


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data[: len(data) // 2],
        lambda data: b"",
        lambda data: data[:-40] + bytes([data[-40] ^ 4]) + data[-39:],
    ],
)
def test_a_damaged_frame_is_found_when_the_chunk_is_opened(
    tmp_path: Path, damage: Callable[[bytes], bytes], known: bool
) -> None:
    tier = tier_in(tmp_path)
    keep(tier, A)
    path = tier.path_of(A)
    if not known:
        tier = tier_in(tmp_path)
    path.write_bytes(damage(chunk_bytes(A)))
    assert tier.open(A) is None
    assert not path.exists()
    assert ids(tier) == set()
    tier.check_invariants()


def test_a_file_that_somebody_changed_while_the_store_ran_is_read_again_before_it_is_given_out(
    tmp_path: Path,
) -> None:
    tier = tier_in(tmp_path)
    for chunk_id in (A, B):
        keep(tier, chunk_id)
        os.utime(tier.path_of(chunk_id), (0, 0))
    raw = bytearray(chunk_bytes(A))
    raw[len(raw) // 2] ^= 1
    tier.path_of(A).write_bytes(raw)
    assert tier.open(A) is None
    assert tier.open(B) is not None


def test_a_file_of_a_newer_format_is_absent_and_stays(tmp_path: Path) -> None:
    tier = tier_in(tmp_path)
    keep(tier, A)
    path = tier.path_of(A)
    path.write_bytes(newer_chunk_bytes(A))
    assert tier.open(A) is None
    assert path.read_bytes() == newer_chunk_bytes(A)


def test_a_file_that_vanished_is_absent(tmp_path: Path) -> None:
    tier = tier_in(tmp_path)
    keep(tier, A)
    tier.path_of(A).unlink()
    assert tier.open(A) is None
    tier.check_invariants()


@pytest.mark.parametrize("name", ["link", "hard", "dir", "absent", "../outside", "..", "."])
def test_only_plain_files_in_the_staging_directory_are_taken(tmp_path: Path, name: str) -> None:
    staging = tier_in(tmp_path / "tier").staging
    outside = tmp_path / "outside"
    outside.write_bytes(chunk_bytes(A))
    (staging.directory / "link").symlink_to(outside)
    os.link(outside, staging.directory / "hard")
    (staging.directory / "dir").mkdir()
    for path in (str(staging.directory / name), str(outside), "file", ""):
        with pytest.raises(InvalidRequest, match="path"):
            staging.given(path)


def test_a_new_life_finds_what_was_there_and_clears_what_was_half_written(tmp_path: Path) -> None:
    tier = tier_in(tmp_path)
    keep(tier, A, truth=True)
    keep(tier, B)
    tier.staging.append(tier.staging.new(), b"half")
    (tier.staging.directory / "of a generator").write_bytes(b"x")
    torn = tmp_path / "cache" / blob_of(A)
    torn.parent.mkdir(parents=True)
    torn.write_bytes(chunk_bytes(A))

    reborn = tier_in(tmp_path)
    assert {(c.chunk_id, c.primary) for c in reborn.copies()} == {(A, True), (B, False)}
    assert [p.name for p in reborn.staging.directory.iterdir()] == ["of a generator"]
    assert not torn.exists()
    reborn.check_invariants()


def test_a_new_life_with_less_room_evicts_copies_first(tmp_path: Path) -> None:
    tier = tier_in(tmp_path)
    keep(tier, A, truth=True)
    for chunk_id in (B, C, D):
        keep(tier, chunk_id)
    assert len(ids(tier_in(tmp_path, capacity_bytes=4 * SIZE))) == 4
    assert len(ids(tier_in(tmp_path, capacity_bytes=4 * SIZE - 1))) == 3
    reborn = tier_in(tmp_path, capacity_bytes=2 * SIZE)
    assert A in ids(reborn)
    assert len(ids(reborn)) == 2
    assert ids(tier_in(tmp_path, capacity_bytes=1)) == {A}


def test_what_others_staged_goes_when_nothing_happened_to_it_for_long_whatever_the_clock_on_the_wall_says(
    tmp_path: Path, clock: Clock
) -> None:
    staging = tier_in(tmp_path, clock=clock).staging
    old, busy = staging.directory / "old", staging.directory / "busy"
    for path in (old, busy):
        path.write_bytes(b"x")
        os.utime(path, (0, 0))
    staging.clean(stale_s=100)
    clock.now = 99.0
    with open(busy, "ab") as file:
        file.write(b"y")
    staging.clean(stale_s=100)
    assert old.exists()
    clock.now = 101.0
    staging.clean(stale_s=100)
    assert not old.exists()
    assert busy.exists()
    clock.now = 200.0
    staging.clean(stale_s=100)
    assert not busy.exists()


@pytest.mark.parametrize("truth", [False, True])
@pytest.mark.parametrize("replace", [False, True])
def test_a_disk_that_is_full_at_any_moment_loses_and_tears_nothing(
    tmp_path: Path, replace: bool, truth: bool
) -> None:
    for full_at in range(100):
        directory = tmp_path / str(full_at)
        before = tier_in(directory)
        keep(before, B, seed=1, truth=True)
        if replace:
            keep(before, A, seed=1, truth=True)
        tier = tier_in(directory, FullDisk(full_at))
        try:
            file = tier.staging.allocate(SIZE)
            try:
                file.write(0, chunk_bytes(A, 2))
                tier.keep(A, file.path, verified(file.path, A), truth=truth)
            finally:
                file.close()
                tier.staging.discard(file.path)
        except StorageFull:
            tier.check_invariants()
            after = tier_in(directory)
            assert B in ids(after) <= {A, B}
            assert not replace or after.open(A)
            assert not list(after.staging.directory.iterdir())
            after.check_invariants()
        else:
            assert full_at >= 3 or (replace and not truth)
            return
    pytest.fail("the operations never end")


@pytest.mark.parametrize("replace", [False, True])
def test_a_crash_at_any_moment_leaves_what_was_acknowledged(tmp_path: Path, replace: bool) -> None:
    for dies_at in range(100):
        directory = tmp_path / str(dies_at)
        before = tier_in(directory)
        keep(before, B, truth=True)
        if replace:
            keep(before, A, seed=1, truth=True)
        try:
            tier = tier_in(directory, DyingDisk(dies_at))
            file = tier.staging.allocate(SIZE)
            file.write(0, chunk_bytes(A, 2))
            tier.keep(A, file.path, verified(file.path, A), truth=True)
            tier.demote(A, tier.version(A))
        except Crash:
            after = tier_in(directory)
            after.check_invariants()
            assert B in ids(after)
            assert not replace or after.open(A)
            assert not list(after.staging.directory.iterdir())
        else:
            assert dies_at >= 4
            return
    pytest.fail("the operations never end")


def test_where_the_disk_is_full_before_its_capacity_is_reached_copies_make_room(tmp_path: Path) -> None:
    tier = tier_in(tmp_path, SmallDisk(tmp_path, 2 * SIZE))
    keep(tier, A)
    keep(tier, B, truth=True)
    file = tier.allocate(SIZE)
    file.close()
    assert ids(tier) == {B}
    with pytest.raises(StorageFull):
        tier.allocate(SIZE)
    assert ids(tier) == {B}


def test_a_hundred_thousand_small_chunks_are_found_listed_and_evicted(tmp_path: Path) -> None:
    num = 100_000
    made = sorted(chunk_id_of(n) for n in range(num))
    for first in {c[:2] for c in made}:
        (tmp_path / "cache" / "chunks" / first).mkdir(parents=True)
    for chunk_id in made:
        (tmp_path / "cache" / blob_of(chunk_id)).write_bytes(b"tiny")
    tier = tier_in(tmp_path)
    assert [(s.num_chunks, s.num_bytes) for s in tier.stats() if s.tier == "disk"] == [(num, 4 * num)]
    listed: list[str] = []
    while page := tier.copies(listed[-1] if listed else "", limit=1000):
        listed += [c.chunk_id for c in page]
    assert listed == made

    reborn = tier_in(tmp_path, capacity_bytes=4 * num // 2)
    assert len(reborn.copies()) == num // 2
    reborn.check_invariants(verify=False)
