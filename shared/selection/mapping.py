"""From the tokens of one tokenizer to those of another over the same text, by the characters that both stand
for.

A token touches another iff their spans (``shared.selection.spans``) share a character. What is said of tokens
is carried over by that alone, so a picked token picks every token that it touches and no other: all of them
together pick all, none pick none, more never pick less, and over one and the same tokenizer a token picks
itself and whatever shares a character with it. A text of which the first tokenizer makes no token at all
(white space, for some) carries nothing.

Shapes: S tokens of the source, T of the target, C characters.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shared.selection.spans import Ints, TokenSpans

UNTOUCHED = np.iinfo(np.int64).max


def carry_picks(picked_S: NDArray[np.bool_], source: TokenSpans, target: TokenSpans) -> NDArray[np.bool_]:
    """Marks the tokens of ``target`` that are touched by a picked one of ``source``."""
    touched_T: NDArray[np.bool_] = carry_ranks(np.where(picked_S, 0, UNTOUCHED), source, target) == 0
    return touched_T


def carry_ranks(ranks_S: Ints, source: TokenSpans, target: TokenSpans) -> Ints:
    """Of every token of ``target`` the smallest rank among the tokens of ``source`` that touch it;
    ``UNTOUCHED`` if none does."""
    rank_C = np.full(source.num_chars, UNTOUCHED)
    chars, tokens = _chars_of(source)
    np.minimum.at(rank_C, chars, np.asarray(ranks_S, dtype=np.int64)[tokens])
    ranks_T = np.full(len(target), UNTOUCHED)
    chars, tokens = _chars_of(target)
    np.minimum.at(ranks_T, tokens, rank_C[chars])
    return ranks_T


def carry_scores(
    scores_S: NDArray[np.float32], source: TokenSpans, target: TokenSpans
) -> NDArray[np.float32]:
    """Of every token of ``target`` the largest score among the tokens of ``source`` that touch it; 0 if none
    does."""
    best_first = np.argsort(-scores_S, kind="stable")
    ranks_T = carry_ranks(np.argsort(best_first), source, target)
    touched_T = ranks_T != UNTOUCHED
    scores_T = np.zeros(len(target), dtype=np.float32)
    scores_T[touched_T] = scores_S[best_first[ranks_T[touched_T]]]
    return scores_T


def _chars_of(spans: TokenSpans) -> tuple[Ints, Ints]:
    """Every (character, token) of which one stands for the other."""
    lens = spans.ends - spans.starts
    tokens = np.repeat(np.arange(len(spans)), lens)
    firsts = np.cumsum(lens) - lens
    return np.arange(len(tokens)) - (firsts - spans.starts)[tokens], tokens
