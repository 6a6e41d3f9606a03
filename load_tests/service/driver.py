"""Runs the open loop: requests are sent at their intended instants, whether or not earlier ones were
answered.

A closed loop (send, wait, send) slows down with the service and so measures only the requests that a slow
service allows ("coordinated omission"). Here nothing in the client waits for an answer before it sends the
next request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from load_tests.service.sample import NOT_SENT, OK, Reply, Sample
from shared.errors import KvquiltError
from shared.status import status_of

OnToken = Callable[[tuple[int, int]], None]
Ask = Callable[[int, OnToken], Awaitable[Reply]]
"""Sends request number n and calls back per token with its branch (question, sample). Raises
``KvquiltError``."""

_CHECK_S = 0.25


@dataclass(slots=True)
class Progress:
    """All that happened so far. ``now_s``: seconds since the start, as of the last look."""

    planned: int
    samples: list[Sample] = field(default_factory=list)
    flights: dict[int, Sample] = field(default_factory=dict)
    now_s: float = 0.0

    def overdue(self, limit_s: float, from_index: int = 0) -> int:
        """Requests in flight that wait for their first token longer than this; those before ``from_index``
        left out."""
        return sum(
            index >= from_index and flight.first_token_s is None and self.now_s - flight.intended_s > limit_s
            for index, flight in self.flights.items()
        )


@dataclass(slots=True)
class Driver:
    """
    max_in_flight: safety of this machine; what exceeds it is not sent, and counted as ``NOT_SENT``.
    on_progress: called a few times per second.
    hopeless: asked a few times per second; True ends the run: what is in flight is cancelled and leaves no
    sample.
    """

    ask: Ask
    max_in_flight: int
    on_progress: Callable[[Progress], None] = lambda progress: None
    hopeless: Callable[[Progress], bool] = lambda progress: False

    async def run(self, arrivals: Sequence[float]) -> list[Sample]:
        """One sample per arrival, in order of completion; fewer when it was hopeless."""
        loop = asyncio.get_running_loop()
        start_s, progress = loop.time(), Progress(len(arrivals))
        sending = asyncio.create_task(self._send_all(arrivals, progress, lambda: loop.time() - start_s))
        try:
            while not sending.done():
                await asyncio.wait([sending], timeout=_CHECK_S)
                progress.now_s = loop.time() - start_s
                self.on_progress(progress)
                if self.hopeless(progress):
                    break
        finally:
            sending.cancel()
            await asyncio.wait([sending])
        if not sending.cancelled():
            sending.result()
        return progress.samples

    async def _send_all(
        self, arrivals: Sequence[float], progress: Progress, now: Callable[[], float]
    ) -> None:
        async with asyncio.TaskGroup() as flying:
            for index, at_s in enumerate(arrivals):
                await asyncio.sleep(max(0.0, at_s - now()))
                flight = Sample(index, at_s, now())
                if len(progress.flights) >= self.max_in_flight:
                    progress.samples.append(flight.end(now(), NOT_SENT))
                else:
                    progress.flights[index] = flight
                    flying.create_task(self._fly(flight, progress, now))

    async def _fly(self, flight: Sample, progress: Progress, now: Callable[[], float]) -> None:
        try:
            reply = await self.ask(flight.index, lambda branch: flight.token(now(), branch))
            flight.end(now(), OK, reply=reply)
        except KvquiltError as error:
            flight.end(now(), status_of(type(error)), error.detail)
        finally:
            del progress.flights[flight.index]
        progress.samples.append(flight)
