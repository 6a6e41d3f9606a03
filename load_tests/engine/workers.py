"""A process that holds one of those compared: what it allocates is counted as its own, and it sleeps while
the other one works."""

from __future__ import annotations

import multiprocessing
import resource
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

import torch


class WorkerFailed(RuntimeError):
    """The worker's traceback."""


class Worker:
    """Calls methods of what ``build`` makes, in a process of its own.

    Raises:
        WorkerFailed: building it failed there.
    """

    def __init__(self, build: Callable[..., Any], *args: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, build, args), daemon=True)
        self._process.start()
        theirs.close()
        self._receive()

    def call(self, method: str, *args: Any) -> Any:
        """
        Raises:
            WorkerFailed: the method raised, or the process died.
        """
        self._pipe.send((method, args))
        return self._receive()

    def peak_bytes(self) -> int:
        """Most memory that the process ever had: on a GPU if it works on one, else of the host. Weights, KV,
        everything."""
        return int(self.call("__peak__"))

    def close(self) -> None:
        self._pipe.close()
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()

    def _receive(self) -> Any:
        try:
            ok, value = self._pipe.recv()
        except EOFError:
            self._process.join(10)
            raise WorkerFailed(
                f"the process ended with {self._process.exitcode}; it may have run out of memory"
            ) from None
        if not ok:
            raise WorkerFailed(value)
        return value

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def peak_bytes() -> int:
    """Of this process."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return int(torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _serve(pipe: Connection, build: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        it = build(*args)
        pipe.send((True, None))
        while True:
            method, arguments = pipe.recv()
            if method == "__peak__":
                pipe.send((True, peak_bytes()))
            else:
                pipe.send((True, getattr(it, method)(*arguments)))
    except EOFError:
        pass
    except BaseException:
        pipe.send((False, traceback.format_exc()))
