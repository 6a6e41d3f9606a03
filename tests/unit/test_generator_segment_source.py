"""KV between the engine's tensors and the store's files."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from services.generator.segment_files import KvShape
from services.generator.segment_source import StoreSegmentSource
from shared.engine.rope import RopeSpec
from shared.errors import CorruptData, StorageFull, Unavailable
from shared.kv_format import inspect_chunk
from tests.kv_directory import DirectoryStore

LAYERS, HEADS, HEAD_DIM = 3, 2, 8
CHUNK, PREFIX, IDS = "c" * 40, (1, 2), (5, 6, 7, 8, 9)
ROPE = RopeSpec((1.0, 0.1, 0.01, 0.001))
SHAPE = KvShape("f" * 32, LAYERS, HEADS, HEAD_DIM, "float32", ROPE, tokenizer_hash="e" * 32)


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """The service's loop, in a thread of its own, so that the test's thread may block as a loader thread does."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path)


def source(store: DirectoryStore, loop: asyncio.AbstractEventLoop, shape: KvShape = SHAPE) -> StoreSegmentSource:
    return StoreSegmentSource(store, "node", loop, shape)


def kv(
    dtype: torch.dtype = torch.float32, seed: int = 0, num_tokens: int = len(IDS)
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    k, v = ([torch.randn(HEADS, num_tokens, HEAD_DIM, generator=generator).to(dtype) for _ in range(LAYERS)] for _ in "kv")
    return k, v


def read(segment: Any, dtype: torch.dtype = torch.float32) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    k, v = ([torch.zeros(HEADS, len(IDS), HEAD_DIM, dtype=dtype) for _ in range(LAYERS)] for _ in "kv")
    for layer in range(LAYERS):
        segment.read_layer(layer, k[layer], v[layer])
    segment.close()
    return k, v


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_what_was_saved_is_read_bit_by_bit(store: DirectoryStore, loop: asyncio.AbstractEventLoop, dtype: torch.dtype) -> None:
    shape = KvShape("f" * 32, LAYERS, HEADS, HEAD_DIM, str(dtype).removeprefix("torch."), ROPE)
    ours = source(store, loop, shape)
    k, v = kv(dtype)
    ours.save(CHUNK, PREFIX, IDS, k, v, replace=False, behind=False)
    k_read, v_read = read(ours.open({CHUNK: len(IDS)})[CHUNK], dtype)
    assert all(torch.equal(a, b) for a, b in zip(k + v, k_read + v_read, strict=True))
    assert store.staged() == []


def test_the_file_says_what_it_was_computed_from(store: DirectoryStore, loop: asyncio.AbstractEventLoop) -> None:
    source(store, loop).save(CHUNK, PREFIX, IDS, *kv(), replace=False, behind=False)
    assert inspect_chunk(store.path_of(CHUNK)).header == SHAPE.header(CHUNK, PREFIX, IDS)


def test_tensors_that_are_slices_are_written_whole(store: DirectoryStore, loop: asyncio.AbstractEventLoop) -> None:
    ours = source(store, loop)
    k, v = kv(num_tokens=20)
    k, v = ([t[:, 3 : 3 + len(IDS)] for t in side] for side in (k, v))
    ours.save(CHUNK, PREFIX, IDS, k, v, replace=False, behind=False)
    k_read, v_read = read(ours.open({CHUNK: len(IDS)})[CHUNK])
    assert all(torch.equal(a, b) for a, b in zip(k + v, k_read + v_read, strict=True))


def test_absent_chunks_are_left_out(store: DirectoryStore, loop: asyncio.AbstractEventLoop) -> None:
    ours = source(store, loop)
    ours.save(CHUNK, PREFIX, IDS, *kv(), replace=False, behind=False)
    opened = ours.open({CHUNK: len(IDS), "d" * 40: 3})
    assert list(opened) == [CHUNK]
    opened[CHUNK].close()


def test_a_store_that_does_not_answer_has_nothing(store: DirectoryStore, loop: asyncio.AbstractEventLoop) -> None:
    store.failure = Unavailable("kv_store is not available")
    assert source(store, loop).open({CHUNK: len(IDS)}) == {}


@pytest.mark.parametrize("damage", ["truncated", "flipped", "emptied"])
def test_a_damaged_file_raises_when_read_and_is_replaced(
    store: DirectoryStore, loop: asyncio.AbstractEventLoop, damage: str
) -> None:
    ours = source(store, loop)
    k, v = kv()
    ours.save(CHUNK, PREFIX, IDS, k, v, replace=False, behind=False)
    path = store.path_of(CHUNK)
    data = bytearray(path.read_bytes())
    if damage == "flipped":
        offset, length = inspect_chunk(path).layers[1]
        data[offset + length - 40] ^= 1
    path.write_bytes({"truncated": data[:-100], "flipped": data, "emptied": b""}[damage])
    with pytest.raises(CorruptData):
        read(ours.open({CHUNK: len(IDS)})[CHUNK])
    ours.save(CHUNK, PREFIX, IDS, k, v, replace=True, behind=False)
    k_read, _ = read(ours.open({CHUNK: len(IDS)})[CHUNK])
    assert torch.equal(k_read[1], k[1])


@pytest.mark.parametrize(
    "foreign",
    [
        KvShape("0" * 32, LAYERS, HEADS, HEAD_DIM, "float32", ROPE),
        KvShape("f" * 32, LAYERS, HEADS, HEAD_DIM, "float32", RopeSpec((0.5,))),
        KvShape("f" * 32, LAYERS - 1, HEADS, HEAD_DIM, "float32", ROPE),
    ],
    ids=["fingerprint", "rope", "layers"],
)
def test_a_file_of_another_model_is_never_read(store: DirectoryStore, loop: asyncio.AbstractEventLoop, foreign: KvShape) -> None:
    k, v = kv()
    source(store, loop, foreign).save(
        CHUNK, PREFIX, IDS, k[: foreign.num_layers], v[: foreign.num_layers], replace=False, behind=False
    )
    with pytest.raises(CorruptData, match="another chunk or model"):
        read(source(store, loop).open({CHUNK: len(IDS)})[CHUNK])


def test_a_file_under_another_chunks_name_is_never_read(store: DirectoryStore, loop: asyncio.AbstractEventLoop) -> None:
    ours = source(store, loop)
    ours.save(CHUNK, PREFIX, IDS, *kv(), replace=False, behind=False)
    other = "d" * 40
    store.path_of(CHUNK).rename(store.path_of(other))
    with pytest.raises(CorruptData, match="another chunk or model"):
        read(ours.open({other: len(IDS)})[other])


def test_a_full_store_is_reported_and_leaves_no_file_behind(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    class FullAtTheEnd(DirectoryStore):
        async def adopt(self, *args: Any, **named: Any) -> bool:
            raise StorageFull("no space left")

    full = FullAtTheEnd(tmp_path)
    with pytest.raises(StorageFull):
        source(full, loop).save(CHUNK, PREFIX, IDS, *kv(), replace=False, behind=False)
    assert full.staged() == []


def test_a_staging_directory_that_is_gone_is_a_retryable_failure(store: DirectoryStore, loop: asyncio.AbstractEventLoop) -> None:
    store._staging.rmdir()
    with pytest.raises(Unavailable):
        source(store, loop).save(CHUNK, PREFIX, IDS, *kv(), replace=False, behind=False)


def test_after_shutdown_nothing_is_stored_and_nothing_hangs(store: DirectoryStore) -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    ours = source(store, loop)
    assert ours.open({CHUNK: len(IDS)}) == {}
    with pytest.raises(Unavailable):
        ours.save(CHUNK, PREFIX, IDS, *kv(), replace=False, behind=False)
