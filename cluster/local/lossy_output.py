"""Lets a process outlive that its log has no room on the disk.

Ray's thread that brings the workers' lines to the driver's output ends for good with the first one that
cannot be written: after a disk was full for a moment nothing would be in the log any more.
"""

from __future__ import annotations

import sys
from typing import Any, TextIO, cast


class LossyOutput:
    """A stream to write text to, like ``inner`` in everything else. What cannot be written is lost, and said
    to be as soon as there is room again."""

    def __init__(self, inner: TextIO) -> None:
        self._inner = inner
        self._why, self._num_lost = "", 0

    def write(self, text: str) -> int:
        try:
            if self._why:
                self._inner.write(f"{self._num_lost} lines are missing here: {self._why}\n")
                self._why, self._num_lost = "", 0
            self._inner.write(text)
        except OSError as error:
            self._why = error.strerror or str(error)
            self._num_lost += text.count("\n")
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        try:
            self._inner.flush()
        except OSError as error:
            self._why = error.strerror or str(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def keep_writing() -> None:
    """Of this process, whatever becomes of the disk that its output goes to."""
    sys.stdout = cast(TextIO, LossyOutput(sys.stdout))
    sys.stderr = cast(TextIO, LossyOutput(sys.stderr))
