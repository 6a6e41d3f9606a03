"""Reads documents ahead of those who take them: several at a time, handed over in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager

from cluster.cli.sources import Readable

NUM_READERS = 8
AHEAD_BYTES = 16 * 2**20


class ReadAhead(AbstractContextManager["ReadAhead"]):
    """Documents in the order of ``sources``. Those that are being read, or wait to be taken, are at most
    ``NUM_READERS``, and of ``AHEAD_BYTES`` together unless one alone is larger.

    Leaving it waits for nobody: what is being read is read to its end, and dropped.
    """

    def __init__(self, sources: Sequence[Readable]) -> None:
        self._waiting = deque(sources)
        self._begun: deque[tuple[Readable, int, Future[bytes]]] = deque()
        self._ahead_bytes = 0
        self._readers = ThreadPoolExecutor(NUM_READERS, thread_name_prefix="read-ahead")

    def __iter__(self) -> Iterator[tuple[Readable, Future[bytes]]]:
        """Each document with what reading it came to, which is settled."""
        self._begin()
        while self._begun:
            source, num_bytes, content = self._begun[0]
            content.exception()  # waits for it
            self._begun.popleft()
            self._ahead_bytes -= num_bytes
            self._begin()
            yield source, content

    def __exit__(self, *_: object) -> None:
        self._readers.shutdown(wait=False)

    def _begin(self) -> None:
        while self._waiting and len(self._begun) < NUM_READERS:
            num_bytes = self._waiting[0].num_bytes
            if self._begun and self._ahead_bytes + num_bytes > AHEAD_BYTES:
                return
            source = self._waiting.popleft()
            self._begun.append((source, num_bytes, self._readers.submit(source.read)))
            self._ahead_bytes += num_bytes
