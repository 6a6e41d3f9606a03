"""Says which tokens may come next in a text that keeps to a grammar, branch by branch.

The library (``llguidance``) works over bytes: a token may come if the text that ends with it can still become
one that the grammar allows. So what a branch may say depends on its tokens alone, never on whom it runs with.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from shared.errors import InvalidRequest
from shared.generation.response_format import FIELD

if TYPE_CHECKING:
    from llguidance import LLMatcher

Bits = NDArray[np.int32]
"""One bit per token, 32 to a number, the lowest first."""


@dataclass(slots=True, eq=False)
class Grammar:
    """``matcher``: at the beginning of a text; it is never told a token. ``broken``: a text of it was too
    much; all texts share what was worked out, so it is for none that begins later."""

    matcher: LLMatcher
    broken: bool = False

    def begin(self) -> GrammarState:
        return GrammarState(self, self.matcher.deep_copy())


class GrammarState:
    """State of a text in its grammar; nobody shares it. One that broke allows everything, and says so
    at the next token: who else draws in the same step is not to suffer."""

    __slots__ = ("_bits", "_grammar", "_matcher", "_off")

    def __init__(self, grammar: Grammar, matcher: LLMatcher, off: bool = False) -> None:
        self._grammar = grammar
        self._matcher = matcher
        self._bits: Bits | None = None
        self._off = off

    @property
    def complete(self) -> bool:
        """Nothing can follow."""
        return bool(self._matcher.is_stopped()) and not self._matcher.is_error()

    def bits(self) -> Bits | None:
        """Of the tokens that may come next; None: the grammar has no say in it."""
        if self._bits is None and not self._off:
            bits = np.frombuffer(self._matcher.compute_bitmask(), np.int32)
            self._off = bool(self._matcher.is_error()) or not bits.any()
            self._bits = None if self._off else bits
        return self._bits

    def copy(self) -> GrammarState:
        state = GrammarState(self._grammar, self._matcher.deep_copy(), self._off)
        state._bits = self._bits
        return state

    def end(self) -> None:
        """The text ends here, by a mark that is no token of it.

        Raises:
            InvalidRequest: the grammar broke.
        """
        if self._off:
            raise self._broken()

    def push(self, token_id: int) -> None:
        """The text has this token now.

        Raises:
            InvalidRequest: the grammar broke: what is left of it is too much to follow.
        """
        self._bits = None
        if self._off or not self._matcher.consume_token(token_id):
            self._off = True
            raise self._broken()

    def after(self, token_ids: Sequence[int]) -> GrammarState | None:
        """The state behind these tokens as well; None: they do not fit."""
        state = GrammarState(self._grammar, self._matcher.deep_copy(), self._off)
        fits = not state._off and state._matcher.try_consume_tokens(list(token_ids)) == len(token_ids)
        return state if fits else None

    def before(self, num_tokens: int) -> GrammarState | None:
        """The state in front of the last tokens; None: these are more than it was told, or it broke."""
        state = GrammarState(self._grammar, self._matcher.deep_copy(), self._off)
        fits = not state._off and (not num_tokens or state._matcher.rollback(num_tokens))
        return state if fits else None

    def along(self, draft: Sequence[int]) -> Iterator[GrammarState | None]:
        """The states behind each token of a draft. Behind one that may not stand there nobody looks: None."""
        state: GrammarState | None = self
        for token_id in draft:
            state = None if state is None or state.complete else state.after((token_id,))
            yield state

    def _broken(self) -> InvalidRequest:
        self._grammar.broken = True
        return InvalidRequest(
            f"{FIELD}: the schema became too much to follow in the middle of the text "
            f"({self._matcher.stop_reason()}); simplify its patterns, and the ways it leaves open"
        )
