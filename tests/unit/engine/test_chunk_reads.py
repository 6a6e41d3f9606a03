"""Which thread reads which layer of which chunk, and when."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from load_tests.kv_store.stored_chunks import ChunkShape
from shared.engine.kv.chunk_reads import ChunkRead, FirstLayer, Loaded, ReadList
from shared.engine.kv.loader import ChunkLoad, Loader
from shared.engine.kv.segment import Segment
from shared.engine.kv.source import NoSource, StoredSegment
from shared.engine.model.spec import ModelSpec
from shared.errors import CorruptData, NotFound, Unavailable

LAYERS = 4
SPEC = ChunkShape(layers=LAYERS, kv_heads=1, head_dim=2, tokens=3).spec
Told = list[tuple[str, type]]


class Stored:
    """Remembers in which order its layers were read, and by how many threads at once. ``before``: called with
    each layer. ``begun`` False: it has not until ``begin``."""

    tier = "disk"
    encoding = "exact"

    def __init__(
        self, in_order: bool, before: Callable[[int], object] = lambda layer: None, begun: bool = True
    ) -> None:
        self.in_order, self._before, self._begun = in_order, before, begun
        self.begin: Callable[[], None] = lambda: None
        self.layers: list[int] = []
        self.num_reading = self.most_reading = self.num_closed = 0
        self._lock = threading.Lock()

    def when_begun(self, tell: Callable[[], None]) -> None:
        self.begin = tell
        if self._begun:
            tell()

    def read_layers(
        self, layers: range, k_out_LHTD: Sequence[torch.Tensor], v_out_LHTD: Sequence[torch.Tensor]
    ) -> None:
        assert len(layers) == len(k_out_LHTD) == len(v_out_LHTD)
        with self._lock:
            self.layers += layers
            self.num_reading += 1
            self.most_reading = max(self.most_reading, self.num_reading)
        self._before(layers.start)
        with self._lock:
            self.num_reading -= 1

    def close(self) -> None:
        assert not self.num_reading
        self.num_closed += 1


class NotStored(Stored):
    """Says so when it is asked for anything of it."""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        raise NotFound("not stored")


def listed(chunks: Sequence[Stored], told: Told, at_once: int = 1) -> ReadList:
    def tell(event: FirstLayer | Loaded) -> None:
        told.append((event.key, type(event)))

    reads = [ChunkRead(str(i), chunk, Segment.arriving(SPEC, 3), tell) for i, chunk in enumerate(chunks)]
    return ReadList(reads, LAYERS, at_once)


@pytest.mark.parametrize("in_order", [False, True])
def test_the_first_layers_of_all_chunks_come_first(in_order: bool) -> None:
    order: list[tuple[int, int]] = []
    chunks = [Stored(in_order, lambda layer, i=i: order.append((layer, i))) for i in range(3)]  # type: ignore[misc]
    told: Told = []
    listed(chunks, told).work(threading.Event())
    assert order == [(layer, i) for layer in range(LAYERS) for i in range(3)]
    assert told == [(str(i), kind) for kind in (FirstLayer, Loaded) for i in range(3)]
    assert [chunk.num_closed for chunk in chunks] == [1, 1, 1]


def test_nobody_overtakes_whoever_waits_for_a_chunk_that_comes_in_order() -> None:
    waits, may_go = threading.Event(), threading.Event()

    def wait(layer: int) -> None:
        waits.set()
        assert may_go.wait(60)

    slow, quick = Stored(True, wait), Stored(True)
    told: Told = []
    reads = listed([slow, quick], told)
    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(reads.work, threading.Event())
        assert waits.wait(60)
        reads.work(threading.Event())  # all that another thread can do
        assert (slow.layers, quick.layers) == ([0], [*range(LAYERS)])
        may_go.set()
        other.result(60)
    assert slow.layers == [*range(LAYERS)]
    assert set(told) == {(key, kind) for key in "01" for kind in (FirstLayer, Loaded)}


def test_a_chunk_that_has_not_begun_holds_nobody_up() -> None:
    late = Stored(True, begun=False)
    quick = Stored(True, lambda layer: late.begin() if layer == LAYERS - 1 else None)
    told: Told = []
    listed([late, quick], told).work(threading.Event())
    assert [key for key, _ in told] == ["1", "1", "0", "0"]
    assert (late.layers, quick.layers) == ([*range(LAYERS)], [*range(LAYERS)])
    assert (late.num_closed, quick.num_closed) == (1, 1)


def test_a_chunk_that_turns_out_not_to_be_stored_is_told_beside_one_that_is() -> None:
    """Nobody has asked a far store when its reading is planned."""
    told: Told = []
    lost, found = NotStored(True), Stored(True)
    listed([lost, found], told).work(threading.Event())
    assert told == [("0", Loaded), ("1", FirstLayer), ("1", Loaded)]
    assert (lost.layers, lost.num_closed, found.num_closed) == ([], 1, 1)


def test_whoever_has_nothing_else_to_read_waits_for_a_chunk_to_begin() -> None:
    late = Stored(True, begun=False)
    reads = listed([late], told := [])
    with ThreadPoolExecutor(2) as threads:
        working = [threads.submit(reads.work, threading.Event()) for _ in range(2)]
        late.begin()
        for work in working:
            work.result(60)
    assert told == [("0", FirstLayer), ("0", Loaded)]
    assert (late.layers, late.most_reading, late.num_closed) == ([*range(LAYERS)], 1, 1)


def test_what_has_not_begun_is_given_up_when_the_engine_closes() -> None:
    late = Stored(True, begun=False)
    closing = threading.Event()
    closing.set()
    listed([late], told := []).work(closing)
    late.begin()  # too late
    assert (told, late.layers, late.num_closed) == ([("0", Loaded)], [], 1)


def test_a_file_is_read_by_several_threads_at_once() -> None:
    both = threading.Barrier(2, timeout=60)
    chunk = Stored(False, lambda layer: both.wait())
    reads = listed([chunk], [])
    with ThreadPoolExecutor(2) as threads:
        for working in [threads.submit(reads.work, threading.Event()) for _ in range(2)]:
            working.result(60)
    assert chunk.most_reading == 2
    assert sorted(chunk.layers) == [*range(LAYERS)]


@settings(max_examples=30, deadline=None)
@given(kinds=st.lists(st.booleans(), min_size=1, max_size=5), num_threads=st.integers(1, 4))
def test_every_layer_is_read_once(kinds: list[bool], num_threads: int) -> None:
    chunks = [Stored(in_order) for in_order in kinds]
    told: Told = []
    reads = listed(chunks, told)
    with ThreadPoolExecutor(num_threads) as threads:
        list(threads.map(reads.work, [threading.Event()] * num_threads))
    for chunk in chunks:
        if chunk.in_order:
            assert (chunk.layers, chunk.most_reading) == ([*range(LAYERS)], 1)
        assert sorted(chunk.layers) == [*range(LAYERS)]
        assert chunk.num_closed == 1
    assert sum(kind is Loaded for _, kind in told) == len(chunks)


@pytest.mark.parametrize("in_order", [False, True])
def test_layers_that_are_read_together_are_told_together_and_the_last_are_the_rest(
    in_order: bool,
) -> None:
    told: Told = []
    runs: list[int] = []
    chunks = [Stored(in_order, runs.append) for _ in range(2)]
    listed(chunks, told, at_once=3).work(threading.Event())
    assert runs == [0, 0, 3, 3]
    assert [chunk.layers for chunk in chunks] == [[*range(LAYERS)]] * 2
    assert told == [("0", FirstLayer), ("1", FirstLayer), ("0", Loaded), ("1", Loaded)]
    assert [chunk.num_closed for chunk in chunks] == [1, 1]


@pytest.mark.parametrize("in_order", [False, True])
def test_what_is_dropped_is_not_read_on_nor_told_and_closed_once(in_order: bool) -> None:
    told: Told = []
    dropped: list[ChunkRead] = []
    chunk, other = Stored(in_order, lambda layer: dropped[0].drop() if layer == 1 else None), Stored(in_order)
    reads = [
        ChunkRead(key, stored, Segment.arriving(SPEC, 3), lambda event: told.append((event.key, type(event))))
        for key, stored in (("dropped", chunk), ("other", other))
    ]
    dropped.append(reads[0])
    ReadList(reads, LAYERS).work(threading.Event())
    assert chunk.layers == [0, 1]
    assert told == [("dropped", FirstLayer), ("other", FirstLayer), ("other", Loaded)]
    assert (chunk.num_closed, other.num_closed) == (1, 1)


@pytest.mark.parametrize("in_order", [False, True])
def test_what_is_given_up_is_told_and_closed(in_order: bool) -> None:
    closing = threading.Event()
    first, second = Stored(in_order, lambda layer: closing.set()), Stored(in_order)
    told: Told = []
    listed([first, second], told).work(closing)
    assert (first.layers, second.layers) == ([0], [])
    assert [key for key, kind in told if kind is Loaded] == ["1", "0"]
    assert (first.num_closed, second.num_closed) == (1, 1)


@pytest.mark.parametrize(
    ("failure", "broken"), [(None, False), (CorruptData("a bit"), True), (Unavailable("away"), False)]
)
def test_a_chunk_is_broken_if_it_is_not_what_was_stored(failure: Exception | None, broken: bool) -> None:
    def fail(layer: int) -> None:
        if failure is not None and layer == 1:
            raise failure

    told: list[FirstLayer | Loaded] = []
    read = ChunkRead("a", Stored(False, fail), Segment.arriving(SPEC, 3), told.append)
    ReadList([read], LAYERS).work(threading.Event())
    loaded = [event for event in told if isinstance(event, Loaded)]
    assert [(event.broken, event.segment is None) for event in loaded] == [(broken, failure is not None)]


def test_what_is_given_up_is_not_called_broken() -> None:
    closing = threading.Event()
    closing.set()
    told: list[FirstLayer | Loaded] = []
    ReadList([ChunkRead("a", Stored(False), Segment.arriving(SPEC, 3), told.append)], LAYERS).work(closing)
    assert told == [Loaded("a", None, False)]


class Unplannable(Stored):
    """Fails where nobody expects it to, before it is read."""

    @property
    def in_order(self) -> bool:
        raise RuntimeError("no connection to say it by")

    @in_order.setter
    def in_order(self, _: bool) -> None:
        pass


class HalfBroken(NoSource):
    def __init__(self) -> None:
        self.stored = {"well": Stored(in_order=True), "broken": Unplannable(in_order=True)}

    def open(
        self, chunk_lens: Mapping[str, int], encoding: str = "", traceparent: str = "", tenant: str = ""
    ) -> Mapping[str, StoredSegment]:
        return {key: self.stored[key] for key in chunk_lens if key in self.stored}


def test_whatever_fails_before_the_first_layer_every_chunk_is_told_once_and_closed() -> None:
    source, told = HalfBroken(), dict[str, list[FirstLayer | Loaded]]()
    loader = Loader(source, SPEC, num_threads=1)
    all_told = threading.Event()

    def tell(event: FirstLayer | Loaded) -> None:
        told.setdefault(event.key, []).append(event)
        if len(told) == 3:
            all_told.set()

    loader.load(ChunkLoad(dict.fromkeys(("well", "broken", "absent"), 3)), tell)
    assert all_told.wait(30)
    loader.close()
    for key, events in told.items():
        assert [type(event) for event in events] == [Loaded], key
        assert isinstance(events[0], Loaded)
        assert events[0].segment is None
        assert not events[0].broken
    assert [one.num_closed for one in source.stored.values()] == [1, 1]


def test_a_chunk_that_cannot_be_read_is_told_to_be_absent_and_the_others_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, arriving = HalfBroken(), Segment.arriving

    def sometimes(spec: ModelSpec, num_tokens: int) -> Segment:
        if num_tokens == 5:
            raise RuntimeError("no such thing as memory")
        return arriving(spec, num_tokens)

    monkeypatch.setattr(Segment, "arriving", sometimes)
    source.stored = {"broken": Stored(in_order=True), "well": Stored(in_order=True)}
    told, all_told = list[FirstLayer | Loaded](), threading.Event()

    def tell(event: FirstLayer | Loaded) -> None:
        told.append(event)
        if sum(isinstance(one, Loaded) for one in told) == 2:
            all_told.set()

    loader = Loader(source, SPEC, num_threads=1)
    loader.load(ChunkLoad({"broken": 5, "well": 3}), tell)
    assert all_told.wait(30)
    loader.close()
    assert {one.key: one.segment is not None for one in told} == {"broken": False, "well": True}
    assert [one.num_closed for one in source.stored.values()] == [1, 1]
