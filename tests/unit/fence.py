"""What unit tests may not do: reach another process by a socket, sleep, start Ray.

Refused with ``OutsideUnit``, which no ``except Exception`` of the code under test catches; a test in which
something was refused fails in the end, whoever swallowed it. Time that passes is a fake clock's
(``tests.virtual_time`` for asyncio, where a sleep takes none), a peer is a fake transport, and what a thread
does is awaited by an event or a condition, not by looking again after a while. What needs more belongs in
``tests/integration``.

Sockets and processes are watched by an audit hook, below whatever name somebody imported; ``socketpair``,
which an event loop opens for itself, passes, as does ``asyncio.sleep(0)``. gRPC opens its sockets below
Python, so its channels and servers are refused. Code under test (never a test) may nap for at most 10 ms: it
polls what another process writes, of which no event tells. Libraries may, as a compiler that waits for its
workers does.
"""

from __future__ import annotations

import asyncio
import sys
import time
from asyncio.base_events import BaseEventLoop
from asyncio.futures import _set_result_unless_cancelled  # type: ignore[attr-defined]
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import grpc
import pytest

from tests.virtual_time import VirtualTimeLoop

_SOCKET_EVENTS = {
    "socket.connect",
    "socket.bind",
    "socket.sendto",
    "socket.getaddrinfo",
    "socket.gethostbyname",
}
_RAY_PROGRAMS = ("gcs_server", "raylet", "ray::")
_GRPC_DOORS = ("insecure_channel", "secure_channel", "server")
_standing: list[Fence] = []
_LONGEST_POLL_S = 0.01
_TESTS, _PROJECT = str(Path(__file__).parents[1]), str(Path(__file__).parents[2])
_real_sleep = time.sleep
_real_call_later = BaseEventLoop.call_later


class OutsideUnit(BaseException):
    """Not an ``Exception``: nobody retries it."""


class Fence:
    """Stands while the context is open. ``refused`` names everything that was."""

    def __init__(self) -> None:
        self.refused: list[str] = []
        self._patches = pytest.MonkeyPatch()

    def __enter__(self) -> Self:
        _standing.append(self)
        self._patches.setattr(time, "sleep", self._time_sleep)
        self._patches.setattr(BaseEventLoop, "call_later", self._call_later())
        for door in _GRPC_DOORS:
            for module in (grpc, grpc.aio):
                self._patches.setattr(module, door, self._refusing(f"{module.__name__}.{door}"))
        return self

    def __exit__(self, *_: object) -> None:
        self._patches.undo()
        _standing.remove(self)

    def refuse(self, what: str) -> None:
        self.refused.append(what)
        raise OutsideUnit(f"{what}: not in a unit test; see tests/unit/fence.py")

    def _time_sleep(self, seconds: float) -> None:
        caller = sys._getframe(1).f_code.co_filename
        foreign = "site-packages" in caller or not caller.startswith(_PROJECT)
        if not foreign and seconds > (0 if caller.startswith(_TESTS) else _LONGEST_POLL_S):
            self.refuse(f"time.sleep({seconds:g})")
        _real_sleep(seconds)

    def _call_later(self) -> Callable[..., asyncio.TimerHandle]:
        """``asyncio.sleep`` under any name that somebody gave it: it is what calls with this callback."""

        def call_later(
            loop: BaseEventLoop, delay: float, callback: Callable[..., object], *args: Any, **options: Any
        ) -> asyncio.TimerHandle:
            if callback is _set_result_unless_cancelled and not isinstance(loop, VirtualTimeLoop):
                self.refuse(f"asyncio.sleep({delay:g})")
            return _real_call_later(loop, delay, callback, *args, **options)

        return call_later

    def _refusing(self, what: str) -> Callable[..., None]:
        return lambda *_args, **_options: self.refuse(what)


def _watch(event: str, args: tuple[Any, ...]) -> None:
    if not _standing:
        return
    if event in _SOCKET_EVENTS:
        _standing[-1].refuse(f"{event}{args[1:]}")
    if event == "subprocess.Popen" and any(name in str(args[:2]) for name in _RAY_PROGRAMS):
        _standing[-1].refuse("starting Ray")


sys.addaudithook(_watch)
