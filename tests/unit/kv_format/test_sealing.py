"""Seals with a key: what somebody forged with fitting checksums is told from what the store sealed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from shared.errors import CorruptData, NewerFormat
from shared.kv_format import (
    ChunkFile,
    SealKey,
    SealKeys,
    inspect_chunk,
    seal_chunk,
    verify_chunk,
    write_chunk,
)
from shared.kv_format.reader import frame_of
from shared.kv_format.sealing import LayerTag
from shared.kv_format.writer import read_ends, sealed_tail
from tests.kv_chunks import header_of, kv_of

OURS, OTHER = SealKey(b"a" * 32), SealKey(b"b" * 32)
KEYS = SealKeys([OURS])
HEADER = header_of(layers=3, tokens=5)


def written(directory: Path, seed: int = 0) -> Path:
    path = directory / f"{seed}.arrow"
    write_chunk(path, HEADER, *kv_of(HEADER, seed))
    return path


def sealed(directory: Path, seed: int = 0, keys: SealKeys = KEYS) -> Path:
    path = written(directory, seed)
    seal_chunk(path, keys)
    return path


def with_seal_of(path: Path, other: Path) -> None:
    """Gives the file at ``path`` the MAC of another one, with checksums that fit."""
    with open(path, "r+b") as file, open(other, "rb") as donor:
        ours, theirs = frame_of(file.fileno()).seal, frame_of(donor.fileno()).seal
        _, footer = read_ends(file.fileno(), ours.layout)
        forged = type(ours)(ours.layout, ours.layer_checksums, ours.head_checksum, theirs.mac)
        file.seek(ours.layout.tail_offset)
        file.write(sealed_tail(forged, footer))
        file.truncate()


def test_what_is_sealed_reads_as_before_with_and_without_keys(tmp_path: Path) -> None:
    path, kv = sealed(tmp_path), kv_of(HEADER)
    for keys in (None, KEYS):
        assert verify_chunk(path, keys=keys).key_id == OURS.id.hex()
        with ChunkFile.open(path, keys=keys) as file:
            assert file.header == HEADER
            for layer in range(HEADER.num_layers):
                out = file.empty_layer()
                file.read_layer(layer, *out)
                assert [a.tobytes() for a in out] == [b[layer].tobytes() for b in kv]


def test_sealing_twice_changes_nothing(tmp_path: Path) -> None:
    path = sealed(tmp_path)
    before = path.read_bytes()
    seal_chunk(path, KEYS)
    assert path.read_bytes() == before


def test_two_files_of_the_same_kv_have_tags_of_their_own(tmp_path: Path) -> None:
    first, second = sealed(tmp_path).read_bytes(), sealed(tmp_path).read_bytes()
    assert first != second
    assert len(first) == len(second)


def test_a_file_without_a_mac_opens_unless_one_is_required(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert verify_chunk(path, keys=KEYS).key_id == ""
    with pytest.raises(CorruptData, match="no seal of this installation"):
        inspect_chunk(path, SealKeys([OURS], required=True))


@pytest.mark.parametrize("check", [inspect_chunk, lambda path, keys: verify_chunk(path, keys=keys)])
def test_a_forged_file_with_fitting_checksums_and_a_borrowed_mac_is_refused(
    tmp_path: Path, check: object
) -> None:
    honest, forged = sealed(tmp_path), written(tmp_path, seed=1)
    with_seal_of(forged, honest)
    verify_chunk(forged)  # all checksums fit
    with pytest.raises(CorruptData, match="forged"):
        check(forged, KEYS)  # type: ignore[operator]


def test_another_installations_seal_is_left_alone_not_taken_for_damage(tmp_path: Path) -> None:
    path = sealed(tmp_path, keys=SealKeys([OTHER]))
    with pytest.raises(NewerFormat, match=f"key {OTHER.id.hex()}"):
        verify_chunk(path, keys=KEYS)


def test_a_claimed_key_does_not_help_a_forger(tmp_path: Path) -> None:
    class Liar(SealKey):
        @property
        def id(self) -> bytes:
            return OURS.id

    path = sealed(tmp_path, keys=SealKeys([Liar(b"c" * 32)]))
    with pytest.raises(CorruptData, match="forged"):
        inspect_chunk(path, KEYS)


def test_keys_are_replaced_while_files_of_the_old_one_are_there(tmp_path: Path) -> None:
    path = sealed(tmp_path)
    both = SealKeys([OTHER, OURS])
    assert not both.is_current(verify_chunk(path, keys=both).key_id)
    assert seal_chunk(path, both).key_id == OTHER.id.hex()
    assert verify_chunk(path, keys=SealKeys([OTHER])).key_id == OTHER.id.hex()


def test_a_layer_that_keeps_its_checksum_is_told_by_its_tag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody here makes collisions of XXH3-64: the honest file gets tags as if its layers had been others."""
    path = written(tmp_path)
    with monkeypatch.context() as other_bytes:
        other_bytes.setattr(LayerTag, "digest", lambda self: bytes(16))
        seal_chunk(path, KEYS)
    inspect_chunk(path, KEYS)
    with pytest.raises(CorruptData, match="layer 0 was forged"):
        verify_chunk(path, keys=KEYS)


@pytest.mark.parametrize("at", ["tags", "salt", "key", "code"])
def test_no_byte_of_a_mac_changes_unseen(tmp_path: Path, at: str) -> None:
    path = sealed(tmp_path)
    data, copy = bytearray(path.read_bytes()), tmp_path / "copy.arrow"
    with open(path, "rb") as file:
        mac = frame_of(file.fileno()).seal.mac
    assert mac is not None
    piece = {"tags": mac.layer_tags[1], "salt": mac.salt, "key": mac.key_id, "code": mac.code}[at]
    data[data.rindex(piece)] ^= 1
    copy.write_bytes(data)
    for keys in (None, KEYS):
        with pytest.raises(CorruptData):
            inspect_chunk(copy, keys)


def test_a_damaged_file_is_not_sealed(tmp_path: Path) -> None:
    path = written(tmp_path)
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    shutil.copy(path, tmp_path / "before")
    with pytest.raises(CorruptData):
        seal_chunk(path, KEYS)
    assert path.read_bytes() == (tmp_path / "before").read_bytes()


def test_a_key_that_could_be_guessed_is_refused() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        SealKey(b"short")
    assert b"aaaa" not in repr(OURS).encode()
