from __future__ import annotations

import os
from pathlib import Path

import pytest

from services.kv_store.chunk_files import ChunkFiles
from shared.errors import CorruptData, InvalidRequest, NotFound, StorageFull
from shared.kv_format import ChunkFile, verify_chunk
from tests.kv_chunks import chunk_bytes, chunk_id_of
from tests.unit.kv_store.disks import Crash, DyingDisk, FullDisk, QuickDisk

A, B, C = (chunk_id_of(n) for n in range(3))


@pytest.fixture
def files(tmp_path: Path) -> ChunkFiles:
    return ChunkFiles(tmp_path, QuickDisk())


def stage(files: ChunkFiles, chunk_id: str, name: str = "file", seed: int = 0) -> Path:
    path = files.staging / name
    path.write_bytes(chunk_bytes(chunk_id, seed))
    return path


def test_an_adopted_file_can_be_opened_by_its_path(files: ChunkFiles) -> None:
    staged = stage(files, A)
    assert files.adopt(A, str(staged)) is False

    (opened,) = files.open([A])
    assert opened.exists
    assert opened.size_bytes == len(chunk_bytes(A))
    ChunkFile.open(opened.path, opened.layers).close()
    assert not staged.exists()
    assert files.stat([A, B]) == [*files.page().chunks, files.stat([B])[0]]
    files.check_invariants()


def test_a_second_adoption_keeps_the_first_file_unless_told_to_replace_it(files: ChunkFiles) -> None:
    files.adopt(A, stage(files, A, seed=1))
    for replace, stored in ((False, chunk_bytes(A, 1)), (True, chunk_bytes(A, 2))):
        assert files.adopt(A, stage(files, A, seed=2), replace=replace) is True
        assert Path(files.open([A])[0].path).read_bytes() == stored
        assert not list(files.staging.iterdir())


def test_a_reader_keeps_the_file_that_it_opened_when_it_is_replaced_or_deleted(files: ChunkFiles) -> None:
    files.adopt(A, stage(files, A, seed=1))
    with ChunkFile.open(files.open([A])[0].path) as reader:
        files.adopt(A, stage(files, A, seed=2), replace=True)
        files.delete([A])
        assert os.pread(reader._fd, 1 << 20, 0) == chunk_bytes(A, 1)


def test_a_file_deleted_between_open_and_read_is_absent(files: ChunkFiles) -> None:
    files.adopt(A, stage(files, A))
    (opened,) = files.open([A])
    files.delete([A])
    with pytest.raises(NotFound):
        ChunkFile.open(opened.path)


@pytest.mark.parametrize(
    "chunk_id", ["", "..", "abc", "../../../../etc/passwd", "A" * 40, "g" * 40, "a" * 65, "ab/" + "a" * 37, "a" * 40 + "\n"]
)
def test_ids_that_are_not_hex_are_refused(files: ChunkFiles, chunk_id: str) -> None:
    staged = stage(files, A)
    for call in (files.stat, files.open, files.delete):
        with pytest.raises(InvalidRequest, match="chunk_id"):
            call([chunk_id])
    with pytest.raises(InvalidRequest, match="chunk_id"):
        files.adopt(chunk_id, staged)
    with pytest.raises(InvalidRequest, match="chunk_id"):
        next(files.read(chunk_id))


def test_only_plain_files_in_the_staging_directory_are_adopted(files: ChunkFiles, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(chunk_bytes(A))
    (files.staging / "link").symlink_to(outside)
    os.link(outside, files.staging / "hard")
    (files.staging / "dir").mkdir()
    (tmp_path / "staging_link").symlink_to(tmp_path)
    paths = ["link", "hard", "dir", "absent", "../outside", "..", "."]
    for path in [str(outside), "file", "", str(tmp_path / "staging_link" / "outside"), *(f"{files.staging}/{p}" for p in paths)]:
        with pytest.raises(InvalidRequest, match="path"):
            files.adopt(A, path)
    assert outside.read_bytes() == chunk_bytes(A)
    assert files.num_chunks == 0


@pytest.mark.parametrize("damage", ["flipped", "truncated", "another chunk's", "no chunk"])
def test_a_file_that_is_not_the_chunk_is_refused_and_dropped(files: ChunkFiles, damage: str) -> None:
    whole = chunk_bytes(A)
    content = {
        "flipped": whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:],
        "truncated": whole[:-1],
        "another chunk's": chunk_bytes(B),
        "no chunk": b"hello",
    }[damage]
    files.adopt(A, stage(files, A))
    for chunk_id, replace in ((A, True), (C, False)):
        staged = files.staging / "file"
        staged.write_bytes(content)
        with pytest.raises(CorruptData):
            files.adopt(chunk_id, staged, replace)
        assert not staged.exists()
    assert [c.chunk_id for c in files.page().chunks] == [A]
    files.check_invariants()


def test_a_stored_file_whose_frame_is_damaged_is_removed_when_it_is_opened(files: ChunkFiles) -> None:
    files.adopt(A, stage(files, A))
    path = Path(files.open([A])[0].path)
    path.write_bytes(chunk_bytes(A)[:-1])
    assert not files.open([A])[0].exists
    assert not path.exists()
    assert files.adopt(A, stage(files, A)) is False
    files.check_invariants()


def test_a_range_of_a_file_is_read_in_pieces(files: ChunkFiles) -> None:
    files.adopt(A, stage(files, A))
    whole = chunk_bytes(A)
    assert b"".join(files.read(A)) == whole
    assert b"".join(files.read(A, 5)) == whole[5:]
    assert b"".join(files.read(A, 5, 7)) == whole[5:12]
    assert b"".join(files.read(A, len(whole) - 1, 100)) == whole[-1:]
    assert b"".join(files.read(A, len(whole) + 1)) == b""
    with pytest.raises(NotFound):
        next(files.read(B))


def test_pages_follow_each_other(files: ChunkFiles) -> None:
    ids = sorted(chunk_id_of(n) for n in range(7))
    for chunk_id in ids:
        files.adopt(chunk_id, stage(files, chunk_id))
    seen, after, truncated = [], "", True
    while truncated:
        page = files.page(after, limit=3)
        seen += [c.chunk_id for c in page.chunks]
        after, truncated = seen[-1], page.truncated
    assert seen == ids


def test_a_new_life_finds_what_was_stored_and_clears_what_was_half_written(tmp_path: Path) -> None:
    files = ChunkFiles(tmp_path, QuickDisk())
    files.adopt(A, stage(files, A))
    files.append(files.new_staged(), b"half")
    stage(files, B, "of a generator")
    os.utime(stage(files, C, "of a dead generator"), (0, 0))

    reborn = ChunkFiles(tmp_path, QuickDisk())
    assert [c.chunk_id for c in reborn.page().chunks] == [A]
    assert [p.name for p in reborn.staging.iterdir()] == ["of a generator"]
    reborn.check_invariants()


@pytest.mark.parametrize("replace", [False, True])
def test_a_disk_that_is_full_at_any_moment_loses_and_tears_nothing(tmp_path: Path, replace: bool) -> None:
    for full_at in range(100):
        directory = tmp_path / str(full_at)
        before = ChunkFiles(directory, QuickDisk())
        before.adopt(B, stage(before, B, seed=1))
        if replace:
            before.adopt(A, stage(before, A, seed=1))
        files = ChunkFiles(directory, FullDisk(full_at))
        try:
            files.append(staged := files.new_staged(), chunk_bytes(A, 2))
            files.adopt(A, staged, replace)
        except StorageFull:
            after = ChunkFiles(directory, QuickDisk())
            assert B in {c.chunk_id for c in after.page().chunks} <= {A, B}
            assert not replace or after.open([A])[0].exists
            assert not list(after.staging.iterdir())
            after.check_invariants()
            files.check_invariants()
        else:
            assert full_at >= 4
            return
    pytest.fail("the operations never end")


@pytest.mark.parametrize("replace", [False, True])
def test_a_crash_at_any_moment_leaves_what_was_acknowledged(tmp_path: Path, replace: bool) -> None:
    for dies_at in range(100):
        directory = tmp_path / str(dies_at)
        before = ChunkFiles(directory, QuickDisk())
        before.adopt(B, stage(before, B))
        if replace:
            before.adopt(A, stage(before, A, seed=1))
        try:
            files = ChunkFiles(directory, DyingDisk(dies_at))
            files.append(staged := files.new_staged(), chunk_bytes(A, 2))
            files.adopt(A, staged, replace)
        except Crash:
            after = ChunkFiles(directory, QuickDisk())
            after.check_invariants()
            assert after.open([B])[0].exists
            assert not replace or verify_chunk(after.open([A])[0].path)
            assert not list(after.staging.iterdir())
        else:
            assert dies_at >= 4
            return
    pytest.fail("the operations never end")
