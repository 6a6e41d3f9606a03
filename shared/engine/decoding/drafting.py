"""Drafts how a text goes on from what stands in it already: answers over documents quote them.

The last tokens are looked for in the text so far, which is the chunks of the request in their order, the
question, and what was generated. Behind the longest run of them that stood there before, of equally long ones
the last, is what probably comes next. A search compares all tokens with the last one and goes on with those
that are equal: some 10 µs over 8,000 tokens, so nothing is indexed. Pure: no model, no KV.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from shared.identity import TokenIds

Text = NDArray[np.int32]
Places = NDArray[np.intp]

LONGEST_RUN = 8
SHORTEST_RUN = 2
"""A single token stands in too many places to tell what comes behind it."""
FIRST_LEN = 4
MOST_REST = 15


@dataclass(slots=True)
class DraftCounts:
    """Drafts, their tokens, and those of these that were generated."""

    num_drafts: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0

    def add(self, num_drafted: int, num_accepted: int) -> None:
        self.num_drafts += 1
        self.drafted_tokens += num_drafted
        self.accepted_tokens += num_accepted


class Drafter:
    """Drafts for one branch: more tokens while its drafts are right, and more rarely while they are wrong::

        length   twice that of the one before if this was right to its end, else FIRST_LEN
        rest     steps without a draft after one of which nothing was right: 1, 3, 7, MOST_REST; else none

    ``context``: in front of the branch's ``own`` tokens; ``room``: how many more it will have at most;
    ``longest``: tokens of a draft.
    """

    def __init__(self, context: Text, own: Sequence[int], room: int, longest: int) -> None:
        self._end = len(context) + len(own)
        self._text: Text = np.empty(self._end + room, dtype=np.int32)
        self._text[: len(context)] = context
        self._text[len(context) : self._end] = own
        self._longest = longest
        self._length = min(FIRST_LEN, longest)
        self._rest = self._resting = 0

    def push(self, token_id: int) -> None:
        """The branch has this token now."""
        self._text[self._end] = token_id
        self._end += 1

    def draft(self, most: int) -> TokenIds:
        """Once a step: at most ``most`` tokens behind the last one; none if nothing is to be expected of it.
        The last token that there is room for is never drafted: the row in front of it tells it."""
        if self._resting:
            self._resting -= 1
            return ()
        count = min(most, self._length, len(self._text) - self._end - 1)
        source = repeated(self._text[: self._end]) if count > 0 else None
        if source is None:
            return ()
        # a source that reaches the end goes on with the draft's own beginning
        return tuple(np.resize(self._text[source : self._end], count).tolist())

    def judge(self, num_drafted: int, num_accepted: int) -> None:
        """The first ``num_accepted`` tokens of the last draft were right."""
        right = num_accepted == num_drafted
        self._length = min(2 * self._length if right else FIRST_LEN, self._longest)
        self._rest = 0 if num_accepted else min(2 * self._rest + 1, MOST_REST)
        self._resting = self._rest


def text_of(runs: Iterable[Sequence[int]]) -> Text:
    """One behind the other."""
    return np.fromiter(chain.from_iterable(runs), dtype=np.int32)


def repeated(text: Text) -> int | None:
    """The place behind the longest run of the last tokens, from ``SHORTEST_RUN`` to ``LONGEST_RUN`` of them,
    that stands in ``text`` once more; of equally long ones the last. None: there is none."""
    last, length = len(text) - 1, 1
    ends = np.flatnonzero(text[:last] == text[last])
    while length < LONGEST_RUN and len(longer := _preceded(ends, text, length)):
        ends, length = longer, length + 1
    return int(ends[-1]) + 1 if length >= SHORTEST_RUN else None


def _preceded(ends: Places, text: Text, length: int) -> Places:
    """Those of the places at which runs of ``length`` end that one token more belongs to."""
    ends = ends[ends >= length]
    preceded: Places = ends[text[ends - length] == text[len(text) - 1 - length]]
    return preceded
