"""One thread for what only one thread may do, and who gets at it next."""

from __future__ import annotations

import asyncio
import enum
import heapq
import itertools
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from shared.errors import Overloaded, Unavailable
from shared.request import RequestContext
from shared.threads import call_on

ResultT = TypeVar("ResultT")


class Turn(enum.IntEnum):
    """Questions go before ingestion: somebody waits for the answer. Among equals, first come, first
    served."""

    QUESTION = 0
    INGESTION = 1


class WorkerThread:
    """Belongs to one event loop, which is never blocked. Whoever is cancelled while waiting costs the thread
    nothing; what has begun runs to its end, so calls are to be short."""

    def __init__(
        self, name: str, max_waiting: int, worked: Callable[[float], None] = lambda seconds: None
    ) -> None:
        """``worked``: is told, in the event loop, for how long each call kept the thread."""
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._max_waiting, self._worked = max_waiting, worked
        self._waiting: list[tuple[Turn, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()
        self._busy = False
        self._closed = False

    @property
    def num_waiting(self) -> int:
        return sum(not turn.done() for _, _, turn in self._waiting)

    async def run(self, ctx: RequestContext, turn: Turn, call: Callable[[], ResultT]) -> ResultT:
        """
        Raises:
            DeadlineExceeded: the deadline had passed when the turn came; nothing was computed.
            Overloaded: too many wait.
            Unavailable: closed.
        """
        await self._wait(turn)
        loop = asyncio.get_running_loop()
        try:
            ctx.check_deadline("waiting for the auxiliary model")
            work = self._submit(lambda: self._timed(loop, call))
        except BaseException:
            self._next()
            raise
        work.add_done_callback(lambda _: call_on(loop, self._next))
        return await asyncio.wrap_future(work)

    async def close(self) -> None:
        """Waits for what is running; who still waits is told."""
        self._closed = True
        for _, _, turn in self._waiting:
            if not turn.done():
                turn.set_exception(_gone())
        await asyncio.to_thread(self._executor.shutdown, wait=True, cancel_futures=True)

    def check_invariants(self) -> None:
        assert self._busy or not self.num_waiting, "somebody waits for a thread that does nothing"

    async def _wait(self, turn: Turn) -> None:
        if self._closed:
            raise _gone()
        if not self._busy:
            self._busy = True
            return
        if self.num_waiting >= self._max_waiting:
            raise Overloaded(
                f"{self._max_waiting} requests wait for the auxiliary model already; retry later"
            )
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (turn, next(self._numbers), mine))
        try:
            await mine
        except asyncio.CancelledError:
            if not mine.cancelled():  # the turn came, but who waited is gone
                self._next()
            raise

    def _timed(self, loop: asyncio.AbstractEventLoop, call: Callable[[], ResultT]) -> ResultT:
        began = time.perf_counter()
        try:
            return call()
        finally:
            call_on(loop, self._worked, time.perf_counter() - began)

    def _submit(self, call: Callable[[], ResultT]) -> Future[ResultT]:
        try:
            return self._executor.submit(call)
        except RuntimeError:
            raise _gone() from None

    def _next(self) -> None:
        while self._waiting:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._busy = False


def _gone() -> Unavailable:
    return Unavailable("the selector is shutting down; retry")
