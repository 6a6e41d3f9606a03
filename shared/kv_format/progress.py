"""Tells how far a chunk's file has arrived: one byte per layer, in a small file beside it.

The store gives the chunk's file its final size, writes parts as they arrive and marks them here; a reader on
the same node waits for the layer that it needs next. Byte 0 stands for the frame (the file's tail: seal and
footer), byte ``i + 1`` for layer ``i`` (its whole record batch): 0 not yet, 1 there, 2 will never come. Both
ends keep their descriptors, so neither file needs its name any more once it was opened.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from shared.errors import Unavailable
from shared.private_files import FILE_MODE

_PENDING, _THERE, _FAILED = b"\x00", b"\x01", b"\x02"
_POLL_S, _LONGEST_POLL_S = 0.0005, 0.002
STALLED_S = 10.0


class ProgressWriter:
    """The store's end."""

    def __init__(self, path: str | Path, num_layers: int) -> None:
        """
        Raises:
            OSError: there is no room even for this; nothing is left of it.
        """
        self.path = Path(path)
        self._num_marks = num_layers + 1
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
        try:
            os.pwrite(self._fd, _PENDING * self._num_marks, 0)
        except OSError:
            os.close(self._fd)
            self.path.unlink()
            raise

    def frame_arrived(self) -> None:
        os.pwrite(self._fd, _THERE, 0)

    def layer_arrived(self, layer: int) -> None:
        os.pwrite(self._fd, _THERE, layer + 1)

    def close(self, complete: bool, keep: bool = False) -> None:
        """Removes the file; ``keep``: leaves that to the caller. Not ``complete``: readers learn that the
        rest will never come."""
        if self._fd >= 0:
            os.pwrite(self._fd, (_THERE if complete else _FAILED) * self._num_marks, 0)
            os.close(self._fd)
            self._fd = -1
            if not keep:
                self.path.unlink(missing_ok=True)


class ProgressReader:
    """The reader's end. May be used from several threads at once."""

    def __init__(self, path: str | Path, stalled_s: float = STALLED_S) -> None:
        """``stalled_s``: how long nothing at all may arrive.

        Raises:
            FileNotFoundError: the chunk's file is whole by now, or it failed; ask the store again.
        """
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        self._num_marks = os.fstat(self._fd).st_size
        self._stalled_s = stalled_s

    def wait_for_frame(self) -> None:
        """Raises like ``wait_for_layer``."""
        self._wait(0)

    def wait_for_layer(self, layer: int) -> None:
        """Returns once the layer's bytes can be read.

        Raises:
            Unavailable: it will never come, or nothing came for ``stalled_s`` (the store's process may have
            died).
        """
        self._wait(layer + 1)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _wait(self, mark: int) -> None:
        seen, moved, pause_s = b"", time.monotonic(), _POLL_S
        while True:
            marks = os.pread(self._fd, self._num_marks, 0)
            match marks[mark : mark + 1]:
                case b"\x01":
                    return
                case b"\x02":
                    raise Unavailable("the chunk's KV did not arrive whole")
            if marks != seen:
                seen, moved, pause_s = marks, time.monotonic(), _POLL_S
            elif time.monotonic() - moved > self._stalled_s:
                raise Unavailable("the chunk's KV stopped arriving")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_POLL_S)  # whoever waits takes time from those who bring it
