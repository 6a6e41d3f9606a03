"""Floors in a tier of files: copies make room for copies above the floors alone, and for the truth anyway."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.kv_store.tiers.chunk_files import verified
from services.kv_store.tiers.local import LocalTier
from shared.errors import StorageFull
from tests.kv_chunks import chunk_bytes, chunk_id_of
from tests.unit.kv_store.disks import QuickDisk, SmallDisk

A, B, C, D, E, F = (chunk_id_of(n) for n in range(6))
SIZE = len(chunk_bytes(A))


def tier_in(directory: Path, capacity: int = 4 * SIZE, disk: QuickDisk | None = None) -> LocalTier:
    return LocalTier(
        "disk", directory, disk=disk or QuickDisk(), capacity_bytes=capacity, lease_s=0.0, floor_share=0.25
    )


def keep(tier: LocalTier, chunk_id: str, tenant: str = "", truth: bool = False) -> bool:
    staged = tier.staging.new()
    staged.write_bytes(chunk_bytes(chunk_id))
    try:
        return tier.keep(chunk_id, staged, verified(staged, chunk_id), truth=truth, tenant=tenant)
    finally:
        tier.staging.discard(staged)
        tier.check_invariants()


def ids(tier: LocalTier) -> set[str]:
    return {copy.chunk_id for copy in tier.copies()}


def test_a_copy_that_others_floors_have_no_room_for_is_not_kept(tmp_path: Path) -> None:
    tier = tier_in(tmp_path)
    keep(tier, A, "quiet")
    assert tier.reserve(4 * SIZE, "flood") is None
    room = tier.reserve(3 * SIZE, "flood")
    assert room is not None
    assert not keep(tier, B, "flood")
    assert ids(tier) == {A}
    assert keep(tier, B, "quiet"), "a tenant may take his own floor"
    assert ids(tier) == {B}
    room.release()


def test_the_truth_has_room_as_long_as_there_are_copies(tmp_path: Path) -> None:
    tier = tier_in(tmp_path)
    for chunk_id, tenant in {A: "quiet", B: "flood", C: "flood"}.items():
        keep(tier, chunk_id, tenant)
    for chunk_id in (D, E):
        assert keep(tier, chunk_id, truth=True)
    assert ids(tier) == {A, C, D, E}, "what is above the floors goes first"
    for chunk_id in (F, B):
        assert keep(tier, chunk_id, truth=True)
    assert ids(tier) == {B, D, E, F}
    with pytest.raises(StorageFull):
        keep(tier, A, truth=True)


def test_after_a_restart_a_floor_is_of_those_who_open_first(tmp_path: Path) -> None:
    before = tier_in(tmp_path)
    for chunk_id in (A, B):
        keep(before, chunk_id, "quiet")
    tier = tier_in(tmp_path)
    assert tier.open(B, "quiet") is not None
    for chunk_id in (C, D, E):
        assert keep(tier, chunk_id, "flood")
    assert ids(tier) == {B, C, D, E}


def test_where_a_disk_fills_up_floors_are_of_what_its_copies_take(tmp_path: Path) -> None:
    tier = tier_in(tmp_path, capacity=0, disk=SmallDisk(tmp_path, 4 * SIZE + SIZE // 2))
    for chunk_id, tenant in {A: "quiet", B: "flood", C: "flood", D: "flood"}.items():
        keep(tier, chunk_id, tenant)
    tier.allocate(SIZE, "flood").close()
    assert A in ids(tier)
    assert len(ids(tier)) == 3
