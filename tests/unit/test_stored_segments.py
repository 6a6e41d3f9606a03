"""KV between the engine's tensors and the store's files."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import threading
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from shared.engine.kv.segment import Segment
from shared.engine.kv.source import ComputedChunk
from shared.engine.model.rope import RopeSpec
from shared.errors import CorruptData, StorageFull, Unavailable
from shared.generation.asked import Chunk
from shared.identity import chunk_identity
from shared.kv_buffers import ENCODINGS
from shared.kv_format import ProgressWriter, inspect_chunk
from shared.kv_format.layout import _mark, seal_of_tail
from shared.kv_types import Chain, OpenedChunk
from shared.stored_segments.files import KvShape
from shared.stored_segments.source import StoreSegmentSource
from tests.kv_directory import DirectoryStore

Kv = tuple[list[torch.Tensor], list[torch.Tensor]]
LAYERS, HEADS, HEAD_DIM = 3, 2, 8
CHUNK, PREFIX, IDS = "c" * 40, (1, 2), (5, 6, 7, 8, 9)
ROPE = RopeSpec((1.0, 0.1, 0.01, 0.001))
SHAPE = KvShape("f" * 32, LAYERS, HEADS, HEAD_DIM, "float32", ROPE, tokenizer_hash="e" * 32)


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """The service's loop, in a thread of its own, so that the test's thread may block as a loader thread
    does."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def computed(k: list[torch.Tensor], v: list[torch.Tensor], key: str = CHUNK, **options: Any) -> ComputedChunk:
    segment = cast(Segment, SimpleNamespace(k_LKTD=k, v_LKTD=v))
    return ComputedChunk(key, PREFIX, IDS, segment, **options)


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path)


class ArrivingStore(DirectoryStore):
    """Names one chunk's file while it is still on its way."""

    progress: ProgressWriter
    arrives_after_open = False

    def start(self, chunk_id: str) -> None:
        """Takes the stored chunk away; its frame is there again, its layers are not."""
        path = self.path_of(chunk_id)
        self._whole, self._layers = path.read_bytes(), inspect_chunk(path).layers
        path.unlink()
        self._target, self._path = path, self._staging / "fetch"
        self._path.write_bytes(bytes(end := sum(self._layers[-1])) + self._whole[end:])
        self.progress = ProgressWriter(self._staging / "fetch.progress", len(self._layers))
        self.progress.frame_arrived()

    def finish(self) -> None:
        with open(self._path, "r+b") as file:
            for i, (offset, length) in enumerate(self._layers):
                file.seek(offset)
                file.write(self._whole[offset : offset + length])
                file.flush()
                self.progress.layer_arrived(i)
            file.seek(0)
            file.write(self._whole)
        self._path.rename(self._target)
        self.progress.close(complete=True)

    async def open(self, *args: Any) -> list[OpenedChunk]:
        opened = await super().open(*args)
        if not self._path.exists():
            return opened
        size, progress = len(self._whole), str(self.progress.path)
        opened = [
            OpenedChunk(c.chunk_id, True, str(self._path), size, self._layers, progress) for c in opened
        ]
        if self.arrives_after_open:
            self.finish()
        return opened


def source(
    store: DirectoryStore, loop: asyncio.AbstractEventLoop, shape: KvShape = SHAPE, encoding: str = "exact"
) -> StoreSegmentSource:
    return StoreSegmentSource(store, "node", loop, shape, encoding)


def shape_of(dtype: torch.dtype) -> KvShape:
    return dataclasses.replace(SHAPE, dtype=str(dtype).removeprefix("torch."))


def kv(
    dtype: torch.dtype = torch.float32, seed: int = 0, num_tokens: int = len(IDS)
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    k, v = (
        [torch.randn(HEADS, num_tokens, HEAD_DIM, generator=generator).to(dtype) for _ in range(LAYERS)]
        for _ in "kv"
    )
    return k, v


def read(segment: Any, dtype: torch.dtype = torch.float32) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    k, v = ([torch.zeros(HEADS, len(IDS), HEAD_DIM, dtype=dtype) for _ in range(LAYERS)] for _ in "kv")
    segment.read_layers(range(LAYERS), k, v)
    segment.close()
    return k, v


def furthest(ours: Kv, others: Kv) -> float:
    """The largest difference of any two numbers."""
    pairs = zip(chain.from_iterable(ours), chain.from_iterable(others), strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_what_was_saved_is_read_bit_by_bit(
    store: DirectoryStore, loop: asyncio.AbstractEventLoop, dtype: torch.dtype
) -> None:
    ours = source(store, loop, shape_of(dtype))
    k, v = kv(dtype)
    ours.save(computed(k, v, replace=False, write_back=False))
    k_read, v_read = read(ours.open({CHUNK: len(IDS)})[CHUNK], dtype)
    assert all(torch.equal(a, b) for a, b in zip(k + v, k_read + v_read, strict=True))
    assert store.staged() == []


def test_the_file_says_what_it_was_computed_from(
    store: DirectoryStore, loop: asyncio.AbstractEventLoop
) -> None:
    source(store, loop).save(computed(*kv(), replace=False, write_back=False))
    assert inspect_chunk(store.path_of(CHUNK)).header == SHAPE.header(CHUNK, PREFIX, IDS)


def test_tensors_that_are_slices_are_written_whole(
    store: DirectoryStore, loop: asyncio.AbstractEventLoop
) -> None:
    ours = source(store, loop)
    k, v = kv(num_tokens=20)
    k, v = ([t[:, 3 : 3 + len(IDS)] for t in side] for side in (k, v))
    ours.save(computed(k, v, replace=False, write_back=False))
    k_read, v_read = read(ours.open({CHUNK: len(IDS)})[CHUNK])
    assert all(torch.equal(a, b) for a, b in zip(k + v, k_read + v_read, strict=True))


def test_absent_chunks_are_left_out(store: DirectoryStore, loop: asyncio.AbstractEventLoop) -> None:
    ours = source(store, loop)
    ours.save(computed(*kv(), replace=False, write_back=False))
    opened = ours.open({CHUNK: len(IDS), "d" * 40: 3})
    assert list(opened) == [CHUNK]
    opened[CHUNK].close()


def test_a_store_that_does_not_answer_has_nothing(
    store: DirectoryStore, loop: asyncio.AbstractEventLoop
) -> None:
    store.failure = Unavailable("kv_store is not available")
    assert source(store, loop).open({CHUNK: len(IDS)}) == {}


@pytest.mark.parametrize("damage", ["truncated", "flipped", "emptied"])
def test_a_damaged_file_raises_when_read_and_is_replaced(
    store: DirectoryStore, loop: asyncio.AbstractEventLoop, damage: str
) -> None:
    ours = source(store, loop)
    k, v = kv()
    ours.save(computed(k, v, replace=False, write_back=False))
    path = store.path_of(CHUNK)
    data = bytearray(path.read_bytes())
    if damage == "flipped":
        offset, length = inspect_chunk(path).layers[1]
        data[offset + length - 40] ^= 1
    path.write_bytes({"truncated": data[:-100], "flipped": data, "emptied": b""}[damage])
    with pytest.raises(CorruptData):
        read(ours.open({CHUNK: len(IDS)})[CHUNK])
    ours.save(computed(k, v, replace=True, write_back=False))
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
def test_a_file_of_another_model_is_never_read(
    store: DirectoryStore, loop: asyncio.AbstractEventLoop, foreign: KvShape
) -> None:
    k, v = kv()
    source(store, loop, foreign).save(
        computed(k[: foreign.num_layers], v[: foreign.num_layers], replace=False, write_back=False)
    )
    with pytest.raises(CorruptData, match="another chunk or model"):
        read(source(store, loop).open({CHUNK: len(IDS)})[CHUNK])


def test_a_file_under_another_chunks_name_is_never_read(
    store: DirectoryStore, loop: asyncio.AbstractEventLoop
) -> None:
    ours = source(store, loop)
    ours.save(computed(*kv(), replace=False, write_back=False))
    other = "d" * 40
    store.path_of(CHUNK).rename(store.path_of(other))
    with pytest.raises(CorruptData, match="another chunk or model"):
        read(ours.open({other: len(IDS)})[other])


def test_a_full_store_is_reported_and_leaves_no_file_behind(
    tmp_path: Path, loop: asyncio.AbstractEventLoop
) -> None:
    class FullAtTheEnd(DirectoryStore):
        async def adopt(self, *args: Any, **named: Any) -> bool:
            raise StorageFull("no space left")

    full = FullAtTheEnd(tmp_path)
    with pytest.raises(StorageFull):
        source(full, loop).save(computed(*kv(), replace=False, write_back=False))
    assert full.staged() == []


def test_a_staging_directory_that_is_gone_is_a_retryable_failure(
    store: DirectoryStore, loop: asyncio.AbstractEventLoop
) -> None:
    store._staging.rmdir()
    with pytest.raises(Unavailable):
        source(store, loop).save(computed(*kv(), replace=False, write_back=False))


def test_after_shutdown_nothing_is_stored_and_nothing_hangs(store: DirectoryStore) -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    ours = source(store, loop)
    assert ours.open({CHUNK: len(IDS)}) == {}
    with pytest.raises(Unavailable):
        ours.save(computed(*kv(), replace=False, write_back=False))


class TestEncodings:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
    @pytest.mark.parametrize("encoding", ["int8", "int4"])
    def test_first_and_later_uses_see_the_same_bits(
        self, store: DirectoryStore, loop: asyncio.AbstractEventLoop, encoding: str, dtype: torch.dtype
    ) -> None:
        ours = source(store, loop, shape_of(dtype), encoding)
        k, v = kv(dtype)
        ours.as_stored(k, v)
        ours.save(computed(k, v, replace=False, write_back=True))
        stored = ours.open({CHUNK: len(IDS)})[CHUNK]
        assert stored.encoding == encoding
        k_read, v_read = read(stored, dtype)
        assert all(torch.equal(a, b) for a, b in zip(k + v, k_read + v_read, strict=True))
        assert 0 < furthest((k, v), kv(dtype)) < (0.05 if encoding == "int8" else 0.8)

    def test_what_is_prefilled_reads_like_what_was_recomputed(
        self, store: DirectoryStore, loop: asyncio.AbstractEventLoop
    ) -> None:
        ours = source(store, loop, encoding="int8")
        k, v = kv()
        ours.save(computed(k, v, replace=False, write_back=False))
        ours.as_stored(k, v)
        k_read, v_read = read(ours.open({CHUNK: len(IDS)})[CHUNK])
        assert all(torch.equal(a, b) for a, b in zip(k + v, k_read + v_read, strict=True))

    def test_exact_kv_is_left_as_it_was_computed(
        self, store: DirectoryStore, loop: asyncio.AbstractEventLoop
    ) -> None:
        k, v = kv()
        source(store, loop).as_stored(k, v)
        assert furthest((k, v), kv()) == 0

    def test_kv_that_is_never_saved_is_not_kept(
        self, store: DirectoryStore, loop: asyncio.AbstractEventLoop
    ) -> None:
        ours = source(store, loop, encoding="int8")
        k, v = kv()
        ours.as_stored(k, v)
        assert len(ours._encoded) == 1
        del k, v
        gc.collect()
        assert len(ours._encoded) == 0

    def test_a_store_of_mixed_encodings_is_read_whatever_the_source_writes(
        self, store: DirectoryStore, loop: asyncio.AbstractEventLoop
    ) -> None:
        chunks = {encoding: encoding[-1].replace("t", "e") * 40 for encoding in ENCODINGS}
        for encoding, chunk in chunks.items():
            source(store, loop, encoding=encoding).save(
                computed(*kv(), key=chunk, replace=False, write_back=False)
            )
            assert inspect_chunk(store.path_of(chunk)).header.encoding == encoding
        for ours in (source(store, loop, encoding=e) for e in ENCODINGS):
            segments = ours.open({chunk: len(IDS) for chunk in chunks.values()})
            for encoding, chunk in chunks.items():
                assert (
                    furthest(read(segments[chunk]), kv())
                    <= {"exact": 0.0, "int8": 0.05, "int4": 0.8}[encoding]
                )

    def test_answers_are_written_back_and_prefills_through(
        self, store: DirectoryStore, loop: asyncio.AbstractEventLoop
    ) -> None:
        ours = source(store, loop)
        ours.save(computed(*kv(), replace=False, write_back=True))
        ours.save(computed(*kv(), key="d" * 40, replace=False, write_back=False))
        assert store.write_back == [True, False]

    def test_a_file_of_another_tokenizer_is_read(
        self, store: DirectoryStore, loop: asyncio.AbstractEventLoop
    ) -> None:
        other = dataclasses.replace(SHAPE, tokenizer_hash="0" * 32)
        source(store, loop, other).save(computed(*kv(), replace=False, write_back=False))
        read(source(store, loop).open({CHUNK: len(IDS)})[CHUNK])

    @pytest.mark.parametrize("encoding", ["int8", "int4"])
    def test_a_flipped_bit_is_found(
        self, store: DirectoryStore, loop: asyncio.AbstractEventLoop, encoding: str
    ) -> None:
        ours = source(store, loop, encoding=encoding)
        ours.save(computed(*kv(), replace=False, write_back=False))
        offset, length = inspect_chunk(store.path_of(CHUNK)).layers[2]
        data = bytearray(store.path_of(CHUNK).read_bytes())
        data[offset + length - 9] ^= 0x10
        store.path_of(CHUNK).write_bytes(data)
        with pytest.raises(CorruptData, match="layer 2"):
            read(ours.open({CHUNK: len(IDS)})[CHUNK])


class TestBringingChunksToAnEncoding:
    def test_exact_chunks_are_converted_and_keep_their_identity(
        self, store: DirectoryStore, loop: asyncio.AbstractEventLoop
    ) -> None:
        ours = source(store, loop)
        ours.save(computed(*kv(), replace=False, write_back=False))
        before = inspect_chunk(store.path_of(CHUNK)).header
        segment = ours.open({CHUNK: len(IDS)}, "int8")[CHUNK]
        after = inspect_chunk(store.path_of(CHUNK)).header
        assert after == dataclasses.replace(before, encoding="int8")
        k, v = kv()
        source(store, loop, encoding="int8").as_stored(k, v)
        k_read, v_read = read(segment)
        assert all(torch.equal(a, b) for a, b in zip(k + v, k_read + v_read, strict=True))
        assert store.adopted == [(CHUNK, False), (CHUNK, True)]
        assert store.staged() == []

    def test_chunks_in_that_encoding_are_left_alone(
        self, store: DirectoryStore, loop: asyncio.AbstractEventLoop
    ) -> None:
        ours = source(store, loop, encoding="int4")
        ours.save(computed(*kv(), replace=False, write_back=False))
        read(ours.open({CHUNK: len(IDS)}, "int4")[CHUNK])
        assert store.adopted == [(CHUNK, False)]

    @pytest.mark.parametrize("wanted", ["exact", "int4"])
    def test_what_has_lost_something_is_computed_again_and_replaced(
        self, store: DirectoryStore, loop: asyncio.AbstractEventLoop, wanted: str
    ) -> None:
        ours = source(store, loop, encoding="int8")
        ours.save(computed(*kv(), replace=False, write_back=False))
        with pytest.raises(CorruptData, match=f"stored as int8, from which {wanted} cannot be made"):
            read(ours.open({CHUNK: len(IDS)}, wanted)[CHUNK])
        ours.save(computed(*kv(), replace=True, write_back=False, encoding=wanted))
        assert inspect_chunk(store.path_of(CHUNK)).header.encoding == wanted
        read(ours.open({CHUNK: len(IDS)}, wanted)[CHUNK])

    def test_a_chunk_that_cannot_be_stored_anew_is_not_passed_off_as_done(
        self, tmp_path: Path, loop: asyncio.AbstractEventLoop
    ) -> None:
        class FullForReplacements(DirectoryStore):
            async def adopt(self, *args: Any, **named: Any) -> bool:
                if args[4]:
                    raise StorageFull("no space left")
                return await super().adopt(*args, **named)

        full = FullForReplacements(tmp_path)
        ours = source(full, loop)
        ours.save(computed(*kv(), replace=False, write_back=False))
        with pytest.raises(CorruptData, match="no space left"):
            read(ours.open({CHUNK: len(IDS)}, "int8")[CHUNK])
        with pytest.raises(StorageFull):
            ours.save(computed(*kv(), replace=True, write_back=False, encoding="int8"))
        assert full.staged() == []

    def test_a_damaged_exact_chunk_is_computed_again(
        self, store: DirectoryStore, loop: asyncio.AbstractEventLoop
    ) -> None:
        ours = source(store, loop)
        ours.save(computed(*kv(), replace=False, write_back=False))
        offset, _ = inspect_chunk(store.path_of(CHUNK)).layers[1]
        data = bytearray(store.path_of(CHUNK).read_bytes())
        data[offset + 400] ^= 1
        store.path_of(CHUNK).write_bytes(data)
        with pytest.raises(CorruptData, match="layer 1"):
            read(ours.open({CHUNK: len(IDS)}, "int8")[CHUNK])


class TestArrivingChunks:
    """The store names a file that is still on its way."""

    @pytest.fixture
    def arriving(self, tmp_path: Path, loop: asyncio.AbstractEventLoop) -> ArrivingStore:
        store = ArrivingStore(tmp_path)
        source(store, loop).save(computed(*kv(), replace=False, write_back=False))
        store.start(CHUNK)
        return store

    def test_layers_are_read_as_they_come(
        self, arriving: ArrivingStore, loop: asyncio.AbstractEventLoop
    ) -> None:
        segment = source(arriving, loop).open({CHUNK: len(IDS)})[CHUNK]
        arrival = threading.Thread(target=arriving.finish)
        arrival.start()
        kv_read = read(segment)
        arrival.join()
        assert furthest(kv_read, kv()) == 0

    def test_one_that_ends_early_is_unavailable_not_broken(
        self, arriving: ArrivingStore, loop: asyncio.AbstractEventLoop
    ) -> None:
        segment = source(arriving, loop).open({CHUNK: len(IDS)})[CHUNK]
        arriving.progress.close(complete=False)
        with pytest.raises(Unavailable):
            read(segment)

    def test_one_that_arrived_before_it_was_opened_is_asked_for_again(
        self, arriving: ArrivingStore, loop: asyncio.AbstractEventLoop
    ) -> None:
        arriving.arrives_after_open = True
        kv_read = read(source(arriving, loop).open({CHUNK: len(IDS)})[CHUNK])
        assert furthest(kv_read, kv()) == 0
        assert arriving.calls.count("open") == 2

    def test_one_that_is_deleted_meanwhile_is_absent(
        self, store: DirectoryStore, loop: asyncio.AbstractEventLoop
    ) -> None:
        class Deleting(DirectoryStore):
            async def open(self, *args: Any) -> list[OpenedChunk]:
                opened = await super().open(*args)
                self.path_of(CHUNK).unlink(missing_ok=True)
                return opened

        deleting = Deleting(store._staging.parent / "deleting")
        ours = source(deleting, loop)
        ours.save(computed(*kv(), replace=False, write_back=False))
        assert ours.open({CHUNK: len(IDS)}) == {}

    def test_a_file_of_a_newer_version_is_absent_and_left_alone(
        self, store: DirectoryStore, loop: asyncio.AbstractEventLoop
    ) -> None:
        ours = source(store, loop)
        ours.save(computed(*kv(), replace=False, write_back=False))
        data = store.path_of(CHUNK).read_bytes()
        footer_at = seal_of_tail(data, len(data))[1]
        newer = data[: footer_at - 16] + _mark(4) + data[footer_at:]
        store.path_of(CHUNK).write_bytes(newer)
        assert ours.open({CHUNK: len(IDS)}) == {}
        assert store.path_of(CHUNK).read_bytes() == newer

    @pytest.mark.parametrize("encoding", ["", "int8"])
    def test_the_store_is_told_whose_chunks_it_is_asked_for(
        self, store: DirectoryStore, loop: asyncio.AbstractEventLoop, encoding: str
    ) -> None:
        ours = source(store, loop)
        ours.save(computed(*kv(), replace=False, write_back=False))
        for segment in ours.open({CHUNK: len(IDS)}, encoding, tenant="acme").values():
            segment.close()
        ours.prefetch([CHUNK], "acme")
        assert set(store.asked_for) == {("acme", CHUNK)}


class TestChains:
    OF = ("tenant", SHAPE.model_fingerprint, PREFIX)
    FIRST = chunk_identity(*OF, (3, 4))
    SECOND = chunk_identity(*OF, (7,), FIRST)
    ASKED = Chunk("0" * 40, IDS, SECOND)

    def test_the_manifest_says_what_a_chunk_stands_behind(
        self, store: DirectoryStore, loop: asyncio.AbstractEventLoop
    ) -> None:
        store.chains[self.SECOND] = Chain(*self.OF, ((3, 4), (7,)))
        links = [Chunk(self.FIRST, (3, 4)), Chunk(self.SECOND, (7,), self.FIRST)]
        assert StoreSegmentSource(store, "node", loop, SHAPE).chain(self.ASKED, "tenant", PREFIX) == links

    def test_behind_another_prefix_the_same_texts_are_other_chunks(
        self, store: DirectoryStore, loop: asyncio.AbstractEventLoop
    ) -> None:
        store.chains[self.SECOND] = Chain(*self.OF, ((3, 4), (7,)))
        first = chunk_identity(*self.OF[:2], (), (3, 4))
        second = chunk_identity(*self.OF[:2], (), (7,), first)
        links = [Chunk(first, (3, 4)), Chunk(second, (7,), first)]
        assert StoreSegmentSource(store, "node", loop, SHAPE).chain(self.ASKED, "tenant", ()) == links

    @pytest.mark.parametrize("links", [(), ((7,),), ((3, 4),), ((3, 5), (7,)), ((3, 4), (7,), (8,))])
    def test_another_chain_is_not_believed(
        self, store: DirectoryStore, loop: asyncio.AbstractEventLoop, links: tuple[tuple[int, ...], ...]
    ) -> None:
        store.chains[self.SECOND] = Chain(*self.OF, links)
        assert StoreSegmentSource(store, "node", loop, SHAPE).chain(self.ASKED, "tenant", PREFIX) is None

    def test_nobody_knows_it_or_nobody_answers(
        self, store: DirectoryStore, loop: asyncio.AbstractEventLoop
    ) -> None:
        source = StoreSegmentSource(store, "node", loop, SHAPE)
        assert source.chain(self.ASKED, "tenant", PREFIX) is None
        store.failure = Unavailable("away")
        assert source.chain(self.ASKED, "tenant", PREFIX) is None
