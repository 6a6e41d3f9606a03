from __future__ import annotations

import dataclasses
import os
import resource
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.errors import CorruptData, NotFound, StorageFull
from shared.kv_format import ChunkFile, inspect_chunk, verify_chunk, write_chunk
from shared.kv_format.layout import CLOSING_BYTES, SEAL_BYTES, footer_len, layout_of, seal_of
from tests.kv_chunks import VIEW, header_of, kv_of


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Odd sizes, so that there is padding to flip as well."""
    path = tmp_path / "small.arrow"
    write_chunk(path, h := header_of(layers=2, heads=1, tokens=3, head_dim=1), *kv_of(h))
    return path


@settings(max_examples=50, deadline=None)
@given(
    layers=st.integers(1, 4),
    heads=st.integers(1, 3),
    tokens=st.integers(1, 40),
    head_dim=st.integers(1, 9),
    dtype=st.sampled_from(sorted(VIEW)),
    seed=st.integers(0, 2**32),
)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, layers: int, heads: int, tokens: int, head_dim: int, dtype: str, seed: int
) -> None:
    path = tmp_path_factory.mktemp("kv") / "chunk.arrow"
    written = header_of(layers, heads, tokens, head_dim, dtype)
    k_layers, v_layers = kv_of(written, seed)

    size = write_chunk(path, written, k_layers, v_layers)

    assert size == path.stat().st_size
    with ChunkFile.open(path, inspect_chunk(path).layers) as file:
        assert file.header == written
        for layer in reversed(range(layers)):
            k, v = np.empty_like(k_layers[0]), np.empty_like(v_layers[0])
            file.read_layer(layer, k, v)
            assert k.tobytes() == k_layers[layer].tobytes()
            assert v.tobytes() == v_layers[layer].tobytes()
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


def test_bodies_of_ordinary_shapes_begin_at_multiples_of_64(tmp_path: Path) -> None:
    write_chunk(tmp_path / "c.arrow", h := header_of(layers=4, heads=2, tokens=16, head_dim=32), *kv_of(h))

    body_len = 2 * h.tensor_bytes
    assert all((offset + length - body_len) % 64 == 0 for offset, length in inspect_chunk(tmp_path / "c.arrow").layers)


def test_strided_arrays_are_written_as_they_look(tmp_path: Path) -> None:
    h = header_of(layers=1, heads=2, tokens=4, head_dim=3)
    k, v = (np.asfortranarray(a[0]) for a in kv_of(h))
    write_chunk(tmp_path / "c.arrow", h, [k], [v])

    k_out, v_out = np.empty((2, 4, 3), np.uint16), np.empty((2, 4, 3), np.uint16)
    with ChunkFile.open(tmp_path / "c.arrow") as file:
        file.read_layer(0, k_out, v_out)
    np.testing.assert_array_equal(k_out, k)
    np.testing.assert_array_equal(v_out, v)


def test_every_flipped_byte_is_detected(small: Path) -> None:
    whole = small.read_bytes()
    with open(small, "r+b", buffering=0) as file:
        for position, byte in enumerate(whole):
            for flip in (0x01, 0x80, 0xFF):
                os.pwrite(file.fileno(), bytes([byte ^ flip]), position)
                with pytest.raises(CorruptData):
                    verify_chunk(small)
            os.pwrite(file.fileno(), bytes([byte]), position)
    verify_chunk(small)


def test_every_truncation_is_detected(small: Path) -> None:
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


@pytest.mark.parametrize("content", [b"", b"x", b"not arrow at all" * 100, b"ARROW1\0\0ARROW1", b"\xff\xff\xff\x7fARROW1" * 9])
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


def test_a_future_version_is_refused_by_its_number(small: Path) -> None:
    _reseal(small, b"\x01\0\0\0" + b"1\0\0\0", b"\x01\0\0\0" + b"2\0\0\0")
    with pytest.raises(CorruptData, match="format version 2, but this program reads 1 only"):
        inspect_chunk(small)


def test_a_sealed_file_whose_header_contradicts_itself_is_corrupt(small: Path) -> None:
    _reseal(small, b'"num_kv_heads":1', b'"num_kv_heads":9')
    with pytest.raises(CorruptData, match="layout does not fit"):
        inspect_chunk(small)


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
        for bad in (np.empty((1, 2, 1), np.uint16), np.empty((1, 3, 1), np.uint32), np.empty((1, 6, 1), np.uint16)[:, ::2]):
            with pytest.raises(ValueError, match="the buffer is"):
                file.read_layer(0, bad, good)


def test_arrays_that_contradict_the_header_are_not_written(tmp_path: Path) -> None:
    h = header_of()
    k, v = kv_of(h)
    for bad_k in (k[:1], [*k, k[0]], [k[0], k[1][:1]], [a.astype(np.uint32) for a in k]):
        with pytest.raises(ValueError, match="header says"):
            write_chunk(tmp_path / "c.arrow", h, bad_k, v)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    "change",
    [{"num_tokens": 4}, {"ids_hash": "0" * 32}, {"dtype": "int8"}, {"encoding": "int8"}, {"head_dim": 0}, {"token_ids": ()}],
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
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))  # the kernel refuses to write beyond it, as on a full volume
        try:
            with pytest.raises(StorageFull):
                write_chunk(path, h, *kv_of(h))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert not path.exists()


def _batches(reader: pa.RecordBatchFileReader) -> list[pa.RecordBatch]:
    return [reader.get_batch(i) for i in range(reader.num_record_batches)]


def _reseal(path: Path, old: bytes, new: bytes) -> None:
    """Changes the schema and its repetition in the footer as a writer with other ideas would have written them."""
    layers = inspect_chunk(path).layers
    whole = path.read_bytes()
    assert whole.count(old) == 2
    length = footer_len(whole[-CLOSING_BYTES:])
    layout = layout_of(whole[-length - SEAL_BYTES : -length], len(whole) - length)
    changed = whole.replace(old, new)
    messages = b"".join(changed[offset : offset + layout.message_len] for offset, _ in layers)
    seal = seal_of(layout, changed[: layout.head_len], messages, changed[-length:])
    path.write_bytes(changed[: -length - SEAL_BYTES] + seal + changed[-length:])
