from __future__ import annotations

import dataclasses
import os
import resource
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.errors import CorruptData, NewerFormat, NotFound, StorageFull
from shared.kv_buffers import DTYPES, ENCODINGS
from shared.kv_format import ChunkFile, Frame, ShortTail, inspect_chunk, read_frame, verify_chunk, write_chunk
from shared.kv_format.layout import _mark, seal_of_tail
from tests.kv_chunks import chunk_id_of, header_of, kv_of


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Odd sizes, so that there is padding to flip as well."""
    return small_in(tmp_path)


def small_in(directory: Path, encoding: str = "exact") -> Path:
    path = directory / "small.arrow"
    write_chunk(path, h := header_of(layers=2, heads=1, tokens=3, head_dim=1, encoding=encoding), *kv_of(h))
    return path


@settings(max_examples=50, deadline=None)
@given(
    layers=st.integers(1, 4),
    heads=st.integers(1, 3),
    tokens=st.integers(1, 40),
    head_dim=st.integers(1, 9),
    dtype=st.sampled_from(DTYPES),
    encoding=st.sampled_from(ENCODINGS),
    seed=st.integers(0, 2**32),
)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory,
    layers: int,
    heads: int,
    tokens: int,
    head_dim: int,
    dtype: str,
    encoding: str,
    seed: int,
) -> None:
    path = tmp_path_factory.mktemp("kv") / "chunk.arrow"
    written = header_of(layers, heads, tokens, head_dim, dtype, encoding=encoding)
    buffers = kv_of(written, seed)

    size = write_chunk(path, written, *buffers)

    assert size == path.stat().st_size
    with ChunkFile.open(path, inspect_chunk(path).layers) as file:
        assert file.header == written
        for layer in reversed(range(layers)):
            out = [np.empty_like(arrays[layer]) for arrays in buffers]
            file.read_layer(layer, *out)
            assert [a.tobytes() for a in out] == [arrays[layer].tobytes() for arrays in buffers]
    assert verify_chunk(path) == inspect_chunk(path)


def test_any_arrow_reader_reads_it(tmp_path: Path) -> None:
    written = header_of(layers=3, heads=2, tokens=5, head_dim=8, dtype="float32")
    k_layers, v_layers = kv_of(written)
    write_chunk(tmp_path / "c.arrow", written, k_layers, v_layers)
    raw = (tmp_path / "c.arrow").read_bytes()

    for batches in (list(_batches(pa.ipc.open_file(raw))), list(pa.ipc.open_stream(raw[8:]))):
        assert len(batches) == 3
        for batch, k, v in zip(batches, k_layers, v_layers, strict=True):
            batch.validate(full=True)
            assert b"".join(batch.column("k").to_pylist()) == k.tobytes()
            assert batch.column("v")[1].as_py() == v[1].tobytes()  # one head alone


def test_any_arrow_reader_finds_the_ranges_of_a_chunk_that_is_not_exact(tmp_path: Path) -> None:
    written = header_of(layers=2, heads=2, tokens=70, head_dim=5, encoding="int4")
    buffers = kv_of(written)
    write_chunk(tmp_path / "c.arrow", written, *buffers)

    batch = pa.ipc.open_file((tmp_path / "c.arrow").read_bytes()).get_batch(1)
    batch.validate(full=True)
    assert batch.schema.names == ["k", "k_scale", "k_offset", "v", "v_scale", "v_offset"]
    for column, arrays in zip(batch.columns, buffers, strict=True):
        assert b"".join(column.to_pylist()) == arrays[1].tobytes()


def test_bodies_of_ordinary_shapes_begin_at_multiples_of_64(tmp_path: Path) -> None:
    write_chunk(tmp_path / "c.arrow", h := header_of(layers=4, heads=2, tokens=16, head_dim=32), *kv_of(h))

    assert all(
        (offset + length - h.body_bytes) % 64 == 0
        for offset, length in inspect_chunk(tmp_path / "c.arrow").layers
    )


def test_strided_arrays_are_written_as_they_look(tmp_path: Path) -> None:
    h = header_of(layers=1, heads=2, tokens=4, head_dim=3)
    k, v = (np.asfortranarray(a[0]) for a in kv_of(h))
    write_chunk(tmp_path / "c.arrow", h, [k], [v])

    k_out, v_out = np.empty((2, 4, 3), np.uint16), np.empty((2, 4, 3), np.uint16)
    with ChunkFile.open(tmp_path / "c.arrow") as file:
        file.read_layer(0, k_out, v_out)
    np.testing.assert_array_equal(k_out, k)
    np.testing.assert_array_equal(v_out, v)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_flipped_byte_is_detected(tmp_path: Path, encoding: str) -> None:
    small = small_in(tmp_path, encoding)
    whole = small.read_bytes()
    with open(small, "r+b", buffering=0) as file:
        for position, byte in enumerate(whole):
            for flip in (0x01, 0x80, 0xFF):
                os.pwrite(file.fileno(), bytes([byte ^ flip]), position)
                with pytest.raises(CorruptData):
                    verify_chunk(small)
            os.pwrite(file.fileno(), bytes([byte]), position)
    verify_chunk(small)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_truncation_is_detected(tmp_path: Path, encoding: str) -> None:
    small = small_in(tmp_path, encoding)
    for length in reversed(range(small.stat().st_size)):
        os.truncate(small, length)
        with pytest.raises(CorruptData):
            inspect_chunk(small)


@pytest.mark.parametrize("extra", [b"\0", b"ARROW1", b"x" * 4096])
def test_bytes_after_the_end_are_detected(small: Path, extra: bytes) -> None:
    small.write_bytes(small.read_bytes() + extra)
    with pytest.raises(CorruptData):
        inspect_chunk(small)


def test_a_file_that_shrinks_while_it_is_read_is_corrupt_not_fatal(tmp_path: Path) -> None:
    path = tmp_path / "c.arrow"
    write_chunk(path, h := header_of(layers=2, tokens=2000), *kv_of(h))
    k, v = np.empty((2, 2000, 4), np.uint16), np.empty((2, 2000, 4), np.uint16)
    with ChunkFile.open(path) as file:
        os.truncate(path, path.stat().st_size // 2)
        file.read_layer(0, k, v)
        with pytest.raises(CorruptData, match="layer 1 cannot be read"):
            file.read_layer(1, k, v)


@pytest.mark.parametrize(
    "content", [b"", b"x", b"not arrow at all" * 100, b"ARROW1\0\0ARROW1", b"\xff\xff\xff\x7fARROW1" * 9]
)
def test_foreign_bytes_are_corrupt(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "c.arrow").write_bytes(content)
    with pytest.raises(CorruptData):
        inspect_chunk(tmp_path / "c.arrow")


def test_other_arrow_files_are_corrupt(tmp_path: Path) -> None:
    table = pa.table({"k": [1, 2, 3]})
    with pa.ipc.new_file(tmp_path / "c.arrow", table.schema) as writer:
        writer.write(table)
    with pytest.raises(CorruptData, match="not sealed"):
        inspect_chunk(tmp_path / "c.arrow")


def test_a_file_of_a_newer_version_is_told_from_a_damaged_one_whatever_else_it_holds(small: Path) -> None:
    whole = small.read_bytes()
    footer_at = _footer_at(whole)
    small.write_bytes(b"layers in another way" + _mark(4) + whole[footer_at:])
    with pytest.raises(NewerFormat, match="chunk small: it has format version 4, this program reads 3"):
        inspect_chunk(small)


def test_files_of_version_1_are_refused_as_older(small: Path) -> None:
    footer = (whole := small.read_bytes())[_footer_at(whole) :]
    small.write_bytes(b"ARROW1\0\0" + bytes(500) + b"KVQSEAL1" + bytes(40) + footer)
    with pytest.raises(CorruptData, match="older format version 1"):
        inspect_chunk(small)


def test_a_sealed_file_whose_header_contradicts_itself_is_corrupt(small: Path) -> None:
    _reseal(small, b'"num_kv_heads":1', b'"num_kv_heads":9')
    with pytest.raises(CorruptData, match="layout does not fit"):
        inspect_chunk(small)


def test_the_tail_alone_says_what_the_file_says(small: Path) -> None:
    whole = small.read_bytes()
    shortest = len(whole) - sum(inspect_chunk(small).layers[-1])
    for length in range(len(whole) + 1):
        if length < shortest:
            with pytest.raises(ShortTail) as short:
                Frame.of_tail(whole[len(whole) - length :], len(whole))
            assert length < short.value.needed_bytes <= shortest
        else:
            assert Frame.of_tail(whole[len(whole) - length :], len(whole)).summary == inspect_chunk(small)


def test_every_flipped_byte_of_a_tail_is_detected(small: Path) -> None:
    whole = small.read_bytes()
    length = len(whole) - sum(inspect_chunk(small).layers[-1])
    for position in range(len(whole) - length, len(whole)):
        flipped = bytearray(whole)
        flipped[position] ^= 0x04
        with pytest.raises((ValueError, ShortTail)):
            Frame.of_tail(bytes(flipped[-length:]), len(whole))
        with pytest.raises(CorruptData):
            frame_in(bytes(flipped))


def test_a_tail_of_another_length_of_file_is_corrupt(small: Path) -> None:
    whole = small.read_bytes()
    for size in (0, 5, len(whole) - 1, len(whole) + 8):
        with pytest.raises(CorruptData):
            frame_in(whole[-min(size, len(whole)) :] if size else b"", size)


def test_a_frame_is_asked_for_with_as_few_bytes_as_it_takes_and_must_be_the_chunks_own(small: Path) -> None:
    whole, asked = small.read_bytes(), []
    padded = write_bytes_of(small, tokens=9000)

    def end(data: bytes, length: int) -> tuple[int, bytes]:
        asked.append(length)
        return len(data), data[-length:]

    chunk_id = inspect_chunk(small).header.chunk_id
    assert read_frame(partial(end, whole), chunk_id).summary == inspect_chunk(small)
    assert len(asked) == 1
    assert read_frame(partial(end, padded)).header.num_tokens == 9000
    assert len(asked) > 2
    with pytest.raises(CorruptData, match="another chunk"):
        read_frame(partial(end, whole), chunk_id_of(99))
    with pytest.raises(CorruptData, match="ends early"):
        read_frame(lambda length: (len(padded), padded[-min(length, 20_000) :]))


def frame_in(data: bytes, size_bytes: int | None = None) -> Frame:
    return read_frame(lambda length: (len(data) if size_bytes is None else size_bytes, data[-length:]))


def write_bytes_of(beside: Path, tokens: int) -> bytes:
    """Of a chunk whose frame is longer than the first guess."""
    header = header_of(layers=1, heads=1, tokens=tokens, head_dim=1)
    path = beside.with_name("large")
    write_chunk(path, header, *kv_of(header))
    return path.read_bytes()


def test_a_frame_larger_than_the_guess_is_read_as_well(tmp_path: Path) -> None:
    h = header_of(layers=300, heads=1, tokens=5000, head_dim=1)
    write_chunk(tmp_path / "c.arrow", h, *kv_of(h))
    assert inspect_chunk(tmp_path / "c.arrow").header == h


def test_directories_links_and_absent_files_are_not_chunks(small: Path, tmp_path: Path) -> None:
    (tmp_path / "link.arrow").symlink_to(small)
    with pytest.raises(CorruptData):
        inspect_chunk(tmp_path / "link.arrow")
    with pytest.raises(CorruptData):
        inspect_chunk(tmp_path)
    with pytest.raises(NotFound):
        inspect_chunk(tmp_path / "absent.arrow")


def test_layers_that_lie_elsewhere_than_the_store_says_are_corrupt(small: Path) -> None:
    (offset, length), *rest = inspect_chunk(small).layers
    with pytest.raises(CorruptData, match="where the store says"):
        ChunkFile.open(small, [(offset + 8, length), *rest])


def test_buffers_of_another_shape_are_refused(small: Path) -> None:
    good = np.empty((1, 3, 1), np.uint16)
    with ChunkFile.open(small) as file:
        for bad in (
            np.empty((1, 2, 1), np.uint16),
            np.empty((1, 3, 1), np.uint32),
            np.empty((1, 6, 1), np.uint16)[:, ::2],
        ):
            with pytest.raises(ValueError, match="the buffer for k is"):
                file.read_layer(0, bad, good)
        with pytest.raises(ValueError, match="1 arrays for 2 buffers"):
            file.read_layer(0, good)


def test_arrays_that_contradict_the_header_are_not_written(tmp_path: Path) -> None:
    h = header_of()
    k, v = kv_of(h)
    for bad_k in (k[:1], [*k, k[0]], [k[0], k[1][:1]], [a.astype(np.uint32) for a in k]):
        with pytest.raises(ValueError, match="header says"):
            write_chunk(tmp_path / "c.arrow", h, bad_k, v)
    with pytest.raises(ValueError, match="header says k, v"):
        write_chunk(tmp_path / "c.arrow", h, k)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    "change",
    [
        {"num_tokens": 4},
        {"ids_hash": "0" * 32},
        {"dtype": "int8"},
        {"encoding": "int2"},
        {"head_dim": 0},
        {"token_ids": ()},
    ],
)
def test_a_header_that_contradicts_itself_cannot_be_made(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(change)).replace("token_ids", "num_tokens")):
        dataclasses.replace(header_of(), **change)  # type: ignore[arg-type]


def test_a_full_disk_leaves_nothing_behind_whenever_it_fills(tmp_path: Path) -> None:
    path = tmp_path / "c.arrow"
    h = header_of(layers=3, heads=2, tokens=64, head_dim=16)
    size = write_chunk(path, h, *kv_of(h))
    path.unlink()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in [*range(0, size, 997), size - 1]:
        # the kernel refuses to write beyond it, as on a full volume
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            with pytest.raises(StorageFull):
                write_chunk(path, h, *kv_of(h))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert not path.exists()


def _batches(reader: pa.RecordBatchFileReader) -> list[pa.RecordBatch]:
    return [reader.get_batch(i) for i in range(reader.num_record_batches)]


def _footer_at(whole: bytes) -> int:
    return seal_of_tail(whole, len(whole))[1]


def _reseal(path: Path, old: bytes, new: bytes) -> None:
    """Changes the schema and its repetition in the footer as a writer with other ideas would have written
    them."""
    whole = path.read_bytes()
    assert whole.count(old) == 2
    seal, footer_at = seal_of_tail(whole, len(whole))
    changed = whole.replace(old, new)
    seal = dataclasses.replace(seal, head_checksum=xxhash.xxh3_64_intdigest(changed[: seal.layout.head_len]))
    packed = seal.pack(changed[footer_at:])
    path.write_bytes(changed[: footer_at - len(packed)] + packed + changed[footer_at:])
