"""Text of a growing run of tokens: whole characters only, and nothing that may become a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]
_UNFINISHED = "\ufffd"


class TextStream:
    """Tokens in, text out as early as it is certain.

    Tokenizers decode a token differently after others, so a window of tokens is decoded twice, with and
    without the new ones (``_ids[:_read]`` is emitted text, ``_start`` where the window begins).
    """

    def __init__(self, decode: Decode | None, stop: Sequence[str]) -> None:
        self._decode = decode
        self._stop = tuple(stop)
        self._ids: list[int] = []
        self._start = 0
        self._read = 0
        self._held = ""
        self.stopped = False

    def push(self, token_id: int) -> str:
        """Text that became certain with this token. Sets ``stopped`` when a stop string is complete."""
        if self._decode is None:
            return ""
        self._ids.append(token_id)
        known = self._decode(self._ids[self._start : self._read])
        text = self._decode(self._ids[self._start :])
        if text.endswith(_UNFINISHED):
            return ""
        self._start, self._read = self._read, len(self._ids)
        return self._release(text[len(known) :])

    def finish(self) -> str:
        """What was held back, at the end of the branch; nothing after a stop string."""
        if self._decode is None or self.stopped:
            return ""
        known = self._decode(self._ids[self._start : self._read])
        rest = self._decode(self._ids[self._start :])[len(known) :]
        self._start = self._read = len(self._ids)
        text = self._release(rest)
        held, self._held = self._held, ""
        return text + held

    def _release(self, new: str) -> str:
        text = self._held + new
        ends = [index for stop in self._stop if (index := text.find(stop)) >= 0]
        if ends:
            self.stopped, self._held = True, ""
            return text[: min(ends)]
        keep = max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that begins ``stop``."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
