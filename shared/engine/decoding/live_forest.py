"""A live forest for a program that drives the engine itself, without threads of its own."""

from __future__ import annotations

from collections import deque
from types import TracebackType

from shared.engine.engine import Engine
from shared.errors import FailedPrecondition, KvquiltError
from shared.generation.forest import Command, ForestRequest
from shared.generation.told import AppliedEvent, DoneEvent, Event, FailedEvent, ForestEvent, RefusedEvent


class LiveForest:
    """::

    with LiveForest(engine, ForestRequest("r", prefix_ids, chunks)) as forest:
        forest.do(Start(0, question_ids))
        events = forest.do(Fork(1, 0), Grow(0, SamplingParams()), Grow(1, SamplingParams(temperature=1)))
    """

    def __init__(self, engine: Engine, request: ForestRequest) -> None:
        self._engine = engine
        self._request_id = request.request_id
        self._events: deque[Event] = deque()
        self._ended = False
        engine.submit(request, self._events.append)

    def do(self, *commands: Command) -> list[ForestEvent]:
        """Applies all commands, and steps until every branch rests. Other requests of the engine go on
        meanwhile.

        Raises:
            KvquiltError: the first refusal (the commands behind it were applied all the same), or what ended
            the forest. FailedPrecondition: it has ended before.
        """
        if self._ended:
            raise FailedPrecondition("the forest has ended; open another")
        for command in commands:
            self._engine.command(self._request_id, command)
        told: list[ForestEvent] = []
        refusals: list[KvquiltError] = []
        unanswered = len(commands)
        ran = True
        while not self._ended and (ran or unanswered > 0):
            ran = self._engine.step()
            while self._events:
                event = self._events.popleft()
                unanswered -= isinstance(event, (AppliedEvent, RefusedEvent))
                self._ended = isinstance(event, (DoneEvent, FailedEvent))
                if isinstance(event, FailedEvent):
                    raise event.error
                if isinstance(event, RefusedEvent):
                    refusals.append(event.error)
                if isinstance(event, ForestEvent):
                    told.append(event)
            if unanswered > 0 and not ran and not self._ended:
                self._engine.wait()  # its chunks are being loaded
        if refusals:
            raise refusals[0]
        return told

    def __enter__(self) -> LiveForest:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._engine.cancel(self._request_id)
        self._engine.step()
