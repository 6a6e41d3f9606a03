"""Answers so many questions at once, in turns over the tenants; what an answer cost is charged to whoever
asked."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing

from services.gateway.ports import Answering
from shared.admission.charging import charged
from shared.admission.entrance import Entrance
from shared.admission.turns import Turns
from shared.answer import AnswerEvent, AnswerUsage, Inquiry
from shared.request import RequestContext


class InTurns:
    """An ``Answering`` in front of another one."""

    def __init__(self, pipeline: Answering, turns: Turns, door: Entrance) -> None:
        self._pipeline, self._turns, self._door = pipeline, turns, door

    async def answer(self, ctx: RequestContext, inquiry: Inquiry) -> AsyncGenerator[AnswerEvent, None]:
        """
        Raises:
            Overloaded: too many wait, or its turn would come too late for its deadline.
        """
        weight = self._door.weight(ctx.principal)
        async with AsyncExitStack() as held:
            async with ctx.until_deadline("waiting for its turn"):
                await held.enter_async_context(
                    self._turns.turn(ctx.tenant, ctx.deadline_s, weight, ctx.priority)
                )
            answered = charged(self._door, ctx, self._pipeline.answer(ctx, inquiry), _tokens_of)
            events = await held.enter_async_context(aclosing(answered))
            async for event in events:
                yield event


def _tokens_of(event: AnswerEvent) -> int:
    if not isinstance(event, AnswerUsage):
        return 0
    return event.usage.prompt_tokens + event.usage.generated_tokens
