"""Finds the characters of a text that each of its tokens stands for, by any tokenizer that can tell.

The spans of a text's tokens leave no character out. What a tokenizer reports is taken as it is, before any
post-processor trims it, and completed:

* A **zero-width** span (a token that stands for nothing in the text) is given the character it stands in
  front of, at the end of the text the last one.
* **Characters of no token** (white space that a tokenizer drops, marks that its normaliser removes or
  composes) belong to the token behind them, as a space does in most vocabularies; combining marks and joiners
  to the token in front, whose character they change; at the end of the text to the last token.
* **Pieces of one character** (bytes of an emoji, an expanded ligature, the space that some tokenizers put in
  front of a text) all have that character's span, or that of the run of unknown characters of which they are
  bytes: they are touched together.
* **Special tokens** are never added, and text that looks like one stays text, but for those of the template
  around a chunk. Added tokens that are not special have the span of the text that they match.

    text     e ◌́ l a n ␣ ␣ v i t a l
    reports  e   l a n     v i t a l        a tokenizer that drops accents and spaces
    spans    [é][l a n][␣ ␣ v i t a l]
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.errors import InvalidRequest, ModelUnsupported
from shared.piece_encoder import PieceEncoder, backend_of
from shared.prompt import PromptTokenizer

Ints = NDArray[np.int64]
_CHANGES_WHAT_IS_IN_FRONT = ("Mn", "Mc", "Me", "Cf")


@dataclass(frozen=True, slots=True, eq=False)
class TokenSpans:
    """Token ``i`` of a text stands for its characters [starts[i], ends[i]), at least one; spans may share
    characters.

    ``num_chars`` is at least 1: an empty text has one character of nothing, should a tokenizer make tokens of
    it.
    """

    token_ids: tuple[int, ...]
    starts: Ints
    ends: Ints
    num_chars: int

    def __len__(self) -> int:
        return len(self.token_ids)


class SpanTokenizer:
    """Text to ids and spans, without special tokens: the ids of ``PromptTokenizer.encode``."""

    def __init__(self, tokenizer: Any, name: str) -> None:
        """
        tokenizer: of ``transformers``, a ``tokenizers.Tokenizer``, or the ``PromptTokenizer`` of a model
        whose chunks are read.

        Raises:
            ModelUnsupported: it cannot say where in the text its tokens are; names it.
        """
        self._around = ("", "")
        if isinstance(tokenizer, PromptTokenizer):
            before, after = tokenizer.template.chunk.split("{text}")
            self._around = before, after
            if tokenizer.pieces is not None:
                self._pieces = tokenizer.pieces
                return
            tokenizer = tokenizer.tokenizer
        backend = backend_of(tokenizer)
        if backend is None:
            raise ModelUnsupported(
                f"tokenizer of {name!r}: {type(tokenizer).__name__} gives no character offsets, so its "
                "tokens cannot be found in "
                "another model's; use a model whose tokenizer has a fast version (tokenizer.json)"
            )
        try:
            self._pieces = PieceEncoder(backend)
        except Exception as error:
            raise ModelUnsupported(
                f"tokenizer of {name!r}: it cannot be copied, because a part of it is written in "
                f"Python ({error})"
            ) from error

    def tokenize(self, text: str) -> TokenSpans:
        """
        Raises:
            InvalidRequest: the text is not Unicode (half of a surrogate pair).
        """
        return self._tokenize(text, "", "")

    def tokenize_chunk(self, text: str) -> TokenSpans:
        """As ``tokenize``, of a chunk's text with its template around it: special tokens of the template are
        tokens."""
        before, after = self._around
        if text.startswith(before) and text[len(before) :].endswith(after):
            return self._tokenize(text, before, after)
        return self._tokenize(text, "", "")

    def _tokenize(self, text: str, before: str, after: str) -> TokenSpans:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidRequest(
                "text: holds half of a surrogate pair, which is no character; remove it"
            ) from None
        inner = text[len(before) : len(text) - len(after)]
        marked = self._pieces.marked(before) + inner + self._pieces.marked(after)
        encoding = self._pieces.encode(marked)
        offsets = self._pieces.unmarked(marked, np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2))
        starts, ends = _complete(offsets[:, 0], offsets[:, 1], text)
        return TokenSpans(tuple(encoding.ids), starts, ends, max(1, len(text)))


def _complete(starts: Ints, ends: Ints, text: str) -> tuple[Ints, Ints]:
    """The rules at the top of this module, for spans in any order."""
    num_chars = max(1, len(text))
    starts = np.minimum(starts, num_chars - 1)
    ends = np.maximum(ends, starts + 1)
    if not len(starts):
        return starts, ends
    order = np.argsort(starts, kind="stable")
    start, end = starts[order], ends[order]
    # [i]: how far the tokens in front of the i-th go
    reach = np.maximum.accumulate(np.concatenate([[0], end]))
    for i in np.flatnonzero(start > reach[:-1]):
        border = _border(text, int(reach[i]), int(start[i])) if i else 0
        end[:i][end[:i] == reach[i]] = border
        start[i : np.searchsorted(start, start[i], side="right")] = border
    end[end == reach[-1]] = num_chars
    starts[order], ends[order] = start, end
    return starts, ends


def _border(text: str, begin: int, end: int) -> int:
    """Up to here the characters [begin, end) of no token belong to the token in front of them."""
    while begin < end and unicodedata.category(text[begin]) in _CHANGES_WHAT_IS_IN_FRONT:
        begin += 1
    return begin
