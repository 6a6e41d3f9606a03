"""Decodes greedily what a model says to many requests beside each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from services.training.twin_request import Ids
from shared.engine import Engine
from shared.errors import ContextTooLong
from shared.generation.asked import GenerateRequest
from shared.generation.told import DoneEvent, Event, FailedEvent, TokenEvent


def decoded(engine: Engine, requests: Sequence[GenerateRequest], names: Sequence[str]) -> list[list[Ids]]:
    """By request and question, the end mark included. ``names``: of the requests, for messages.

    Raises:
        ContextTooLong: names the request.
        KvquiltError: a request failed.
    """
    told: list[list[Event]] = [[] for _ in requests]
    for request, name, events in zip(requests, names, told, strict=True):
        with naming(name):
            engine.submit(request, events.append)
    while not all(events and isinstance(events[-1], DoneEvent | FailedEvent) for events in told):
        if not engine.step():
            engine.wait()
    return [
        [_ids_of(events, question) for question in range(len(request.questions))]
        for request, events in zip(requests, told, strict=True)
    ]


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Inside, what is too long is told with its name."""
    try:
        yield
    except ContextTooLong as error:
        raise ContextTooLong(f"{name}: {error.detail}") from None


def _ids_of(events: Sequence[Event], question: int) -> Ids:
    if isinstance(events[-1], FailedEvent):
        raise events[-1].error
    return tuple(e.token_id for e in events if isinstance(e, TokenEvent) and e.question == question)
