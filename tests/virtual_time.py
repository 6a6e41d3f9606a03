"""An event loop whose clock jumps: sleeping takes no time, and everything happens at exactly the instant it
was meant for."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")
_THREADS_S = 10.0


class _Skipping(selectors.SelectSelector):
    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:  # what a thread does is awaited, whose time does not jump
            ready = super().select(_THREADS_S)
            assert ready, "everybody waits and nothing is scheduled"
            return ready
        self.now_s += timeout
        return super().select(0)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._skipping = _Skipping()
        super().__init__(self._skipping)

    def time(self) -> float:
        return self._skipping.now_s

    def be_busy(self, seconds: float) -> None:
        """As if code had run for so long without giving way."""
        self._skipping.now_s += seconds


def run_virtually(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(work)


def virtual_loop() -> VirtualTimeLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    return loop
