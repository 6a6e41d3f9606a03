"""Keeps one of those compared in a process of its own: what it allocates is counted as its own, and it sleeps
while the other one works; or has several of them work through batches at once."""

from __future__ import annotations

import multiprocessing
import os
import resource
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from queue import SimpleQueue
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch

from shared.errors import InternalError, KvquiltError

P = ParamSpec("P")
T = TypeVar("T")
BatchT = TypeVar("BatchT")


class WorkerFailed(RuntimeError):
    """The worker's traceback."""


class WorkerDied(InternalError, WorkerFailed):
    """Its process ended, as the kernel has it where memory runs out."""


class Worker(AbstractContextManager["Worker"]):
    """Calls methods of what ``build`` makes, in a process of its own, which ends with this one however that
    ends.

    Raises:
        KvquiltError: one of ours that building it raised there. WorkerFailed: it failed otherwise.
    """

    end_s: float | None = None
    """The instant of ``time.monotonic()`` until which it may work."""

    def __init__(self, build: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        self._process = _processes().Process(target=_serve, args=(theirs, build, args, kwargs), daemon=True)
        self._process.start()
        theirs.close()
        self._receive()

    def call(self, method: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """
        Raises:
            KvquiltError: one of ours that the method raised, or ``WorkerDied``. WorkerFailed: it raised
            something else, or the time was up.
        """
        self._pipe.send((method, args, kwargs))
        result: T = self._receive()
        return result

    def __exit__(self, *_: object) -> None:
        self._pipe.close()
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()

    def _receive(self) -> Any:
        if self.end_s is not None and not self._pipe.poll(max(0.0, self.end_s - time.monotonic())):
            self._process.kill()
            raise WorkerFailed("the time was up before it answered")
        try:
            ok, value = self._pipe.recv()
        except EOFError:
            self._process.join(10)
            raise WorkerDied(
                f"a worker's process ended with {self._process.exitcode}; it may have run out of memory, of "
                "which fewer processes take less"
            ) from None
        if not ok:
            raise value if isinstance(value, KvquiltError) else WorkerFailed(value)
        return value


def in_parallel(
    asks: Sequence[Callable[[BatchT], T]], batches: Iterator[BatchT], in_time: Callable[[], bool]
) -> Iterator[tuple[BatchT, T]]:
    """Each batch with what one of ``asks`` made of it, as they come; each of these is called by one thread at
    a time. Nothing is begun when the time is up; what was begun is finished. Who is interrupted waits for
    none of them."""
    free: SimpleQueue[Callable[[BatchT], T]] = SimpleQueue()
    for ask in asks:
        free.put(ask)

    def work(batch: BatchT) -> tuple[BatchT, T]:
        ask = free.get()
        try:
            return batch, ask(batch)
        finally:
            free.put(ask)

    threads = ThreadPoolExecutor(len(asks))
    try:
        running: set[Future[tuple[BatchT, T]]] = set()
        more = True
        while more or running:
            while more and len(running) < len(asks):
                batch = next(batches, None) if in_time() else None
                more = batch is not None
                if batch is not None:
                    running.add(threads.submit(work, batch))
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


def peak_bytes(it: object) -> int:
    """Most memory that the process ever had: on a GPU if it works on one, else of the host. Weights, KV,
    everything."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return int(torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _processes() -> SpawnContext | ForkServerContext:
    """Begins processes with what takes seconds to import, by forks of one that has imported it; not where
    there is a GPU, which no fork may have seen."""
    if torch.cuda.is_available():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["transformers.modeling_utils"])
    return context


def _end_with_parent() -> None:
    """A parent that is killed tells nobody, and what was called may take minutes."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _serve(pipe: Connection, build: Callable[..., object], args: Any, kwargs: Any) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        it = build(*args, **kwargs)
        pipe.send((True, None))
        while True:
            method, args, kwargs = pipe.recv()
            pipe.send((True, method(it, *args, **kwargs)))
    except EOFError:
        pass
    except KvquiltError as error:
        pipe.send((False, error))
    except BaseException:
        pipe.send((False, traceback.format_exc()))
