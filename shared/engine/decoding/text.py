"""Text of a growing run of tokens: whole characters only, nothing that may become a stop string, and, if that
is asked for, no sentence twice."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from shared.engine.decoding.drafting import Drafter
from shared.engine.decoding.grammar import GrammarState
from shared.generation.asked import SamplingParams
from shared.generation.told import FinishReason

Decode = Callable[[Sequence[int]], str]
_UNFINISHED = "\ufffd"
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
_MIN_REPEATED = 24
"""Characters of a sentence that may stand in a text once only: shorter ones may be items of a list."""


class TextStream:
    """Tokens in, text out as early as it is certain.

    Tokenizers decode a token differently after others, so a window of tokens is decoded twice, with and
    without the new ones (``_ids[:_read]`` is emitted text, ``_start`` where the window begins).

    ``stop_repeated``: a sentence or line that has been emitted (``_said``) is a stop string from then on.
    ``_sentence``: what was emitted of the one that is not complete yet.
    """

    def __init__(self, decode: Decode | None, stop: Sequence[str], stop_repeated: bool = False) -> None:
        self._decode = decode
        self._stop = tuple(stop)
        self._stop_repeated = stop_repeated
        self._said: tuple[str, ...] = ()
        self._sentence = ""
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
        """Returns what was held back, at the end of the branch; nothing after a stop string, and no sentence
        that was being repeated."""
        if self._decode is None or self.stopped:
            return ""
        known = self._decode(self._ids[self._start : self._read])
        rest = self._decode(self._ids[self._start :])[len(known) :]
        self._start = self._read = len(self._ids)
        text = self._release(rest)
        held, self._held = self._held, ""
        if len(held) >= _MIN_REPEATED and any(said.startswith(held) for said in self._said):
            self.stopped = True
            return text
        return text + held

    def _release(self, new: str) -> str:
        text = self._held + new
        stops = self._stop + self._said
        ends = [index for stop in stops if (index := text.find(stop)) >= 0]
        if ends:
            self.stopped, self._held = True, ""
            return text[: min(ends)]
        keep = max((_overlap(text, stop) for stop in stops), default=0)
        self._held = text[len(text) - keep :]
        emitted = text[: len(text) - keep]
        return self._sentence_by_sentence(emitted) if self._stop_repeated else emitted

    def _sentence_by_sentence(self, text: str) -> str:
        """Notes what is complete; the beginning of the next sentence is released anew, since it may begin to
        say the same."""
        *complete, rest = _SENTENCE_END.split(self._sentence + text)
        self._said += tuple(sentence for sentence in complete if len(sentence) >= _MIN_REPEATED)
        if not complete or not rest:
            self._sentence = rest
            return text
        self._sentence, self._held = "", rest + self._held
        return text[: len(text) - len(rest)] + self._release("")


@dataclass(slots=True)
class Growth:
    """The growth of a branch by sampling: the text of its tokens, and when it ends. ``eos_ids``: end marks;
    empty when they are to be ignored. ``drafter``: is told its tokens, and so is ``grammar``, behind whose
    last possible token the text ends without an end mark."""

    params: SamplingParams
    text: TextStream
    eos_ids: Collection[int]
    drafter: Drafter | None = None
    num_tokens: int = 0
    grammar: GrammarState | None = None

    def add(self, token_id: int) -> tuple[str, FinishReason | None]:
        """Text that became certain with this token, and why it is the last one, if it is.

        Raises:
            InvalidRequest: the grammar broke.
        """
        is_mark = token_id in self.eos_ids
        if self.grammar is not None:
            self.grammar.end() if is_mark else self.grammar.push(token_id)
        self.num_tokens += 1
        if self.drafter is not None:
            self.drafter.push(token_id)
        # the end mark is no text, whatever the tokenizer makes of it
        text = "" if is_mark else self.text.push(token_id)
        complete = self.grammar is not None and self.grammar.complete
        if is_mark or self.text.stopped or complete:
            return text, FinishReason.STOP
        return text, FinishReason.LENGTH if self.num_tokens >= self.params.limit else None

    def finish(self, reason: FinishReason) -> tuple[str, FinishReason]:
        """Text that was held back, and why the branch really ended: that may complete a stop string."""
        rest = self.text.finish()
        return rest, FinishReason.STOP if self.text.stopped else reason


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that begins ``stop``."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
