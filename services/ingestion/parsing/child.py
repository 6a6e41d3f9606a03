"""The parsing process: `python -m services.ingestion.parsing.child MEMORY_BYTES` reads tasks from standard
input until that ends, and tells what became of each on standard output."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import resource
import sys
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from services.ingestion.formats.ocr import OcrFailed
from services.ingestion.formats.parse import parse
from services.ingestion.formats.reading import ParserSettings
from services.ingestion.parsing.messages import (
    LENGTH,
    OUT_OF_MEMORY,
    STATUS_OUT_OF_MEMORY,
    Page,
    ParsingResult,
    ParsingTask,
    Recognised,
    frame,
    packed,
    unpacked,
)
from shared.documents import SourceDocument
from shared.errors import KvquiltError, UnreadableDocument

_WORN_SHARE = 0.5


class ParsingProcess:
    """``memory_bytes``: what this process may take."""

    def __init__(self, asked: BinaryIO, told: BinaryIO, memory_bytes: int) -> None:
        self._asked, self._told, self._memory_bytes = asked, told, memory_bytes

    def serve(self) -> None:
        while (asked := self._receive()) is not None:
            task = unpacked(asked)
            assert isinstance(task, ParsingTask)
            _allow_cpu(task.cpu_s)
            told = self._read(task, self._receive() or b"")
            _allow_cpu(task.cpu_s)  # to tell it
            self._send(packed(told))

    def _read(self, task: ParsingTask, content: bytes) -> ParsingResult:
        settings = ParserSettings(
            self._recognised if task.recognises else None,
            max_unpacked_bytes=task.max_unpacked_bytes,
            table_chars=task.table_chars,
        )
        try:
            told = ParsingResult.of(
                parse(SourceDocument(task.document_id, content, task.media_type), settings)
            )
            if (size := len(told.text.encode())) > task.text_bytes:
                raise UnreadableDocument(
                    f"the document's text has {size} bytes, more than the {task.text_bytes} that "
                    "ingestion.parsing.text_bytes allows; split it, or raise the setting"
                )
        except KvquiltError as error:
            told = ParsingResult(error.code, error.detail)
        except MemoryError:
            return ParsingResult(OUT_OF_MEMORY, worn=True)
        return replace(told, worn=_held_bytes() > _WORN_SHARE * self._memory_bytes)

    def _recognised(self, page: bytes) -> str:
        self._send(packed(Page()), frame(page))
        recognised = unpacked(self._receive() or b"")
        assert isinstance(recognised, Recognised)
        if recognised.failed:
            raise OcrFailed(recognised.failed)
        return recognised.text

    def _receive(self) -> bytes | None:
        """None: nobody asks any more."""
        head = self._asked.read(LENGTH.size)
        return self._asked.read(LENGTH.unpack(head)[0]) if len(head) == LENGTH.size else None

    def _send(self, *frames: bytes) -> None:
        for one in frames:
            self._told.write(one)
        self._told.flush()


def _held_bytes() -> int:
    """Memory that this process keeps though it has nothing to do."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _allow_cpu(seconds: int) -> None:
    """From now on; what takes more ends this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(used.ru_utime + used.ru_stime) + seconds, most))


def main() -> None:
    memory_bytes = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):  # where memory runs out, this is the process to end, not the service
        Path("/proc/self/oom_score_adj").write_text("1000")
    logging.basicConfig(level=logging.WARNING, format="parsing: %(message)s")
    # What a library prints must not get between the frames.
    with os.fdopen(os.dup(1), "wb") as told, contextlib.suppress(BrokenPipeError):
        os.dup2(2, 1)
        try:
            ParsingProcess(sys.stdin.buffer, told, memory_bytes).serve()
        except MemoryError:
            os._exit(STATUS_OUT_OF_MEMORY)


if __name__ == "__main__":
    main()
