"""Asks an engine as benchmarks do: with random tokens, for a request's timings, or many requests at once."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from shared.engine import Engine
from shared.generation.asked import GenerateRequest, PrefillRequest
from shared.generation.told import DoneEvent, Event, FailedEvent, Timings


def random_ids(seed: int | str, length: int, vocab: int) -> tuple[int, ...]:
    """The same ids for the same seed."""
    noise = random.Random(seed)
    return tuple(noise.randrange(vocab) for _ in range(length))


def timings_of(engine: Engine, request: GenerateRequest) -> Timings:
    """
    Raises:
        KvquiltError: the request failed.
    """
    *_, done = engine.generate(request)
    assert isinstance(done, DoneEvent)
    return done.timings


class AskedTogether:
    """Requests that an engine works on at the same time, and what it has said to each: ``events``."""

    def __init__(self, engine: Engine, requests: Sequence[GenerateRequest | PrefillRequest]) -> None:
        self._engine = engine
        self.events: list[list[Event]] = [[] for _ in requests]
        for request, events in zip(requests, self.events, strict=True):
            engine.submit(request, events.append)

    def run(self, enough: Callable[[], bool] | None = None) -> None:
        """Steps until there is ``enough``, by default the end of every request.

        Raises:
            KvquiltError: a request failed.
        """
        enough = enough or (lambda: len(self.done) == len(self.events))
        while not enough():
            ran = self._engine.step()
            for events in self.events:
                if events and isinstance(events[-1], FailedEvent):
                    raise events[-1].error
            if not ran and not enough():  # a step may only deliver
                self._engine.wait()

    @property
    def done(self) -> list[DoneEvent]:
        """Of the requests that have ended."""
        return [last for events in self.events for last in events[-1:] if isinstance(last, DoneEvent)]
