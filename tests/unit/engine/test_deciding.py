"""A deferred choice: KV is loaded while somebody else chooses what to compute anew, and nobody can tell by
the answer."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.engine import Engine
from shared.errors import Cancelled, DeadlineExceeded, InvalidRequest
from shared.generation.asked import GenerateRequest
from shared.generation.forest import ForestRequest
from shared.generation.modes import Recompute, ReuseMode
from shared.generation.told import SelectedEvent
from tests.engine_runs import PATIENCE_S, Prompts, Run, Shelf, assert_alike, engine_of, jobs_of, run
from tests.oracles import tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")

CHUNKS = (20, 1, 33)
NUM_TOKENS = sum(CHUNKS)


def engine_on(shelf: Shelf | None = None, **options: object) -> Engine:
    model = tiny_model("llama3", num_hidden_layers=5)
    return engine_of(
        hf_model=model, source=shelf, **{"batch_invariant": True, "overlap_from_s": 0.0} | options
    )


def deferred(request: GenerateRequest, name: str = "deferred", ratio: float | None = None) -> GenerateRequest:
    return replace(request, request_id=name, reuse=ReuseMode.CACHECLIP, recompute=Recompute(ratio))


def by_list(request: GenerateRequest, tokens: Sequence[int], name: str = "listed") -> GenerateRequest:
    return replace(
        request, request_id=name, reuse=ReuseMode.TOKENS, recompute=Recompute(tokens=tuple(tokens))
    )


def submit(engine: Engine, request: GenerateRequest) -> Run:
    one = Run(request)
    engine.submit(request, one.events.append)
    return one


def step_until(engine: Engine, condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not condition():
        if not engine.step() and not condition():
            assert time.monotonic() < give_up, f"the engine is stuck: {engine.stats()}"
            engine.wait()
        engine.check_invariants()


def step_often(engine: Engine) -> None:
    """So often that what must not happen would have."""
    for _ in range(5):
        if not engine.step():
            engine.wait()
        engine.check_invariants()


def assert_comes(event: threading.Event) -> None:
    assert event.wait(PATIENCE_S), "nobody lets it go on"


def is_resident(engine: Engine) -> Callable[[], bool]:
    return lambda: any(job.undecided and job.clock.resident > 0 for job in jobs_of(engine))


@given(st.data())
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_decided_for_tokens_it_is_bit_by_bit_a_request_for_these_tokens_whenever_it_is_decided(
    data: st.DataObject,
) -> None:
    seed = data.draw(st.integers(0, 10_000))
    tokens = tuple(data.draw(st.sets(st.integers(0, NUM_TOKENS - 1))))
    moment = data.draw(st.sampled_from(["before", "during", "after"]))
    request = Prompts(engine_on(), seed).request(7, CHUNKS, (9,) * data.draw(st.integers(1, 2)))
    shelf = Shelf()
    first = engine_on(shelf)
    run(first, replace(request, request_id="stores it"))
    (listed,) = run(first, by_list(request, tokens))
    first.shut_down()
    engine = engine_on(shelf)
    may_read, reads = threading.Event(), threading.Event()

    def read(chunk_id: str, layer: int) -> None:
        reads.set()
        if layer >= 2:
            assert_comes(may_read)

    shelf.before_layer = read
    one = submit(engine, deferred(request))
    if moment == "before":
        may_read.set()
    elif moment == "during":
        step_until(engine, reads.is_set)
        step_often(engine)
    else:
        may_read.set()
        step_until(engine, is_resident(engine))
    assert not one.events, "nothing is told before it is decided"
    engine.decide("deferred", ReuseMode.TOKENS, Recompute(tokens=tokens))
    may_read.set()
    step_until(engine, lambda: one.ended)
    assert one.branches() == listed.branches()
    assert [e for e in one.events if isinstance(e, SelectedEvent)] == [SelectedEvent(tuple(sorted(tokens)))]
    usage = replace(one.done.usage, loaded_tokens=0, chunk_origins=())
    assert usage == replace(listed.done.usage, loaded_tokens=0, chunk_origins=())
    assert one.done.usage.loaded_tokens == sum(CHUNKS)
    engine.shut_down()
    assert shelf.num_unclosed == 0


@pytest.mark.parametrize(
    ("mode", "recompute"),
    [
        (ReuseMode.EPIC, Recompute(0.3)),
        (ReuseMode.RANDOM, Recompute(0.3, seed=4)),
        (ReuseMode.QUERY_ATTENTION, Recompute(0.3)),
        (ReuseMode.CACHEBLEND, Recompute(0.3)),
        (ReuseMode.APE, Recompute()),
        (ReuseMode.FULL, Recompute()),
        (ReuseMode.REORDERED, Recompute()),
        (ReuseMode.COMPOSITE, Recompute()),
    ],
    ids=lambda value: value.value if isinstance(value, ReuseMode) else "",
)
def test_it_may_be_decided_for_any_mode_that_chooses_by_itself(mode: ReuseMode, recompute: Recompute) -> None:
    engine = engine_on()
    request = Prompts(engine, 3).request(7, CHUNKS, (9, 5))
    run(engine, replace(request, request_id="makes it resident"))
    (plain,) = run(engine, replace(request, request_id="plain", reuse=mode, recompute=recompute))
    one = submit(engine, deferred(request))
    step_until(engine, is_resident(engine))
    engine.decide("deferred", mode, recompute)
    step_until(engine, lambda: one.ended)
    assert one.branches() == plain.branches()
    assert one.done.usage == plain.done.usage


@pytest.mark.parametrize("batch_invariant", [True, False])
def test_decided_for_each_question_by_itself_every_one_is_answered_as_it_would_be_alone(
    batch_invariant: bool,
) -> None:
    engine = engine_on(batch_invariant=batch_invariant)
    request = Prompts(engine, 8).request(7, CHUNKS, (9, 5, 6, 4))
    sets = ((3, 30, 31), (40, 2), (30, 3, 31), ())
    run(engine, replace(request, request_id="makes it resident"))
    alone = [
        run(engine, by_list(replace(request, questions=(question,)), tokens, f"alone {i}"))[0]
        for i, (question, tokens) in enumerate(zip(request.questions, sets, strict=True))
    ]
    one = submit(engine, deferred(request))
    step_until(engine, is_resident(engine))
    engine.decide("deferred", ReuseMode.TOKENS, Recompute(by_question=sets))
    step_until(engine, lambda: one.ended)
    for index, single in enumerate(alone):
        if batch_invariant:
            assert one.branch(index) == single.branch()
        else:
            assert_alike(one.branch(index), single.branch())
    assert [e for e in one.events if isinstance(e, SelectedEvent)] == [
        SelectedEvent(tuple(sorted(tokens)), index) for index, tokens in enumerate(sets)
    ]
    assert one.done.usage.selected_tokens == 5


def test_questions_with_equal_tokens_share_the_branch_that_computes_them() -> None:
    engine = engine_on(batch_invariant=False)
    request = Prompts(engine, 8).request(7, CHUNKS, (9, 5, 6))
    run(engine, replace(request, request_id="makes it resident"))
    sets = ((3, 30, 31), (40, 2), (30, 3, 31))
    engine.submit(
        replace(request, reuse=ReuseMode.TOKENS, recompute=Recompute(by_question=sets)), lambda _: None
    )
    while not jobs_of(engine) or not jobs_of(engine)[0].started:
        engine.step()
    branches = jobs_of(engine)[0].branches()
    num_tokens = sum(len(branch.pending) + branch.segment.length for branch in branches)
    answered = 1  # the question that shares its tokens with no other went with them, in one pass
    assert num_tokens == 3 + 2 + sum(map(len, request.questions)) + answered


@pytest.mark.parametrize(
    ("recompute", "field"),
    [
        (Recompute(by_question=((1,),)), "1 lists for 2 questions"),
        (Recompute(tokens=(1,), by_question=((1,), (2,))), "and no other"),
        (Recompute(by_question=((1,), (NUM_TOKENS,))), "is out of range"),
    ],
)
def test_lists_that_do_not_fit_the_questions_fail_the_request(recompute: Recompute, field: str) -> None:
    engine = engine_on()
    request = by_list(Prompts(engine, 8).request(7, CHUNKS, (9, 5)), ())
    with pytest.raises(InvalidRequest, match=field):
        engine.submit(replace(request, recompute=recompute), lambda _: None)


def test_an_undecided_request_takes_no_place_from_others() -> None:
    engine = engine_on(max_running_branches=1)
    prompts = Prompts(engine, 4)
    request = prompts.request(7, CHUNKS)
    (alone,) = run(engine, by_list(request, (3, 30), "alone"))
    waiting = [submit(engine, deferred(request, f"undecided {i}")) for i in range(3)]
    step_until(engine, is_resident(engine))
    run(engine, *(prompts.request(7, (11,), max_tokens=4) for _ in range(3)))
    assert engine.stats().waiting == 2, "undecided requests do not make room for each other: they hold chunks"
    for i in range(3):
        engine.decide(f"undecided {i}", ReuseMode.TOKENS, Recompute(tokens=(3, 30)))
    step_until(engine, lambda: all(one.ended for one in waiting))
    assert [one.branches() for one in waiting] == [alone.branches()] * 3


def test_requests_decided_at_once_share_the_room_for_private_kv() -> None:
    engine = engine_on()
    request = Prompts(engine, 5).request(7, CHUNKS, max_tokens=20)
    (alone,) = run(engine, by_list(request, range(20, 54), "alone"))
    small = engine_on(private_bytes=80 * engine.model.spec.kv_bytes_per_token)
    runs = [submit(small, deferred(request, f"undecided {i}", ratio=0.1)) for i in range(3)]
    step_until(small, is_resident(small))
    for i in range(3):
        small.decide(f"undecided {i}", ReuseMode.TOKENS, Recompute(tokens=tuple(range(20, 54))))
    step_until(small, lambda: all(one.ended for one in runs))
    assert [one.branches() for one in runs] == [alone.branches()] * 3


def test_waiting_for_the_choice_is_no_loading_and_only_counts_once_all_kv_is_there() -> None:
    shelf = Shelf()
    first = engine_on(shelf)
    request = Prompts(first, 6).request(7, CHUNKS)
    run(first, request)
    first.shut_down()
    engine = engine_on(shelf)
    run(engine, replace(request, request_id="prefix only", chunks=()))
    may_read = threading.Event()
    shelf.before_layer = lambda chunk_id, layer: assert_comes(may_read)
    one = submit(engine, deferred(request))
    step_often(engine)
    engine.decide("deferred", ReuseMode.EPIC, Recompute())
    step_often(engine)
    may_read.set()
    step_until(engine, lambda: one.ended)
    assert one.done.timings.select_wait_s == 0, "hidden behind the loading"
    assert one.done.timings.load_s > 0
    resident = submit(engine, deferred(request, "resident"))
    step_until(engine, is_resident(engine))
    since_s = time.monotonic()
    step_often(engine)
    pause_s = time.monotonic() - since_s
    engine.decide("resident", ReuseMode.EPIC, Recompute())
    step_until(engine, lambda: resident.ended)
    timings = resident.done.timings
    assert timings.select_wait_s >= pause_s
    parts = timings.queue_s + timings.load_s + timings.select_wait_s + timings.engine_ttft_s
    assert parts == pytest.approx(timings.first_token_s)
    assert timings.load_s >= 0


def test_an_undecided_request_can_be_cancelled_and_runs_late_like_any_other() -> None:
    engine = engine_on()
    request = Prompts(engine, 7).request(7, CHUNKS)
    cancelled = submit(engine, deferred(request, "cancelled"))
    late = submit(engine, replace(deferred(request, "late"), deadline_s=time.monotonic() + 0.2))
    step_until(engine, is_resident(engine))
    engine.cancel("cancelled")
    step_until(engine, lambda: cancelled.ended and late.ended)
    assert isinstance(cancelled.error, Cancelled)
    assert isinstance(late.error, DeadlineExceeded)
    engine.decide("late", ReuseMode.EPIC, Recompute())  # too late: nobody is there
    engine.step()
    assert (engine.stats().running, engine.stats().waiting, engine.stats().paused) == (0, 0, 0)


@pytest.mark.parametrize(
    ("mode", "recompute", "field"),
    [
        (ReuseMode.TOKENS, Recompute(tokens=(NUM_TOKENS,)), "recompute.tokens"),
        (ReuseMode.FULL, Recompute(0.5), "recompute.ratio"),
        (ReuseMode.CACHECLIP, Recompute(0.5), "reuse"),
    ],
)
def test_a_decision_that_does_not_fit_fails_the_request_alone(
    mode: ReuseMode, recompute: Recompute, field: str
) -> None:
    engine = engine_on()
    prompts = Prompts(engine, 8)
    one, other = (
        submit(engine, deferred(prompts.request(7, CHUNKS))),
        submit(engine, prompts.request(7, (9,))),
    )
    engine.decide("deferred", mode, recompute)
    step_until(engine, lambda: one.ended and other.ended)
    assert isinstance(one.error, InvalidRequest)
    assert str(one.error).startswith(field)
    assert other.done.usage.generated_tokens == 6


def test_only_the_first_decision_counts_and_who_waits_for_none_takes_no_notice() -> None:
    engine = engine_on()
    request = Prompts(engine, 9).request(7, CHUNKS)
    (listed,) = run(engine, by_list(request, (5, 6)))
    one, plain = submit(engine, deferred(request)), submit(engine, request)
    engine.decide("deferred", ReuseMode.TOKENS, Recompute(tokens=(5, 6)))
    engine.decide("deferred", ReuseMode.FULL, Recompute())
    engine.decide(request.request_id, ReuseMode.FULL, Recompute())
    engine.decide("nobody", ReuseMode.FULL, Recompute())
    step_until(engine, lambda: one.ended and plain.ended)
    assert one.branches() == listed.branches()
    assert plain.done.usage.recomputed_tokens == 9


def test_undecided_requests_among_others_in_any_order_end_as_they_would_alone() -> None:
    draw = random.Random(10)
    engine = engine_on(max_running_branches=3)
    request = Prompts(engine, 11).request(7, CHUNKS)
    choices = [tuple(sorted(draw.sample(range(NUM_TOKENS), draw.randrange(12)))) for _ in range(6)]
    alone = [
        run(engine, by_list(request, choice, f"alone {i}"))[0].branches() for i, choice in enumerate(choices)
    ]
    runs = [submit(engine, deferred(request, f"deferred {i}")) for i in range(6)]
    for i in draw.sample(range(6), 6):
        engine.decide(f"deferred {i}", ReuseMode.TOKENS, Recompute(tokens=choices[i]))
        for _ in range(draw.randrange(4)):
            engine.step()
            engine.check_invariants()
    step_until(engine, lambda: all(one.ended for one in runs))
    assert [one.branches() for one in runs] == alone


def test_a_live_forest_has_no_question_to_choose_by() -> None:
    engine = engine_on()
    with pytest.raises(InvalidRequest, match="reuse: cacheclip goes by the question"):
        engine.submit(ForestRequest("forest", (), (), ReuseMode.CACHECLIP), lambda event: None)
