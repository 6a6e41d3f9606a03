"""Chunks that are loaded before anybody asks for them: into free memory only, and without a trace where they
cannot be had."""

from __future__ import annotations

import threading

import pytest

from shared.engine import Engine
from shared.engine.kv.hot_chunks import HotChunk
from shared.generation.asked import GenerateRequest
from tests.engine_runs import Prompts, Shelf, assert_alike, engine_of, run


def hottest(engine: Engine, most_bytes: int = 1 << 30) -> list[HotChunk]:
    told: list[list[HotChunk]] = []
    engine.hottest(most_bytes, told.append)
    engine.step()
    return told[0]


def warm(engine: Engine, chunks: list[HotChunk]) -> int:
    """How many are resident then."""
    told: list[bool] = []
    engine.warm(chunks, told.append)
    while len(told) < len(chunks):
        if not engine.step() and len(told) < len(chunks):
            engine.wait()
        engine.check_invariants()
    engine.step()  # its snapshot is taken at the end of a step
    return sum(told)


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def asked(shelf: Shelf) -> tuple[Engine, GenerateRequest]:
    """An engine that was asked about three chunks, and three times more about the second one."""
    engine = engine_of(source=shelf)
    prompts = Prompts(engine)
    request = prompts.request(7, (20, 30, 40))
    again = [prompts.request(request.prefix_ids, (request.chunks[1].token_ids,)) for _ in range(3)]
    run(engine, request)
    run(engine, *again)
    engine.close()
    engine.shut_down()
    return engine, request


def test_the_hottest_come_first_as_far_as_they_may(asked: tuple[Engine, GenerateRequest]) -> None:
    engine, request = asked
    per_token = engine.model.spec.kv_bytes_per_token
    told = hottest(engine)
    assert [len(chunk.token_ids) for chunk in told] == [30, 40, 20]
    assert {chunk.chunk_id for chunk in told} == {chunk.chunk_id for chunk in request.chunks}
    assert [len(chunk.token_ids) for chunk in hottest(engine, 70 * per_token)] == [30, 40]
    assert hottest(engine, 29 * per_token) == []


def test_a_warmed_engine_loads_and_computes_no_chunk_and_answers_alike(
    shelf: Shelf, asked: tuple[Engine, GenerateRequest]
) -> None:
    engine, request = asked
    (cold,) = run(engine_of(source=shelf), request)
    warmed = engine_of(source=shelf)
    assert warm(warmed, hottest(engine)) == 3
    assert set(warmed.stats().resident_chunk_ids) == {chunk.chunk_id for chunk in request.chunks}
    (one,) = run(warmed, request)
    assert_alike(one.branch(), cold.branch())
    assert cold.done.usage.loaded_tokens == 90
    assert one.done.usage.chunk_origins == ("resident",) * 3


def test_what_is_resident_gives_no_room_to_what_is_warmed(
    shelf: Shelf, asked: tuple[Engine, GenerateRequest]
) -> None:
    engine, _ = asked
    per_token = engine.model.spec.kv_bytes_per_token
    small = engine_of(source=shelf, resident_bytes=100 * per_token)
    (own,) = run(small, Prompts(small, seed=9).request((), (35,)))
    assert warm(small, hottest(engine)) == 1, "30 of the 65 tokens that are left; 40 more do not fit"
    assert small.stats().resident_chunk_ids[-1] == own.request.chunks[0].chunk_id
    assert warm(small, hottest(engine)[:1]) == 1, "it is there already"


def test_chunks_that_cannot_be_had_leave_nothing_behind(
    shelf: Shelf, asked: tuple[Engine, GenerateRequest]
) -> None:
    engine, request = asked
    chunks = hottest(engine)
    shelf.corrupt.add(chunks[0].chunk_id)
    del shelf.kv[chunks[1].chunk_id]
    other = engine_of(source=shelf)
    assert warm(other, chunks) == 1
    assert other.stats().resident_chunk_ids == (chunks[2].chunk_id,)
    (one,) = run(other, request)
    assert sorted(one.done.usage.chunk_origins) == ["computed", "computed", "resident"]
    other.close()
    other.shut_down()
    assert shelf.num_unclosed == 0
    assert (chunks[0].chunk_id, True) in shelf.saves, "it is replaced when it is asked for"


def test_a_request_that_comes_meanwhile_waits_for_the_load_that_is_under_way(
    shelf: Shelf, asked: tuple[Engine, GenerateRequest]
) -> None:
    engine, request = asked
    chunks, may_read = hottest(engine), threading.Event()
    (cold,) = run(engine_of(source=shelf), request)
    shelf.before_layer = lambda chunk_id, layer: may_read.wait(30) or None
    other = engine_of(source=shelf)
    told: list[bool] = []
    other.warm(chunks, told.append)
    other.step()
    assert not told
    threading.Timer(0.05, may_read.set).start()
    (one,) = run(other, request)
    assert told == [True] * 3
    assert_alike(one.branch(), cold.branch())
