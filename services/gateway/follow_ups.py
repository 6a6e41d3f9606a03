"""Finds out what to search by where a question follows others: "And when?" alone finds nothing.

The model that is served writes it anew so that it stands alone, or what the user asked before is searched
along with it. Where the model says nothing of use, or not in time, the question is searched by as it is, and
the answer says so.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, replace

from services.gateway.config import FollowUpsConfig, FollowUpSearch
from services.gateway.ports import Generating
from services.gateway.regeneration import generate_with_retry
from shared.answer import FollowUp, Inquiry
from shared.earlier_turns import EarlierTurn, Speaker
from shared.errors import KvquiltError, Unavailable
from shared.generation.asked import SamplingParams
from shared.generation.modes import ReuseMode
from shared.generation.orders import NO_ADAPTER, GenerationOrder, Reuse
from shared.generation.told import BranchDoneEvent, DoneEvent, TokenEvent, Usage
from shared.request import RequestContext

_MOST_CHARS = 1000  # of a turn: its beginning says what it is about
_ASKED = """\
Write the last question of each conversation again so that it can be understood without the conversation: \
put names in the place of words such as "it", "he" or "there". Do not answer it.

Conversation:
User: Who painted The Night Watch?
Assistant: Rembrandt painted The Night Watch.
Last question: Where does it hang?
Written again: Where does The Night Watch hang?

Conversation:
{said}
Last question: {question}
Written again:"""
_LABEL = "Written again:"
_QUOTES = "\"'`*“”„‘’ "


@dataclass(frozen=True, slots=True)
class SearchedBy:
    """``queries``: one for each question. ``note``: why they are not what was wanted; ``usage``: of the model
    that wrote them, None: it was not asked."""

    queries: tuple[str, ...]
    follow_up: FollowUp = FollowUp.NONE
    note: str = ""
    usage: Usage | None = None

    def charged(self, usage: Usage) -> Usage:
        """``usage`` with the tokens that writing them took."""
        if self.usage is None:
            return usage
        names = ("prompt_tokens", "reused_tokens", "recomputed_tokens", "generated_tokens")
        return replace(usage, **{name: getattr(usage, name) + getattr(self.usage, name) for name in names})


AS_ASKED = SearchedBy(())
"""Nothing was searched."""


class FollowUps:
    def __init__(self, config: FollowUpsConfig, generator: Generating) -> None:
        self._config, self._generator = config, generator

    async def searched_by(self, ctx: RequestContext, inquiry: Inquiry) -> SearchedBy:
        """Of several questions, which stand beside each other, each as it is."""
        asked = inquiry.questions
        turns = inquiry.turns[-self._config.most_turns :]
        if not inquiry.turns or len(asked) != 1:
            return SearchedBy(asked)
        match self._config.search:
            case FollowUpSearch.LAST:
                return SearchedBy(asked, FollowUp.LAST)
            case FollowUpSearch.JOINED:
                before = [_shortened(turn) for turn in turns if turn.speaker is Speaker.USER]
                return SearchedBy(("\n".join([*before, asked[0]]),), FollowUp.JOINED)
            case FollowUpSearch.REWRITE:
                return await self._rewritten(ctx, turns, asked[0])

    async def _rewritten(
        self, ctx: RequestContext, turns: tuple[EarlierTurn, ...], question: str
    ) -> SearchedBy:
        within_s = min(self._config.timeout_s, ctx.remaining_s / 2)
        try:
            async with asyncio.timeout(within_s):
                text, usage = await self._written(ctx.lasting(within_s), turns, question)
        except TimeoutError:
            return _as_it_is(question, f"no answer within {within_s:.3g} s")
        except KvquiltError as error:
            return _as_it_is(question, error.detail)
        if query := _cleaned(text):
            return SearchedBy((query,), FollowUp.REWRITTEN, usage=usage)
        return _as_it_is(question, "the model wrote none", usage)

    async def _written(
        self, ctx: RequestContext, turns: tuple[EarlierTurn, ...], question: str
    ) -> tuple[str, Usage]:
        said = "\n".join(f"{turn.speaker}: {_shortened(turn)}" for turn in turns)
        order = GenerationOrder(
            chunks=(),
            questions=(_ASKED.format(said=said, question=question),),
            reuse=Reuse(ReuseMode.FULL, adapter=NO_ADAPTER),
            sampling=SamplingParams(max_tokens=self._config.max_tokens),
        )
        text, usage = "", None
        async with aclosing(generate_with_retry(lambda: self._generator.generate(ctx, order), ctx)) as events:
            async for event in events:
                match event:
                    case TokenEvent() | BranchDoneEvent():
                        text += event.text
                    case DoneEvent():
                        usage = event.usage
        if usage is None:
            raise Unavailable("the answer broke off")
        return text, usage


def _as_it_is(question: str, why: str, usage: Usage | None = None) -> SearchedBy:
    note = f"the question was searched by as it is, since it could not be written anew: {why}"
    return SearchedBy((question,), FollowUp.FAILED, note, usage)


def _cleaned(text: str) -> str:
    """The first line that says something, without what models put around it; empty: there is none."""
    for line in text.splitlines():
        said = line.strip().removeprefix(_LABEL).strip(_QUOTES)
        if any(character.isalnum() for character in said):
            return said
    return ""


def _shortened(turn: EarlierTurn) -> str:
    return turn.text[:_MOST_CHARS]
