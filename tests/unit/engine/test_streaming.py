"""A request may begin while its stored KV is still being read: that it does, and that nobody can tell by the
answers."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import pytest

from shared.engine import Engine
from shared.engine.kv.arrival import Arrival, GivenUp, Patience
from shared.errors import Cancelled, CorruptData, DeadlineExceeded, Unavailable
from shared.generation.asked import GenerateRequest
from shared.generation.modes import Recompute, ReuseMode
from shared.generation.told import DoneEvent
from tests.engine_runs import PATIENCE_S, Prompts, Run, Shelf, engine_of, run
from tests.oracles import Generated, tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")

LAYERS = 5
MODES = [ReuseMode.REORDERED, ReuseMode.COMPOSITE]


def deep_engine(shelf: Shelf | None = None, **settings: object) -> Engine:
    model = tiny_model("llama3", num_hidden_layers=LAYERS)
    return engine_of(
        hf_model=model, source=shelf, **{"batch_invariant": True, "overlap_from_s": 0.0} | settings
    )


def stored(request: GenerateRequest) -> tuple[Shelf, dict[tuple[int, int], Generated]]:
    """The chunks of the request on a shelf, and its answers with everything resident."""
    shelf = Shelf()
    engine = deep_engine(shelf)
    run(engine, replace(request, request_id="first"))
    (again,) = run(engine, replace(request, request_id="again"))
    assert again.done.usage.recomputed_tokens == sum(map(len, request.questions))
    engine.shut_down()
    return shelf, again.branches()


def on_layer(engine: Engine, layer: int, call: Callable[[], None]) -> None:
    """Calls it whenever a pass has computed this layer."""
    engine.model.hf_model.model.layers[layer].register_forward_hook(lambda *_: call())


@pytest.mark.parametrize("mode", MODES)
def test_a_layer_is_computed_while_the_next_one_is_still_being_read(mode: ReuseMode) -> None:
    request = Prompts(deep_engine(), seed=1).request(7, (20, 1, 33), (9, 4), mode)
    shelf, answers = stored(request)
    engine = deep_engine(shelf)
    computed = [threading.Event() for _ in range(LAYERS)]

    def read_when_the_layer_before_was_computed(chunk_id: str, layer: int) -> None:
        if layer and not computed[layer - 1].wait(PATIENCE_S):
            raise AssertionError(f"layer {layer - 1} was not computed before layer {layer} was read")

    shelf.before_layer = read_when_the_layer_before_was_computed
    # its pass must not be mistaken for the one under test
    run(engine, replace(request, request_id="prefix only", chunks=()))
    for layer, event in enumerate(computed):
        on_layer(engine, layer, event.set)
    (one,) = run(engine, request)
    assert one.branches() == answers
    assert one.done.usage.recomputed_tokens == sum(map(len, request.questions)), "nothing was recomputed"
    engine.shut_down()
    assert shelf.num_unclosed == 0


def test_without_pipelining_nothing_is_computed_before_the_last_layer_is_read() -> None:
    request = Prompts(deep_engine(), seed=2).request()
    shelf, answers = stored(request)
    engine = deep_engine(shelf, pipelined=False)
    run(engine, replace(request, request_id="prefix only", chunks=()))
    order: list[str] = []
    on_layer(engine, 0, lambda: order.append("computed"))
    shelf.before_layer = lambda chunk_id, layer: order.append("read")
    (one,) = run(engine, request)
    assert one.branches() == answers
    assert order[: 3 * LAYERS] == ["read"] * 3 * LAYERS
    engine.shut_down()


def test_the_first_layer_of_every_chunk_is_read_before_the_second_of_any() -> None:
    request = Prompts(deep_engine(), seed=3).request()
    shelf, _ = stored(request)
    layers: list[int] = []
    shelf.before_layer = lambda chunk_id, layer: layers.append(layer)
    engine = deep_engine(shelf, loader_threads=1)
    run(engine, request)
    assert layers == [layer for layer in range(LAYERS) for _ in request.chunks]
    engine.shut_down()


def test_who_can_run_does_not_wait_for_layers_of_another_request() -> None:
    prompts = Prompts(deep_engine(), seed=4)
    slow, quick = prompts.request(), prompts.request(chunks=(11,), max_tokens=12)
    shelf, slow_answers = stored(slow)
    engine = deep_engine(shelf)
    (known,) = run(engine, replace(quick, request_id="makes it resident"))
    ahead, quick_ended = Run(slow), Run(quick)
    ended = threading.Event()

    def arrive(chunk_id: str, layer: int) -> None:
        if layer == LAYERS - 1:
            if ahead.request.chunks[0].chunk_id == chunk_id:
                # from a loader's thread, while the engine's waits for this very layer
                engine.submit(quick, sink)
            if not ended.wait(PATIENCE_S):
                raise AssertionError("the other request was held up")

    def sink(event: object) -> None:
        quick_ended.events.append(event)  # type: ignore[arg-type]
        if isinstance(event, DoneEvent):
            assert not ahead.events, "it had to wait for a layer that was not there"
            ended.set()

    shelf.before_layer = arrive
    engine.submit(slow, ahead.events.append)
    step_until(engine, ahead)
    assert ended.is_set()
    assert quick_ended.branches() == known.branches()
    assert ahead.branches() == slow_answers
    assert ahead.done.usage.recomputed_tokens == sum(map(len, slow.questions))
    engine.shut_down()


@pytest.mark.parametrize("layer", range(LAYERS))
@pytest.mark.parametrize(
    "error", [CorruptData("flipped"), Unavailable("did not arrive whole"), RuntimeError("a bug")]
)
def test_a_chunk_that_fails_at_any_layer_is_recomputed_and_replaced_where_it_was_broken(
    error: Exception, layer: int
) -> None:
    request = Prompts(deep_engine(), seed=5).request(7, (20, 1, 33), (9, 4))
    shelf, answers = stored(request)
    bad = request.chunks[0].chunk_id
    shelf.saves.clear()
    engine = deep_engine(shelf)
    began = threading.Event()
    on_layer(engine, 0, began.set)

    def fail(chunk_id: str, at: int) -> None:
        if at == layer and chunk_id == bad:
            if layer:
                assert began.wait(PATIENCE_S)
            raise error

    shelf.before_layer = fail
    run(engine, replace(request, request_id="prefix only", chunks=()))
    began.clear()
    (one,) = run(engine, request)
    assert one.branches() == answers
    engine.shut_down()
    assert shelf.saves == [(bad, isinstance(error, CorruptData))]
    assert one.done.usage.recomputed_tokens == sum(map(len, request.questions)) + 20
    assert shelf.num_unclosed == 0


def test_a_request_cancelled_while_it_waits_for_a_layer_ends_and_the_next_one_finds_its_chunks() -> None:
    request = Prompts(deep_engine(), seed=6).request()
    shelf, answers = stored(request)
    engine = deep_engine(shelf)
    one, cancelled = Run(request), threading.Event()

    def cancel_in_the_middle(chunk_id: str, layer: int) -> None:
        if layer == 2 and not one.ended:
            engine.cancel(request.request_id)
            assert cancelled.wait(PATIENCE_S), "the engine waits for the layer of a cancelled request"

    def sink(event: object) -> None:
        one.events.append(event)  # type: ignore[arg-type]
        cancelled.set()

    shelf.before_layer = cancel_in_the_middle
    engine.submit(request, sink)
    step_until(engine, one)
    assert isinstance(one.error, Cancelled)
    shelf.before_layer = lambda chunk_id, layer: None
    (again,) = run(engine, replace(request, request_id="again"))
    assert again.branches() == answers
    engine.shut_down()


def test_a_layer_that_takes_very_long_ends_the_pass_but_not_the_request() -> None:
    request = Prompts(deep_engine(), seed=7).request()
    shelf, answers = stored(request)
    engine = deep_engine(shelf)
    one, idle = Run(request), threading.Event()

    def stall(chunk_id: str, layer: int) -> None:
        if layer == 3:
            assert idle.wait(PATIENCE_S)

    shelf.before_layer = stall
    engine.submit(request, one.events.append)
    give_up = time.monotonic() + PATIENCE_S
    ran = False
    while not (ran and not engine.step()):  # it ran, and it gives up running: it waits for all layers now
        ran = ran or engine.stats().num_steps > 1
        engine.step()
        engine.check_invariants()
        assert time.monotonic() < give_up
    idle.set()
    step_until(engine, one)
    assert one.branches() == answers
    assert one.done.usage.recomputed_tokens == sum(map(len, request.questions))
    engine.shut_down()


def test_a_mode_that_computes_nothing_in_the_later_layers_waits_for_them_all_the_same() -> None:
    prompts = Prompts(deep_engine(), seed=11)
    request = prompts.request(reuse=ReuseMode.CACHEBLEND, recompute=Recompute(ratio=0.2))
    shelf, idle = Shelf(), threading.Event()
    engine = deep_engine(shelf)
    (first,) = run(engine, replace(request, request_id="first"))
    engine.shut_down()

    def stall(chunk_id: str, layer: int) -> None:
        if layer == LAYERS - 1:
            assert idle.wait(PATIENCE_S)

    engine = deep_engine(shelf)
    one = Run(request)
    shelf.before_layer = stall
    engine.submit(request, one.events.append)
    give_up = time.monotonic() + PATIENCE_S
    while not (engine.stats().num_steps > 1 and not engine.step()):
        engine.step()
        engine.check_invariants()
        assert time.monotonic() < give_up
    idle.set()
    step_until(engine, one)
    assert one.branches() == first.branches()
    engine.shut_down()


def test_closing_the_engine_gives_up_what_is_being_read() -> None:
    request = Prompts(deep_engine(), seed=8).request()
    shelf, _ = stored(request)
    engine = deep_engine(shelf)
    one, reading, release = Run(request), threading.Event(), threading.Event()
    layers: list[int] = []

    def note(chunk_id: str, layer: int) -> None:
        layers.append(layer)
        reading.set()
        assert release.wait(PATIENCE_S)

    shelf.before_layer = note
    engine.submit(request, one.events.append)
    engine.step()
    assert reading.wait(PATIENCE_S)
    engine.close()
    threading.Timer(0.05, release.set).start()
    engine.shut_down()
    assert isinstance(one.error, Unavailable)
    assert len(layers) <= 2 * 2, "the loader read on"
    assert shelf.num_unclosed == 0


def test_chunks_of_a_request_that_must_wait_are_asked_for_at_once() -> None:
    shelf = Shelf()
    engine = deep_engine(shelf, max_running_branches=1)
    prompts = Prompts(engine, seed=9)
    first, second = prompts.request(chunks=(20, 4)), prompts.request(chunks=(20, 5))
    second = replace(second, prefix_ids=first.prefix_ids, chunks=(*second.chunks, *first.chunks[:1]))
    runs = run(engine, first, second)
    assert all(one.ended for one in runs)
    engine.shut_down()
    assert shelf.prefetched == [tuple(c.chunk_id for c in second.chunks)]


def test_resident_chunks_and_those_of_a_request_that_is_served_at_once_are_not_asked_for() -> None:
    shelf = Shelf()
    engine = deep_engine(shelf, max_running_branches=1)
    prompts = Prompts(engine, seed=10)
    first, other = prompts.request(chunks=(20, 4)), prompts.request()
    run(engine, first)
    run(engine, other, replace(first, request_id="again"))
    engine.shut_down()
    assert shelf.prefetched == []


class TestPatience:
    def test_it_ends_when_all_waiting_together_took_too_long(self) -> None:
        arrival, patience = Arrival(2), Patience(total_s=0.02)
        arrival.layers_arrived(range(1))
        arrival.wait_for(0, patience)
        with pytest.raises(GivenUp) as end:
            arrival.wait_for(1, patience)
        assert end.value.stalled

    def test_it_ends_at_once_when_there_is_something_better_to_do(self) -> None:
        with pytest.raises(GivenUp) as end:
            Arrival(1).wait_for(0, Patience(lambda: True, total_s=1e9))
        assert not end.value.stalled

    def test_a_layer_that_is_there_can_be_used_even_if_others_never_come(self) -> None:
        arrival = Arrival(2)
        arrival.layers_arrived(range(1))
        arrival.fail()
        arrival.wait_for(0, Patience())
        with pytest.raises(GivenUp) as end:
            arrival.wait_for(1, Patience())
        assert not end.value.stalled
        assert not arrival.whole


# --- by force ----------------------------------------------------------------------------------------------


@lru_cache
def known_answers() -> list[tuple[GenerateRequest, dict[tuple[int, int], Generated]]]:
    """Ten requests over six chunks, each answered alone with everything resident."""
    prompts, draw = Prompts(deep_engine(), seed=40), random.Random(40)
    prefix = prompts.ids(5)
    chunks = [prompts.ids(n) for n in (1, 17, 40, 64, 65, 130)]
    requests = [
        prompts.request(
            prefix,
            draw.choices(chunks, k=draw.randrange(1, 5)),
            [draw.randrange(1, 90) for _ in range(draw.randrange(1, 3))],
            MODES[i % 2],
            max_tokens=draw.randrange(1, 6),
            temperature=draw.choice([0.0, 0.9]),
            n=draw.randrange(1, 3),
            seed=i,
        )
        for i in range(10)
    ]
    return [(request, stored(request)[1]) for request in requests]


def full_shelf(draw: random.Random) -> Shelf:
    """All chunks, on a shelf whose layers take their time and fail now and then."""
    shelf = Shelf()
    for request, _ in known_answers():
        engine = deep_engine(shelf)
        run(engine, request)
        engine.shut_down()

    def trouble(chunk_id: str, layer: int) -> None:
        for _ in range(draw.choice([0, 0, 10, 1000])):
            time.sleep(0)  # lets others go first
        if draw.random() < 0.03:
            raise draw.choice([CorruptData("flipped"), Unavailable("gone"), RuntimeError("a bug")])

    shelf.before_layer = trouble
    return shelf


@pytest.mark.parametrize("seed", range(8))
def test_answers_keep_their_bits_whatever_arrives_when(seed: int) -> None:
    draw = random.Random(seed)
    shelf = full_shelf(draw)
    per_token = 2 * LAYERS * 2 * 16 * 4
    engine = deep_engine(
        shelf,
        pipelined=seed % 4 != 3,
        max_step_tokens=draw.choice([1, 40, 2048]),
        max_running_branches=draw.choice([4, 64]),
        resident_bytes=per_token * draw.choice([1, 150, 100_000]),
        private_bytes=per_token * draw.choice([60, 400, 100_000]),
        loader_threads=draw.choice([1, 3]),
    )
    answers = {f"{seed}-{i}": draw.choice(known_answers()) for i in range(16)}
    todo = [Run(replace(request, request_id=key)) for key, (request, _) in answers.items()]
    late = {one.request.request_id for one in draw.sample(todo, 2)}
    started: list[Run] = []
    cancelled: set[str] = set()
    give_up = time.monotonic() + PATIENCE_S
    while todo or not all(one.ended for one in started):
        alive = sum(not one.ended for one in started)
        # often alone: only then does a request run ahead
        if todo and draw.random() < (0.5 if alive < 2 else 0.05):
            one = todo.pop(0)
            if one.request.request_id in late:
                one.request = replace(one.request, deadline_s=time.monotonic() + draw.choice([0.0, 0.02]))
            started.append(one)
            engine.submit(one.request, one.events.append)
        if started and draw.random() < 0.02:
            victim = draw.choice(started).request.request_id
            cancelled.add(victim)
            engine.cancel(victim)
        if not engine.step() and not all(one.ended for one in started):
            engine.wait()
        engine.check_invariants()
        assert time.monotonic() < give_up, f"stuck: {engine.stats()}"
    for one in started:
        key = one.request.request_id
        if isinstance(one.events[-1], DoneEvent):
            assert one.branches() == answers[key][1], (
                f"{key} does not answer as it does with everything resident"
            )
        else:
            assert isinstance(one.error, (Cancelled, DeadlineExceeded)), one.error
            assert key in cancelled | late
    engine.step()
    assert engine.stats().private_bytes == 0
    engine.shut_down()
    assert shelf.num_unclosed == 0


def step_until(engine: Engine, one: Run) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not one.ended:
        if not engine.step() and not one.ended:
            engine.wait()
        engine.check_invariants()
        assert time.monotonic() < give_up, f"the engine is stuck: {engine.stats()}"
