"""The engine says what a traced request spent its time on: stages with counts, one after the other, and
nothing of others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shared.generation.asked import PrefillRequest
from shared.generation.forest import Close, ForestRequest
from shared.generation.modes import Recompute, ReuseMode
from shared.generation.told import DoneEvent, Event, FailedEvent, StageTime
from tests.engine_runs import Prompts, Run, Shelf, engine_of, run
from tests.recorded_spans import TRACEPARENT

pytestmark = pytest.mark.usefixtures("one_thread")


def by_name(one: Run) -> dict[str, StageTime]:
    return {stage.name: stage for stage in one.done.stages}


def counts(stage: StageTime) -> dict[str, int]:
    return dict(stage.counts)


def assert_in_time(stages: tuple[StageTime, ...], began_s: float = 0.0) -> None:
    for stage in stages:
        assert began_s <= stage.began_s <= stage.ended_s, stage
        assert_in_time(stage.inner, began_s)


def test_a_request_that_is_not_traced_has_none() -> None:
    engine = engine_of()
    (one,) = run(engine, Prompts(engine).request())
    assert one.done.stages == ()


def test_an_answer_over_stored_chunks_is_loaded_stitched_and_decoded() -> None:
    shelf = Shelf()
    engine = engine_of(source=shelf, resident_bytes=1)
    request = replace(Prompts(engine).request(7, (20, 1, 33), (9, 4)), traceparent=TRACEPARENT)
    (first,) = run(engine, request)
    assert counts(by_name(first)["load"])["chunks.lost"] == 3
    # an answer does not wait for its chunks to be stored, a prefill does
    run(engine, PrefillRequest("prefill", request.prefix_ids, request.chunks))
    (again,) = run(engine, replace(request, request_id="again"))
    assert_in_time(again.done.stages)
    stages = by_name(again)
    assert list(stages) == ["queue", "load", "stitch and prefill", "decode"]
    load = stages["load"]
    assert counts(load) == {
        "chunks": 3,
        "chunks.resident": 0,
        "chunks.loaded": 3,
        "chunks.lost": 0,
        "chunks.late": 0,
    }
    (tier,) = load.inner
    assert tier.name == "load shelf"
    assert counts(tier)["chunks"] == 3
    assert counts(tier)["bytes"] > 0
    assert counts(stages["stitch and prefill"])["tokens"] == 13
    decoded = [stage for stage in again.done.stages if stage.name == "decode"]
    assert [counts(stage) for stage in decoded] == [
        {"question": 0, "tokens": 6},
        {"question": 1, "tokens": 6},
    ]


def test_an_answer_tells_what_it_loaded_of_each_tier_traced_or_not() -> None:
    engine = engine_of(source=Shelf(), resident_bytes=1)
    request = Prompts(engine).request(7, (20, 1, 33))
    run(engine, PrefillRequest("prefill", request.prefix_ids, request.chunks))
    (one,) = run(engine, request)
    (load,) = one.done.loads
    num_bytes = sum(len(c.token_ids) for c in request.chunks) * engine.model.spec.kv_bytes_per_token
    assert (load.tier, load.num_chunks, load.num_bytes) == ("shelf", 3, num_bytes)
    assert load.load_s > 0


def test_an_answer_tells_of_each_chunk_where_its_kv_came_from() -> None:
    shelf = Shelf()
    engine = engine_of(source=shelf)
    request = Prompts(engine).request(7, (20, 1, 33))
    first, absent, last = request.chunks
    run(engine, PrefillRequest("prefill", request.prefix_ids, (first, last)))
    engine = engine_of(source=shelf)
    run(engine, replace(request, request_id="before", chunks=(last,)))
    (one,) = run(engine, replace(request, chunks=(*request.chunks, first)))
    assert one.done.usage.chunk_origins == ("shelf", "computed", "resident", "shelf")
    (again,) = run(engine, request)
    assert again.done.usage.chunk_origins == ("resident",) * 3
    (full,) = run(engine, replace(request, reuse=ReuseMode.FULL))
    assert full.done.usage.chunk_origins == ("computed",) * 3
    assert absent.chunk_id in shelf.kv, "what was computed is stored"
    full = Prompts(engine).request(8, (20,), reuse=ReuseMode.FULL)
    (without,) = run(engine, replace(full, request_id="full"))
    assert without.done.loads == ()


def test_what_is_computed_anew_is_a_part_of_the_prefill() -> None:
    engine = engine_of()
    request = Prompts(engine).request(7, (20, 33), (9, 4), ReuseMode.TOKENS, Recompute(tokens=(1, 2, 30)))
    (one,) = run(engine, replace(request, traceparent=TRACEPARENT))
    (recompute,) = by_name(one)["stitch and prefill"].inner
    assert (recompute.name, counts(recompute)) == ("recompute", {"tokens": 3})
    assert_in_time(one.done.stages)


def test_without_reuse_nothing_is_loaded() -> None:
    engine = engine_of()
    (one,) = run(engine, replace(Prompts(engine).request(reuse=ReuseMode.FULL), traceparent=TRACEPARENT))
    assert list(by_name(one)) == ["queue", "prefill", "decode"]
    assert counts(by_name(one)["prefill"])["chunks.stitched"] == 0


def test_beams_tell_the_tokens_of_their_answers() -> None:
    from shared.generation.asked import Beams

    engine = engine_of()
    request = replace(Prompts(engine).request(), beams=Beams(2), traceparent=TRACEPARENT)
    (one,) = run(engine, request)
    assert counts(by_name(one)["decode"]) == {"question": 0, "tokens": 6}


def test_a_prefill_is_looked_up_computed_and_stored() -> None:
    engine = engine_of(source=Shelf())
    asked = Prompts(engine).request(7, (20, 33))
    request = PrefillRequest("prefill", asked.prefix_ids, asked.chunks, traceparent=TRACEPARENT)
    (one,) = run(engine, request)
    assert list(by_name(one)) == ["queue", "look up", "prefill", "store"]
    assert counts(by_name(one)["prefill"]) == {"chunks": 2, "tokens": 53}
    (again,) = run(engine, replace(request, request_id="again"))
    assert list(by_name(again)) == ["queue", "look up"]
    assert_in_time(again.done.stages)


def test_a_live_forest_is_explored_until_it_is_closed() -> None:
    engine, events = engine_of(), list[Event]()
    like = Prompts(engine).request(7, (20,))
    request = ForestRequest("forest", like.prefix_ids, like.chunks, traceparent=TRACEPARENT)
    engine.submit(request, events.append)
    engine.command("forest", Close())
    while not events:
        if not engine.step() and not events:
            engine.wait()
    (done,) = events
    assert isinstance(done, DoneEvent)
    assert [stage.name for stage in done.stages] == ["queue", "load", "stitch and prefill", "explore"]


def test_a_failed_request_tells_how_far_it_came() -> None:
    engine = engine_of()
    request = replace(Prompts(engine).request(), deadline_s=0.0, traceparent=TRACEPARENT)
    (one,) = run(engine, request)
    failed = one.events[-1]
    assert isinstance(failed, FailedEvent)
    assert [stage.name for stage in failed.stages] == ["queue"]
