"""Counts how often the steps of an engine on a pretended GPU wait for it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from shared.engine import Engine
from shared.generation.asked import Beams, GenerateRequest
from shared.generation.told import DoneEvent, Event
from tests.engine_runs import Prompts
from tests.pretend_gpu import Crossing, PretendGpu

SAMPLED = {"temperature": 0.8, "top_p": 0.9, "top_k": 40}


def waits_of_steps(
    gpu: PretendGpu, engine: Engine, requests: Sequence[GenerateRequest]
) -> list[tuple[int, list[Crossing]]]:
    """Of every step: how many passes it had, and what the engine's thread waited for."""
    events: list[list[Event]] = [[] for _ in requests]
    for request, of_request in zip(requests, events, strict=True):
        engine.submit(request, of_request.append)
    passes, run = [0], engine._steps.passes.run

    def counted(*args: Any) -> Any:
        passes[0] += 1
        return run(*args)

    engine._steps.passes.run = counted  # type: ignore[method-assign]
    found, ours = [], threading.current_thread().name
    while not all(of_request and isinstance(of_request[-1], DoneEvent) for of_request in events):
        passes[0], before = 0, len(gpu.crossings)
        engine.step()
        found.append((passes[0], [c for c in gpu.crossings[before:] if c.thread == ours and c.waits]))
        assert len(found) < 500
    engine._steps.passes.run = run  # type: ignore[method-assign]
    return found


def requests_of(engine: Engine) -> list[GenerateRequest]:
    """Greedy and by chance, several samples, beams: all that a step may have rows of."""
    prompts = Prompts(engine, seed=1)
    return [
        prompts.request(7, (20, 33), (9, 5), max_tokens=6),
        prompts.request(7, (20,), (4,), max_tokens=5, n=3, seed=2, watch_ids=(5, 9), **SAMPLED),
        replace(prompts.request(7, (12, 20), (6,), max_tokens=4), beams=Beams(3)),
    ]
