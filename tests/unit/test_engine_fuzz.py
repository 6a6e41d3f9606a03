"""Law 6 by force: whatever happens around a request, in whatever order, its answer keeps its bits."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import pytest
import torch

from shared.engine import Beams, EarlyStopping, Engine
from shared.engine.types import ChunkStoredEvent, DoneEvent, GenerateRequest, PrefillRequest, ReuseMode
from shared.errors import Cancelled, DeadlineExceeded
from tests.engine_runs import PATIENCE_S, Prompts, Run, Shelf, engine_of, run
from tests.oracles import Generated

MODES = list(ReuseMode)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@lru_cache
def known_answers() -> list[tuple[GenerateRequest, dict[tuple[int, int], Generated]]]:
    """Twelve requests over six chunks and two prefixes, three of them for beams, each answered alone on an engine of its own."""
    prompts = Prompts(engine_of("llama3"), seed=40)
    draw = random.Random(40)
    prefixes = [prompts.ids(5), ()]
    chunks = [prompts.ids(n) for n in (1, 17, 40, 64, 65, 130)]
    requests = [
        prompts.request(
            draw.choice(prefixes),
            draw.choices(chunks, k=draw.randrange(4)),
            [draw.randrange(1, 30) for _ in range(draw.randrange(1, 3))],
            MODES[i % 3],
            max_tokens=draw.randrange(1, 12),
            temperature=draw.choice([0.0, 0.9]),
            n=draw.randrange(1, 3),
            seed=i,
        )
        for i in range(12)
    ]
    for i in (1, 4, 9):
        greedy = replace(requests[i].sampling, temperature=0.0)
        requests[i] = replace(requests[i], sampling=greedy, beams=Beams(2, early_stopping=EarlyStopping.NEVER))
    return [(r, run(engine_of("llama3", batch_invariant=True), r)[0].branches()) for r in requests]


def random_engine(draw: random.Random, shelf: Shelf) -> Engine:
    per_token = 2 * 2 * 2 * 16 * 4
    return engine_of(
        "llama3",
        source=shelf,
        batch_invariant=True,
        max_step_tokens=draw.choice([1, 40, 2048]),
        max_running_branches=draw.choice([4, 64]),
        resident_bytes=per_token * draw.choice([1, 150, 100_000]),
        private_bytes=per_token * draw.choice([60, 400, 100_000]),
        loader_threads=draw.choice([1, 3]),
    )


@pytest.mark.parametrize("seed", range(12))
def test_answers_survive_arrivals_cancellations_deadlines_eviction_and_spoilt_storage(seed: int) -> None:
    draw = random.Random(seed)
    shelf = Shelf()
    engine = random_engine(draw, shelf)
    answers = {f"{seed}-{i}": draw.choice(known_answers()) for i in range(16)}
    todo = [Run(replace(request, request_id=key)) for key, (request, _) in answers.items()]
    late = {one.request.request_id for one in draw.sample(todo, 2)}
    for one in todo:
        if one.request.request_id in late:
            one.request = replace(one.request, deadline_s=time.monotonic() + draw.choice([0.0, 0.05]))
    chunks = [c for one in todo for c in one.request.chunks if one.request.prefix_ids]
    if chunks:
        prefix = next(one.request.prefix_ids for one in todo if one.request.prefix_ids)
        todo.insert(draw.randrange(len(todo)), Run(PrefillRequest("prefill", prefix, tuple(draw.choices(chunks, k=4)))))

    started: list[Run] = []
    cancelled: set[str] = set()
    give_up = time.monotonic() + PATIENCE_S
    while todo or not all(one.ended for one in started):
        if todo and draw.random() < 0.3:
            one = todo.pop(0)
            started.append(one)
            engine.submit(one.request, one.events.append)
        if started and draw.random() < 0.03:
            victim = draw.choice(started).request.request_id
            cancelled.add(victim)
            engine.cancel(victim)
        if shelf.kv and draw.random() < 0.1:
            shelf.corrupt.add(draw.choice(sorted(shelf.kv)))
        engine.step()
        engine.check_invariants()
        assert time.monotonic() < give_up, f"stuck: {engine.stats()}"

    for one in started:
        key = one.request.request_id
        if isinstance(one.events[-1], DoneEvent):
            if isinstance(one.request, PrefillRequest):
                stored = [e.index for e in one.events if isinstance(e, ChunkStoredEvent)]
                assert sorted(stored) == list(range(len(one.request.chunks)))
            else:
                assert one.branches() == answers[key][1], f"{key} does not answer as it does alone"
        else:
            assert isinstance(one.error, (Cancelled, DeadlineExceeded)), one.error
            assert key in cancelled | late
    engine.step()
    assert engine.stats().private_bytes == 0
    assert (engine.stats().running, engine.stats().waiting, engine.stats().paused) == (0, 0, 0)
    engine.shut_down()
