"""Parses documents in processes of their own, which are used again and again and replaced after one that
exceeded its limits.

    thread ──task──► process ──► text, or why there is none
       └── waits: kills it when its time is over, or when nobody waits for the document any more

Memory and computing time are limited by the kernel, time by the clock and the length of what comes back from
here. Pages that are pictures come back, too: the operator's command runs here, under limits of its own.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from services.ingestion.config import ParsingConfig
from services.ingestion.formats.document import ParsedDocument
from services.ingestion.formats.ocr import OcrFailed
from services.ingestion.formats.reading import ParserSettings
from services.ingestion.parsing.messages import (
    LENGTH,
    OUT_OF_MEMORY,
    STATUS_OUT_OF_MEMORY,
    Page,
    ParsingResult,
    ParsingTask,
    Recognised,
    packed,
    unpacked,
)
from shared.documents import SourceDocument
from shared.errors import InternalError, KvquiltError, UnreadableDocument
from shared.status import from_code

log = logging.getLogger(__name__)

_MODULE = "services.ingestion.parsing.child"
_PASSED_ON = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "LD_LIBRARY_PATH")
_LOOK_MS = 100
_CLOCK_PER_CPU = 4.0
_START_S = 60.0
_JSON_BYTES_PER_BYTE = 6  # at worst: \u0001
_SLACK_BYTES = 64 << 20  # headings, warnings, a page that is a picture
_PIECE_BYTES = 1 << 20


class ParserProcesses:
    """A ``services.ingestion.recipe.Parse``, to be called from as many threads as documents are read at the
    same time: there are no more processes than that. ``close`` ends those that nobody uses."""

    def __init__(self, config: ParsingConfig) -> None:
        self._config = config
        self._idle: list[ParserProcess] = []
        self._lock, self._closed = threading.Lock(), False

    def __call__(
        self, document: SourceDocument, settings: ParserSettings, check: Callable[[], None]
    ) -> ParsedDocument:
        """
        Raises:
            UnreadableDocument: says what is wrong with the document, or which limit it exceeded.
        """
        process = self._taken()
        try:
            told = process.read(document, settings, check)
        except BaseException:
            process.kill()
            raise
        self._give_back(process, told.worn)
        if told.code == OUT_OF_MEMORY:
            raise too_much_memory(self._config)
        if told.code:
            raise from_code(told.code, told.detail)
        return told.parsed

    def close(self) -> None:
        with self._lock:
            idle, self._idle, self._closed = self._idle, [], True
        for process in idle:
            process.kill()

    @property
    def idle(self) -> list[ParserProcess]:
        """Those that wait for a document."""
        return list(self._idle)

    def _taken(self) -> ParserProcess:
        while True:
            with self._lock:
                process = self._idle.pop() if self._idle else None
            if process is None:
                return ParserProcess(self._config)
            if process.alive:
                return process
            process.kill()

    def _give_back(self, process: ParserProcess, worn: bool) -> None:
        with self._lock:
            if keep := not worn and not self._closed:
                self._idle.append(process)
        if not keep:
            process.kill()


class ParserProcess:
    """One of them, on its own pipes."""

    def __init__(self, config: ParsingConfig) -> None:
        self._config = config
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        environment |= {
            "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in sys.path if path),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "MALLOC_ARENA_MAX": "2",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", _MODULE, str(config.memory_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,  # no secrets
            cwd="/",
            bufsize=0,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._asked, self._told = self._process.stdin, self._process.stdout
        self._used = False
        os.set_blocking(self._asked.fileno(), False)

    @property
    def process_id(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._asked, self._told):
            with contextlib.suppress(OSError):
                pipe.close()

    def read(
        self, document: SourceDocument, settings: ParserSettings, check: Callable[[], None]
    ) -> ParsingResult:
        """Reads what became of the document.

        Raises:
            UnreadableDocument: the process ended, or was too slow.
        """
        cpu_s = self._config.cpu_s_for(len(document.content))
        exchange = _Exchange(self._asked.fileno(), self._told.fileno(), check)
        exchange.left_s = _CLOCK_PER_CPU * cpu_s + (0.0 if self._used else _START_S)
        task = ParsingTask(
            document.document_id,
            document.media_type,
            settings.max_unpacked_bytes,
            settings.table_chars,
            settings.ocr is not None,
            cpu_s,
            self._config.text_bytes,
        )
        try:
            exchange.send(packed(task) + LENGTH.pack(len(document.content)))
            exchange.send(document.content)
            while isinstance(message := unpacked(exchange.received(self._most_bytes)), Page):
                page = exchange.received(self._most_bytes)
                exchange.send(packed(_recognised(settings, page)))
        except _EndedError:
            raise self._why_it_ended(document, cpu_s) from None
        except _LateError:
            raise too_slow(self._config, cpu_s) from None
        self._used = True
        if not isinstance(message, ParsingResult):
            raise InternalError("the parsing process tells what nobody asked")
        return message

    @property
    def _most_bytes(self) -> int:
        return self._config.text_bytes * _JSON_BYTES_PER_BYTE + _SLACK_BYTES

    def _why_it_ended(self, document: SourceDocument, cpu_s: int) -> KvquiltError:
        code = self._process.wait()
        log.warning("the process that read %r ended with %d", document.document_id[:80], code)
        if code == -signal.SIGXCPU:
            return too_slow(self._config, cpu_s)
        if code in (-signal.SIGKILL, STATUS_OUT_OF_MEMORY):  # the kernel kills whom it has no memory for
            return too_much_memory(self._config)
        if code == 1 and not self._used:
            return InternalError("the parsing process cannot be started; the service's log has the reason")
        return UnreadableDocument(
            "the document's parser crashed over it; save the document anew, or in another format"
        )


class _EndedError(Exception):
    """The process is gone."""


class _LateError(Exception):
    """It took too long by the clock."""


class _Exchange:
    """The two pipes of one process while it reads one document. ``left_s``: how long it may yet take."""

    def __init__(self, asked: int, told: int, check: Callable[[], None]) -> None:
        self._asked, self._told, self._check = asked, told, check
        self.left_s = math.inf

    def send(self, content: bytes) -> None:
        rest = memoryview(content)
        while rest:
            self._wait(self._asked, select.POLLOUT)
            with _ending():
                rest = rest[os.write(self._asked, rest[:_PIECE_BYTES]) :]

    def received(self, most_bytes: int) -> bytes:
        """One frame."""
        (length,) = LENGTH.unpack(self._exactly(LENGTH.size))
        if length > most_bytes:
            raise UnreadableDocument("the document becomes too much text; split it")
        return self._exactly(length)

    def _exactly(self, length: int) -> bytes:
        parts: list[bytes] = []
        while length:
            self._wait(self._told, select.POLLIN)
            with _ending():
                parts.append(os.read(self._told, min(length, _PIECE_BYTES)))
            if not parts[-1]:
                raise _EndedError
            length -= len(parts[-1])
        return b"".join(parts)

    def _wait(self, pipe: int, event: int) -> None:
        poll = select.poll()
        poll.register(pipe, event)
        while True:
            begun = time.monotonic()
            ready = poll.poll(_LOOK_MS)
            self.left_s -= time.monotonic() - begun
            if ready:
                return
            self._check()
            if self.left_s < 0:
                raise _LateError


@contextlib.contextmanager
def _ending() -> Any:
    try:
        yield
    except (BrokenPipeError, ConnectionResetError):
        raise _EndedError from None


def _recognised(settings: ParserSettings, page: bytes) -> Recognised:
    assert settings.ocr is not None
    try:
        return Recognised(settings.ocr(page))
    except OcrFailed as error:
        return Recognised(failed=str(error))


def too_slow(config: ParsingConfig, cpu_s: int) -> UnreadableDocument:
    return UnreadableDocument(
        f"reading the document took more than {cpu_s} s of computing, or {_CLOCK_PER_CPU * cpu_s:g} s by the "
        "clock (ingestion.parsing.cpu_s, cpu_s_per_mib); split it, save it anew, or raise the settings"
    )


def too_much_memory(config: ParsingConfig) -> UnreadableDocument:
    return UnreadableDocument(
        f"reading the document took more than {config.memory_bytes} bytes of memory "
        "(ingestion.parsing.memory_bytes); split it, or raise the setting"
    )
