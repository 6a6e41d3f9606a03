"""Measures how long passes take, on a GPU without waiting for them: by its own events, looked at later."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch


class DeviceEvent(Protocol):
    """``torch.cuda.Event``"""

    def record(self) -> None: ...
    def query(self) -> bool: ...
    def elapsed_time(self, end_event: Any) -> float: ...


def device_event(device: torch.device) -> Callable[[], DeviceEvent] | None:
    """Returns what makes a device's events; None: a pass has ended when it returns."""
    if device.type != "cuda":
        return None

    def event() -> DeviceEvent:
        made: DeviceEvent = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        return made

    return event


class PassTimes:
    """``tell`` is called with the seconds and rows of each pass, in order, once they are known."""

    def __init__(
        self,
        tell: Callable[[float, int], None],
        event: Callable[[], DeviceEvent] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tell, self._event, self._clock = tell, event, clock
        self._running: deque[tuple[DeviceEvent, DeviceEvent, int]] = deque()

    @contextmanager
    def measured(self, num_rows: int) -> Iterator[None]:
        """Of one that fails nothing is told."""
        if self._event is None:
            began_s = self._clock()
            yield
            self._tell(self._clock() - began_s, num_rows)
            return
        self._tell_ended()
        began, ended = self._event(), self._event()
        began.record()
        yield
        ended.record()
        self._running.append((began, ended, num_rows))

    def _tell_ended(self) -> None:
        while self._running and self._running[0][1].query():
            began, ended, num_rows = self._running.popleft()
            self._tell(began.elapsed_time(ended) / 1000, num_rows)
