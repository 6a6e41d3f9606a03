"""The gateway answers so many questions at once, and charges for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from services.gateway.in_turns import InTurns
from shared.admission.entrance import Entrance
from shared.admission.settings import PrincipalLimits
from shared.admission.turns import Turns
from shared.answer import AnswerDone, AnswerEvent, AnswerUsage, Inquiry
from shared.errors import DeadlineExceeded, Overloaded
from shared.generation.told import Timings, Usage
from shared.request import RequestContext
from tests.virtual_time import run_virtually

ASKED = Inquiry("handbook", ("why?",))


class Slow:
    """Answers within ten seconds. ``most``: how many it was ever asked at once."""

    def __init__(self) -> None:
        self.now, self.most = 0, 0

    async def answer(self, ctx: RequestContext, inquiry: Inquiry) -> AsyncGenerator[AnswerEvent, None]:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(10)
            yield AnswerUsage(Usage(70, 0, 70, 30), Timings())
            yield AnswerDone(ctx.request_id)
        finally:
            self.now -= 1


def context(tenant: str, deadline_ms: int = 60_000) -> RequestContext:
    return RequestContext.create("", tenant, deadline_ms)


async def asked(answering: InTurns, ctx: RequestContext) -> list[AnswerEvent]:
    return [event async for event in answering.answer(ctx, ASKED)]


def test_so_many_are_answered_at_once_and_the_others_in_turns() -> None:
    async def ask() -> None:
        slow, turns = Slow(), Turns(2)
        answering = InTurns(slow, turns, Entrance())
        answers = await asyncio.gather(*(asked(answering, context(name)) for name in "aaaab"))
        assert all(isinstance(answer[-1], AnswerDone) for answer in answers)
        assert (slow.most, slow.now) == (2, 0)
        turns.check_invariants()

    run_virtually(ask())


def test_who_does_not_get_a_turn_before_the_deadline_is_told_so() -> None:
    async def ask() -> None:
        slow, turns = Slow(), Turns(1)
        answering = InTurns(slow, turns, Entrance())
        first, second = await asyncio.gather(
            asked(answering, context("a")), asked(answering, context("b", 1000)), return_exceptions=True
        )
        assert isinstance(first, list)
        assert isinstance(second, DeadlineExceeded)
        assert "while waiting for its turn" in second.detail
        turns.check_invariants()

    run_virtually(ask())


def test_what_an_answer_cost_is_charged_to_whoever_asked() -> None:
    async def ask() -> None:
        door = Entrance(PrincipalLimits(tokens_per_s=10, burst_s=1))
        ctx = context("a")
        await asked(InTurns(Slow(), Turns(1), door), ctx)
        with pytest.raises(Overloaded, match="tokens_per_s"), door.entered(ctx.principal, 1):
            pass
        with door.entered(context("b").principal, 1):
            pass

    run_virtually(ask())


def test_a_tenants_urgent_question_is_answered_first() -> None:
    async def ask() -> None:
        answering, order = InTurns(Slow(), Turns(1), Entrance()), list[int]()

        async def one(priority: int) -> None:
            await asked(answering, RequestContext.create("", "a", 60_000, priority=priority))
            order.append(priority)

        await asyncio.gather(*(one(priority) for priority in (0, 5, -5)))
        assert order == [0, -5, 5]

    run_virtually(ask())
