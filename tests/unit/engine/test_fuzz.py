"""Laws 5 and 6 by force: whatever happens around a request, in whatever order, each of its paths keeps the
bits it has alone."""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
import torch

from shared.engine import Engine
from shared.errors import Cancelled, DeadlineExceeded
from shared.generation.asked import Beams, EarlyStopping, GenerateRequest, PrefillRequest
from shared.generation.modes import ReuseMode
from shared.generation.told import ChunkStoredEvent, DoneEvent
from tests.engine_runs import PATIENCE_S, Prompts, Run, Shelf, engine_of, run
from tests.oracles import ORACLES, Generated, as_dtype, tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")

MODES = [mode for mode in ReuseMode if mode.value in ORACLES]


@lru_cache
def known_answers(dtype: torch.dtype) -> list[tuple[GenerateRequest, dict[tuple[int, int], Generated]]]:
    """Twelve requests over six chunks and two prefixes, three of them for beams, each of their paths answered
    alone."""
    prompts = Prompts(fresh_engine(dtype), seed=40)
    draw = random.Random(40)
    prefixes = [prompts.ids(5), ()]
    chunks = [prompts.ids(n) for n in (1, 17, 40, 64, 65, 130)]
    requests = [
        prompts.request(
            draw.choice(prefixes),
            draw.choices(chunks, k=draw.randrange(4)),
            [draw.randrange(1, 30) for _ in range(draw.randrange(1, 3))],
            MODES[i % len(MODES)],
            max_tokens=draw.randrange(1, 12),
            temperature=draw.choice([0.0, 0.9]),
            n=draw.randrange(1, 3),
            seed=i,
        )
        for i in range(12)
    ]
    for i in (1, 4, 9):
        greedy = replace(requests[i].sampling, temperature=0.0)
        requests[i] = replace(
            requests[i], sampling=greedy, beams=Beams(2, early_stopping=EarlyStopping.NEVER)
        )
    return [(request, alone(request, dtype)) for request in requests]


def alone(request: GenerateRequest, dtype: torch.dtype) -> dict[tuple[int, int], Generated]:
    """Every question without the others, its first sample without a second one."""
    engine, answers = fresh_engine(dtype), {}
    for index, question in enumerate(request.questions):
        for sample in range(request.sampling.n):
            sampling = replace(request.sampling, n=sample + 1)
            (path,) = run(engine, replace(request, questions=(question,), sampling=sampling))
            answers[index, sample] = path.branch(0, sample)
    return answers


def fresh_engine(dtype: torch.dtype, **settings: Any) -> Engine:
    return engine_of(hf_model=as_dtype(tiny_model("llama3"), dtype), batch_invariant=True, **settings)


def random_engine(draw: random.Random, shelf: Shelf, dtype: torch.dtype) -> Engine:
    per_token = 2 * 2 * 2 * 16 * dtype.itemsize
    return fresh_engine(
        dtype,
        source=shelf,
        max_step_tokens=draw.choice([1, 40, 2048]),
        max_running_branches=draw.choice([4, 64]),
        resident_bytes=per_token * draw.choice([1, 150, 100_000]),
        private_bytes=per_token * draw.choice([60, 400, 100_000]),
        loader_threads=draw.choice([1, 3]),
        late_rows=draw.choice([0, 64, 512]),
        late_from_s=0.0,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_answers_survive_arrivals_cancellations_deadlines_eviction_preemption_and_spoilt_storage(
    dtype: torch.dtype,
) -> None:
    happened = sum((storm(seed, dtype) for seed in range(20)), Counter[str]())
    assert {"answered", "cancelled", "evicted", "preempted", "spoilt"} <= set(happened), happened


def storm(seed: int, dtype: torch.dtype) -> Counter[str]:
    """Sixteen requests on one engine, with everything around them drawn from ``seed``. Returns what happened,
    how often."""
    draw, happened = random.Random(seed), Counter[str]()
    shelf = Shelf()
    engine = random_engine(draw, shelf, dtype)
    answers = {f"{seed}-{i}": draw.choice(known_answers(dtype)) for i in range(16)}
    todo = [Run(replace(request, request_id=key)) for key, (request, _) in answers.items()]
    late = {one.request.request_id for one in draw.sample(todo, 2)}
    for one in todo:
        if one.request.request_id in late:
            one.request = replace(one.request, deadline_s=time.monotonic() + draw.choice([0.0, 0.05]))
    chunks = [c for one in todo for c in one.request.chunks if one.request.prefix_ids]
    if chunks:
        prefix = next(one.request.prefix_ids for one in todo if one.request.prefix_ids)
        todo.insert(
            draw.randrange(len(todo)),
            Run(PrefillRequest("prefill", prefix, tuple(draw.choices(chunks, k=4)))),
        )

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
            happened["spoilt"] += 1
        before = engine.stats()
        engine.step()
        engine.check_invariants()
        happened["preempted"] += max(0, engine.stats().paused - before.paused)
        happened["evicted"] += len(set(before.resident_chunk_ids) - set(engine.stats().resident_chunk_ids))
        assert time.monotonic() < give_up, f"seed {seed} is stuck: {engine.stats()}"

    for one in started:
        key = one.request.request_id
        if isinstance(one.events[-1], DoneEvent):
            if isinstance(one.request, PrefillRequest):
                stored = [e.index for e in one.events if isinstance(e, ChunkStoredEvent)]
                assert sorted(stored) == list(range(len(one.request.chunks)))
            else:
                assert one.branches() == answers[key][1], f"{key} does not answer as it does alone"
                happened["answered"] += 1
        else:
            assert isinstance(one.error, (Cancelled, DeadlineExceeded)), one.error
            assert key in cancelled | late
            happened["cancelled"] += 1
    engine.step()
    assert engine.stats().private_bytes == 0
    assert (engine.stats().running, engine.stats().waiting, engine.stats().paused) == (0, 0, 0)
    engine.shut_down()
    return +happened
