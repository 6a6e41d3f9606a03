"""Bounds how long a call is repeated: exponential backoff with jitter, bounded by time, and short with a
server known to be down."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from shared.errors import Unavailable

log = logging.getLogger(__name__)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0


@dataclass(frozen=True, slots=True)
class Clock:
    """Seconds that never go back, sleeping, and numbers in [0, 1) for jitter: tests give others."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    random: Callable[[], float] = random.random


class Unreachable(Unavailable):
    """Nobody answered. A server that answers, if only to say that it is busy, is there."""


class Retries:
    """State of one server, as all calls to it know it. Thread-safe.

    Once a call has given up on a server that nobody reached, every other fails at its first error, until
    there is an answer: whoever can do without the server should not wait for it again and again.
    """

    def __init__(self, total_s: float, clock: Clock | None = None) -> None:
        self.total_s, self.clock = total_s, clock or Clock()
        self.is_down = False

    def attempts(self) -> Attempts:
        return Attempts(self)


class Attempts:
    """One call's."""

    def __init__(self, retries: Retries) -> None:
        self._retries, self._clock = retries, retries.clock
        self._num_failed, self._since_s = 0, self._clock.now()

    def failed(self, error: Unavailable) -> None:
        """Returns when it is time for the next attempt.

        Raises:
            Unavailable: ``error``, if there is none.
        """
        self._num_failed += 1
        limit_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(self._num_failed - 1, 10))
        pause_s = limit_s * (0.5 + self._clock.random() / 2)
        if not isinstance(error, Unreachable):
            self._retries.is_down = False
        if self._retries.is_down or self._clock.now() + pause_s - self._since_s > self._retries.total_s:
            log.warning("gave up after %d attempts: %s", self._num_failed, error.__cause__ or error)
            self._retries.is_down = isinstance(error, Unreachable)
            raise error
        log.info(
            "attempt %d failed, the next follows in %.2f s: %s",
            self._num_failed,
            pause_s,
            error.__cause__ or error,
        )
        self._clock.sleep(pause_s)

    def succeeded(self) -> None:
        """Or came further: patience begins anew."""
        self._retries.is_down = False
        self._num_failed, self._since_s = 0, self._clock.now()
