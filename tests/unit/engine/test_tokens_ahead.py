"""An engine says how much of the questions before it another one would wait for, also while a pass runs."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from shared.generation.asked import GenerateRequest
from shared.generation.modes import Recompute, ReuseMode
from shared.generation.told import Event, TokenEvent
from tests.engine_runs import Prompts, engine_of, run

pytestmark = pytest.mark.usefixtures("one_thread")


def told_at_first_tokens(requests: list[GenerateRequest], **settings: object) -> list[tuple[str, int]]:
    """By request, in order, what the engine says in the middle of the step that brings its first token."""
    engine, seen = engine_of("qwen2", **settings), dict[str, int]()

    def on_event(one: object, event: Event) -> None:
        request_id = one.request.request_id  # type: ignore[attr-defined]
        if isinstance(event, TokenEvent):
            seen.setdefault(request_id, engine.stats().tokens_ahead)

    began_s = time.monotonic()
    run(engine, *requests, on_event=on_event)
    stats = engine.stats()
    assert stats.tokens_ahead == 0
    assert began_s < stats.at_s <= time.monotonic()
    return list(seen.items())


def question(name: str, num_tokens: int, **changes: object) -> GenerateRequest:
    prompts = Prompts(engine_of("qwen2"), seed=3)
    request = prompts.request(5, (), (num_tokens,), ReuseMode.FULL, max_tokens=3)
    return replace(request, request_id=name, **changes)


def test_a_pass_under_way_counts_from_its_beginning() -> None:
    assert told_at_first_tokens([question("a", 30), question("b", 20)]) == [("a", 50), ("b", 50)]


def test_what_is_computed_counts_no_more() -> None:
    told = told_at_first_tokens([question("a", 30), question("b", 20)], max_step_tokens=16)
    assert told == [("a", 14 + 20), ("b", 20 - 2 - 15)], "rows are 16; 16 and 14 + 2; an answer's and 15; 3"


def test_who_waits_for_room_counts_and_whom_nobody_waits_for_does_not() -> None:
    requests = [question("a", 30), question("b", 20), question("idle", 40, idle=True)]
    told = told_at_first_tokens(requests, max_running_branches=1)
    assert told == [("a", 50), ("b", 20), ("idle", 0)]


def test_what_is_computed_anew_counts() -> None:
    prompts = Prompts(engine_of("qwen2"), seed=4)
    request = prompts.request(
        5, (40, 20), (7,), ReuseMode.TOKENS, recompute=Recompute(tokens=tuple(range(12))), max_tokens=2
    )
    engine = engine_of("qwen2")
    one = replace(request, request_id="anew")
    engine.submit(one, lambda event: None)
    engine.step()
    assert engine.stats().tokens_ahead == 7 + 12
