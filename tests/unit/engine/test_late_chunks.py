"""Chunks whose KV comes late are computed beside their load: what ends first is used, and the other one does
no harm. Loads end when a test says so, never by a clock."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pytest
import torch

from shared.engine import Engine
from shared.engine.kv.arrival import Arrival
from shared.engine.kv.late_chunks import LateChunks
from shared.engine.kv.loader import ChunkLoad
from shared.engine.kv.residency import LINK, Entry, State
from shared.errors import Cancelled, CorruptData
from shared.generation.asked import GenerateRequest, total_len
from shared.generation.modes import Recompute, ReuseMode
from tests.engine_runs import PATIENCE_S, Prompts, Run, Shelf, engine_of, run
from tests.oracles import Generated, tiny_model
from tests.unit.engine.test_residency import SPEC

pytestmark = pytest.mark.usefixtures("one_thread")

LAYERS = 3
PREFIX = (5, 9, 200, 31)
MODES = {
    ReuseMode.REORDERED: Recompute(),
    ReuseMode.COMPOSITE: Recompute(),
    ReuseMode.APE: Recompute(),
    ReuseMode.EPIC: Recompute(ratio=0.2),
    ReuseMode.CACHEBLEND: Recompute(ratio=0.2),
    ReuseMode.QUERY_ATTENTION: Recompute(ratio=0.2),
    ReuseMode.TOKENS: Recompute(tokens=(1, 20, 21)),
}


def late_engine(shelf: Shelf | None = None, **settings: object) -> Engine:
    model = tiny_model("llama3", num_hidden_layers=LAYERS)
    ours = {"batch_invariant": True, "late_rows": 512, "late_from_s": 0.0, "overlap_from_s": 0.0}
    return engine_of(hf_model=model, source=shelf, **ours | settings)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Whatever waits for it goes on at the end."""
    event = threading.Event()
    yield event
    event.set()


def shelf_of(request: GenerateRequest) -> tuple[Shelf, dict[tuple[int, int], Generated]]:
    """The chunks of the request on a shelf, and its answers."""
    shelf = Shelf()
    engine = late_engine(shelf, late_rows=0)
    (first,) = run(engine, replace(request, request_id="first"))
    engine.shut_down()
    shelf.saves.clear()
    return shelf, first.branches()


def closed(gate: threading.Event, from_layer: int = 0) -> Callable[[str, int], None]:
    def before_layer(chunk_id: str, layer: int) -> None:
        if layer >= from_layer:
            assert gate.wait(PATIENCE_S)

    return before_layer


def step_until(engine: Engine, is_so: Callable[[], bool]) -> None:
    for _ in range(100_000):
        if is_so():
            return
        if not engine.step() and not is_so():
            engine.wait()
        engine.check_invariants()
    raise AssertionError(f"it never comes to that: {engine.stats()}")


@dataclass
class Begun:
    """A request whose loads hang while its chunks are being computed, 64 rows of a step at a time."""

    request: GenerateRequest
    before_layer: Callable[[str, int], None]
    settings: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.shelf, self.answers = shelf_of(self.request)
        self.engine = late_engine(self.shelf, late_rows=64, **self.settings)
        self.one = Run(self.request)
        self.shelf.before_layer = self.before_layer
        self.engine.submit(self.request, self.one.events.append)
        step_until(self.engine, lambda: computing(self.engine))


def computing(engine: Engine, at_least: int = 1) -> bool:
    return sum(e.branch.segment.length >= at_least for e in computed_late(engine) if e.branch) > 0


def computed_late(engine: Engine) -> list[Entry]:
    return [entry for entry in engine._cache._pool.computing() if entry.late]


class TestComputedFirst:
    @pytest.mark.parametrize("from_layer", range(LAYERS))
    def test_it_is_used_and_not_stored_again(self, gate: threading.Event, from_layer: int) -> None:
        request = Prompts(late_engine()).request(7, (20, 1, 33), (9, 4))
        shelf, answers = shelf_of(request)
        engine = late_engine(shelf)
        shelf.before_layer = closed(gate, from_layer)
        (one,) = run(engine, request)
        assert one.branches() == answers
        usage, late = one.done.usage, engine.stats().late
        assert (usage.recomputed_tokens, usage.loaded_tokens) == (54 + 13, 0)
        assert usage.chunk_origins == ("computed",) * 3
        assert (late.num_chunks, late.num_tokens, late.num_in_vain) == (3, 54, 0)
        gate.set()
        engine.shut_down()
        assert shelf.saves == []
        assert shelf.num_unclosed == 0

    def test_before_the_store_said_whether_it_is_stored(self, gate: threading.Event) -> None:
        request = Prompts(late_engine()).request(7, (20, 1, 33), (9, 4))
        shelf, answers = shelf_of(request)
        absent = request.chunks[2].chunk_id
        del shelf.kv[absent]
        engine = late_engine(shelf)
        shelf.before_open = lambda: None if gate.wait(PATIENCE_S) else pytest.fail("never opened")
        (one,) = run(engine, request)
        assert one.branches() == answers
        assert engine.stats().late.num_chunks == 3
        gate.set()
        run(engine, replace(request, request_id="again"))
        engine._loader._readers.shutdown(wait=True)
        engine.step()
        engine.shut_down()
        assert shelf.saves == [(absent, False)]

    def test_what_turns_out_to_be_stored_nowhere_in_time_counts_as_written(
        self, gate: threading.Event
    ) -> None:
        request = Prompts(late_engine()).request(7, (20, 1, 33), (9,))
        shelf, answers = shelf_of(request)
        del shelf.kv[request.chunks[2].chunk_id]
        engine = late_engine(shelf)
        shelf.before_open = lambda: None if gate.wait(PATIENCE_S) else pytest.fail("never opened")
        one = Run(request)
        engine.submit(request, one.events.append)
        step_until(engine, lambda: engine.stats().late.num_chunks == 3)
        gate.set()
        engine._loader._readers.shutdown(wait=True)
        step_until(engine, lambda: one.ended)
        assert one.branches() == answers
        usage = one.done.usage
        assert (usage.written_tokens, usage.recomputed_tokens) == (33, 54 + 9)
        engine.shut_down()
        assert shelf.num_unclosed == 0

    def test_only_what_comes_late_is_computed(self, gate: threading.Event) -> None:
        request = Prompts(late_engine()).request(7, (20, 40, 33))
        shelf, answers = shelf_of(request)
        engine, slow = late_engine(shelf, loader_threads=3), request.chunks[1].chunk_id

        def before_layer(chunk_id: str, layer: int) -> None:
            if chunk_id == slow:
                assert gate.wait(PATIENCE_S)

        shelf.before_layer = before_layer
        (one,) = run(engine, request)
        assert one.branches() == answers
        usage = one.done.usage
        assert usage.recomputed_tokens + usage.loaded_tokens == 20 + 40 + 33 + 9
        assert usage.recomputed_tokens >= 40 + 9
        gate.set()
        engine.shut_down()

    def test_the_request_tells_which_were_late_in_its_stages(self, gate: threading.Event) -> None:
        request = replace(Prompts(late_engine()).request(7, (20, 33)), traceparent="00-1-2-01")
        shelf, _ = shelf_of(request)
        engine = late_engine(shelf)
        shelf.before_layer = closed(gate)
        (one,) = run(engine, request)
        (load,) = (stage for stage in one.done.stages if stage.name == "load")
        counts = dict(load.counts)
        assert [counts[f"chunks.{what}"] for what in ("late", "lost", "loaded")] == [2, 0, 0]
        gate.set()
        engine.shut_down()


class TestLoadedFirst:
    def test_what_was_computed_is_dropped(self, gate: threading.Event) -> None:
        request = Prompts(late_engine()).request(7, (200,))
        begun = Begun(request, closed(gate))
        shelf, engine, one = begun.shelf, begun.engine, begun.one
        gate.set()
        engine._loader._readers.shutdown(wait=True)  # all of it is there
        step_until(engine, lambda: one.ended)
        assert one.branches() == begun.answers
        usage, late = one.done.usage, engine.stats().late
        assert (usage.recomputed_tokens, usage.loaded_tokens) == (9, 200)
        assert late.num_chunks == late.num_tokens == 0
        assert 64 <= late.num_in_vain < 200
        engine.shut_down()
        assert shelf.saves == []

    def test_nobody_waits_for_it_any_more(self, gate: threading.Event) -> None:
        request = Prompts(late_engine()).request(7, (200,))
        begun = Begun(request, closed(gate))
        shelf, engine, one = begun.shelf, begun.engine, begun.one
        engine.cancel(request.request_id)
        step_until(engine, lambda: one.ended)
        assert isinstance(one.error, Cancelled)
        assert not computed_late(engine)
        gate.set()
        step_until(engine, lambda: request.chunks[0].chunk_id in engine.stats().resident_chunk_ids)
        (again,) = run(engine, replace(request, request_id="again"))
        assert again.branches() == begun.answers
        assert (again.done.usage.recomputed_tokens, again.done.usage.loaded_tokens) == (9, 0)
        engine.shut_down()
        assert shelf.num_unclosed == 0

    def test_a_broken_copy_is_replaced_by_what_was_computed(self, gate: threading.Event) -> None:
        request = Prompts(late_engine()).request(7, (200,))

        def break_off(chunk_id: str, layer: int) -> None:
            assert gate.wait(PATIENCE_S)
            raise CorruptData("flipped")

        begun = Begun(request, break_off)
        shelf, engine, one = begun.shelf, begun.engine, begun.one
        gate.set()
        engine._loader._readers.shutdown(wait=True)
        step_until(engine, lambda: one.ended)
        assert one.branches() == begun.answers
        assert one.done.usage.recomputed_tokens == 200 + 9
        assert engine.stats().late.num_chunks == 0, "it was lost"
        engine.shut_down()
        assert shelf.saves == [(request.chunks[0].chunk_id, True)]


class TestWhenNot:
    def test_not_if_stored_kv_is_always_waited_for(self, gate: threading.Event) -> None:
        request = Prompts(late_engine()).request(7, (20, 1, 33))
        shelf, answers = shelf_of(request)
        engine = late_engine(shelf, late_rows=0)
        one = Run(request)
        shelf.before_layer = closed(gate)
        engine.submit(request, one.events.append)
        for _ in range(20):
            engine.step()
            engine.wait()
            assert not engine._cache.missing._entries
        gate.set()
        step_until(engine, lambda: one.ended)
        assert one.branches() == answers
        assert one.done.usage.loaded_tokens == 54
        engine.shut_down()

    def test_not_while_requests_wait(self, gate: threading.Event) -> None:
        prompts = Prompts(late_engine())
        request, other = prompts.request(7, (200,)), prompts.request(5, (20,))
        begun, waiting = Begun(request, closed(gate), {"max_running_branches": 1}), Run(other)
        engine, one = begun.engine, begun.one
        (entry,) = computed_late(engine)
        assert entry.branch is not None
        engine.submit(other, waiting.events.append)
        num_computed = entry.branch.segment.length
        for _ in range(20):
            engine.step()
            assert entry.branch.segment.length == num_computed, "its rows go on"
        engine.cancel(other.request_id)
        step_until(engine, lambda: one.ended)
        assert one.branches() == begun.answers
        assert engine.stats().late.num_tokens == 200
        gate.set()
        engine.shut_down()

    def test_without_memory_for_it_its_load_is_waited_for(self, gate: threading.Event) -> None:
        request = Prompts(late_engine()).request(7, (200,))
        shelf, answers = shelf_of(request)
        engine = late_engine(shelf, late_rows=64)
        one = Run(request)
        shelf.before_layer = closed(gate)
        layers, asked = engine.model.hf_model.model.layers, threading.Event()

        def no_room(*_: object) -> None:
            if computed_late(engine):
                asked.set()
                raise torch.OutOfMemoryError("no room")

        layers[1].register_forward_hook(no_room)
        engine.submit(request, one.events.append)
        step_until(engine, lambda: asked.is_set() and not computed_late(engine))
        gate.set()
        step_until(engine, lambda: one.ended)
        assert one.branches() == answers
        assert one.done.usage.loaded_tokens == 200
        engine.shut_down()


class TestChains:
    def test_what_is_missing_of_the_chain_is_computed_too(self, gate: threading.Event) -> None:
        prompts = Prompts(late_engine())
        document = prompts.document(PREFIX, (6, 30, 64, 20))
        asked = prompts.request(prefix=PREFIX, chunks=())
        request = replace(asked, chunks=(document[3], document[1]), links=tuple(document))
        shelf, answers = shelf_of(request)
        engine = late_engine(shelf)
        shelf.before_layer = closed(gate)
        (one,) = run(engine, request)
        assert one.branches() == answers
        assert one.done.usage.recomputed_tokens == 30 + 20 + 9
        gate.set()
        engine.shut_down()
        assert shelf.saves == []
        assert shelf.num_unclosed == 0

    def test_chunks_that_stand_behind_each_other_are_computed_once(self, gate: threading.Event) -> None:
        prompts = Prompts(late_engine())
        document = prompts.document(PREFIX, (30, 64, 20))
        asked = prompts.request(prefix=PREFIX, chunks=())
        request = replace(asked, chunks=tuple(reversed(document)), links=tuple(document))
        shelf, answers = shelf_of(request)
        engine = late_engine(shelf)
        shelf.before_layer = closed(gate)
        (one,) = run(engine, request)
        assert one.branches() == answers
        assert one.done.usage.chunk_origins == ("computed",) * 3
        assert engine.stats().late.num_tokens == 30 + 64 + 20
        assert not any(key.startswith(LINK) for key in engine._cache._pool.ready_keys())
        gate.set()
        engine.shut_down()
        assert shelf.saves == []

    def test_a_chunk_of_a_chain_is_computed_though_who_asked_for_it_has_left(
        self, gate: threading.Event
    ) -> None:
        prompts = Prompts(late_engine())
        document = prompts.document(PREFIX, (130, 64))
        asked = replace(prompts.request(prefix=PREFIX, chunks=()), links=tuple(document))
        request = replace(asked, chunks=(document[1],))
        shelf, _ = shelf_of(replace(request, chunks=tuple(document)))
        answers = run(late_engine(shelf, late_rows=0), request)[0].branches()
        engine = late_engine(shelf, late_rows=64)
        shelf.before_layer = closed(gate)
        first, other = Run(replace(asked, request_id="first", chunks=(document[0],))), Run(request)
        for one in (first, other):
            engine.submit(one.request, one.events.append)
        step_until(engine, lambda: computing(engine))
        engine.cancel("first")
        step_until(engine, lambda: other.ended)
        assert other.branches() == answers
        assert other.done.usage.recomputed_tokens == 64 + 9
        gate.set()
        engine.shut_down()
        assert shelf.num_unclosed == 0

    def test_a_chunk_whose_chain_nobody_knows_is_waited_for_and_not_isolated(
        self, gate: threading.Event
    ) -> None:
        prompts = Prompts(late_engine())
        document = prompts.document(PREFIX, (6, 30, 64))
        asked = prompts.request(prefix=PREFIX, chunks=())
        shelf, answers = shelf_of(replace(asked, chunks=(document[2],), links=tuple(document)))
        request = replace(asked, chunks=(document[2],))
        engine = late_engine(shelf)
        one, looked = Run(request), threading.Event()
        shelf.chain = lambda *_: looked.set()  # type: ignore[method-assign, func-returns-value]
        shelf.before_layer = closed(gate)
        engine.submit(request, one.events.append)
        step_until(engine, looked.is_set)
        gate.set()
        step_until(engine, lambda: one.ended)
        assert one.branches() == answers
        assert (one.done.usage.isolated_tokens, one.done.usage.loaded_tokens) == (0, 64)
        engine.shut_down()

    def test_the_source_says_what_stands_in_front_of_it(self, gate: threading.Event) -> None:
        prompts = Prompts(late_engine())
        document = prompts.document(PREFIX, (6, 30, 64))
        asked = prompts.request(prefix=PREFIX, chunks=())
        shelf, answers = shelf_of(replace(asked, chunks=(document[2],), links=tuple(document)))
        shelf.chains = {document[2].chunk_id: document[:2]}
        engine = late_engine(shelf)
        shelf.before_layer = closed(gate)
        (one,) = run(engine, replace(asked, chunks=(document[2],)))
        assert one.branches() == answers
        assert one.done.usage.recomputed_tokens == 64 + 9
        assert one.done.usage.written_tokens == 0, "what is stored is only read, late"
        gate.set()
        engine.shut_down()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_answers_keep_their_bits_whatever_is_late(mode: ReuseMode, seed: int, gate: threading.Event) -> None:
    """Against the slow twin, which always loads."""
    draw = random.Random(f"{mode} {seed}")
    prompts = Prompts(late_engine(), seed=seed)
    lens = [draw.choice((1, 17, 40, 64, 130)) for _ in range(4)]
    document = prompts.document(PREFIX, lens)
    asked = [
        replace(
            prompts.request(prefix=PREFIX, chunks=(), questions=(9, 4), reuse=mode, recompute=MODES[mode]),
            chunks=tuple(draw.sample(document, draw.randint(1, 3)) or document[:1]),
            links=tuple(document),
        )
        for _ in range(4)
    ]
    asked = [one for one in asked if mode is not ReuseMode.TOKENS or total_len(one.chunks) > 21]
    shelf, twin = Shelf(), late_engine(Shelf(), late_rows=0)
    shelf.encodings = dict.fromkeys(draw.sample([chunk.chunk_id for chunk in document], 2), "int8")
    filling = late_engine(shelf, late_rows=0)
    answers = [run(twin, one)[0].branches() for one in asked]
    for one in asked:
        run(filling, one)
    for stopped in (twin, filling):
        stopped.shut_down()
    shelf.saves.clear()

    engine = late_engine(shelf, late_rows=draw.choice((64, 512)), loader_threads=draw.choice((1, 3)))
    gates = {chunk.chunk_id: (draw.randrange(LAYERS), draw.choice((0, 3, 30, 10_000))) for chunk in document}
    turns = [0]

    def before_layer(chunk_id: str, layer: int) -> None:
        at_layer, until = gates[chunk_id]
        while layer == at_layer and turns[0] < until and not gate.wait(0.001):
            pass

    shelf.before_layer = before_layer
    runs = [Run(one) for one in asked]
    for one in runs:
        engine.submit(one.request, one.events.append)

    def ended() -> bool:
        turns[0] += 1
        return all(one.ended for one in runs)

    step_until(engine, ended)
    gate.set()
    for one, known in zip(runs, answers, strict=True):
        assert one.branches() == known
    engine.shut_down()
    assert shelf.saves == [], "all of it was stored"
    assert shelf.num_unclosed == 0


class TestInVirtualTime:
    """When a load counts as late, to the instant."""

    def entry(self, late: LateChunks, num_tokens: int = 100) -> Entry:
        entry = Entry("a", tuple(range(num_tokens)), State.LOADING, chain=())
        entry.load = ChunkLoad({"a": num_tokens}, late.now_s)
        return entry

    def is_late(self, late: LateChunks, entry: Entry) -> bool:
        return late.worth_computing([entry], lambda _: {}, 512, 0) == ("a",)

    def test_a_load_of_which_nothing_is_known_is_late_when_computing_would_have_ended(self) -> None:
        now = [50.0]
        late = LateChunks(SPEC, 0.1, lambda: now[0])
        entry = self.entry(late)
        now[0] = 60.0
        assert not self.is_late(late, entry), "nobody knows how long computing takes"
        late.estimates.computed(1.0, 100)
        now[0] = 51.0
        assert not self.is_late(late, entry)
        now[0] = 51.15
        assert self.is_late(late, entry)

    def test_what_is_known_to_be_slow_is_late_from_the_first_moment(self) -> None:
        now = [50.0]
        late = LateChunks(SPEC, 0.1, lambda: now[0])
        late.estimates.computed(1.0, 100)
        late.estimates.found(2.0)
        assert self.is_late(late, self.entry(late))
        late.estimates.found(0.0)
        late.estimates.found(0.0)
        late.estimates.found(0.0)
        assert not self.is_late(late, self.entry(late))

    def test_a_chunk_that_was_found_is_judged_by_its_tier(self) -> None:
        now = [50.0]
        late = LateChunks(SPEC, 0.1, lambda: now[0])
        late.estimates.computed(1.0, 100)
        num_bytes = 100 * SPEC.kv_bytes_per_token
        late.estimates.read("disk", 0.01, num_bytes)
        late.estimates.read("objects", 3.0, num_bytes)
        for tier in ("disk", "objects"):
            entry = self.entry(late)
            assert entry.load is not None
            entry.load.found_s, entry.load.tiers = 50.0, {"a": tier}
            assert self.is_late(late, entry) == (tier == "objects")


@pytest.mark.parametrize("together", [1, 2])
def test_layers_come_at_the_pace_of_those_behind_the_first(together: int) -> None:
    arrival = Arrival(3 * together)
    assert arrival.pace_s is None
    arrival.layers_arrived(range(together))
    assert arrival.pace_s is None, "how long the first took says nothing of the others"
    arrival.layers_arrived(range(together, 2 * together))
    assert arrival.pace_s is not None
    arrival.layers_arrived(range(2 * together, 3 * together))
    assert arrival.pace_s == 0.0


def test_snapshots_say_what_is_on_its_way_and_from_where(gate: threading.Event) -> None:
    """What links are busy with, whether or not it is computed meanwhile."""
    request = Prompts(late_engine()).request(7, (200, 100))
    shelf, _ = shelf_of(request)
    engine = late_engine(shelf, late_rows=0)
    one, shelf.before_layer = Run(request), closed(gate, from_layer=1)
    assert engine.stats().loading_bytes == {}
    engine.submit(request, one.events.append)
    whole = 300 * engine.model.spec.kv_bytes_per_token
    found: list[dict[str, int]] = []

    def first_layers_there() -> bool:
        found.append(dict(engine.stats().loading_bytes))
        return sum(found[-1].values()) == whole * (LAYERS - 1) // LAYERS

    step_until(engine, first_layers_there)
    assert max(sum(one.values()) for one in found) == whole
    gate.set()
    step_until(engine, lambda: one.ended)
    assert sum(engine.stats().loading_bytes.values()) == 0
    engine.shut_down()


def test_snapshots_say_how_long_computing_and_reading_took() -> None:
    """What routing goes by; the first is measured where late chunks may be computed."""
    stored, new = Prompts(late_engine()).request(7, (200,)), Prompts(late_engine(), seed=1).request(7, (150,))
    shelf, _ = shelf_of(stored)
    engine = late_engine(shelf)
    assert (engine.stats().compute_s, engine.stats().read_s) == (None, {})
    run(engine, stored)
    run(engine, replace(new, request_id="new"))
    stats = engine.stats()
    assert stats.compute_s is not None
    assert stats.compute_s > 0
    assert [seconds > 0 for seconds in stats.read_s.values()] == [True]
    engine.shut_down()
