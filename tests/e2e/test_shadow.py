"""An answer by the verdict is compared with the reference's, and a suspended verdict is not obeyed."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest

from shared.answer import AnswerUsage, Inquiry, RetrievalOptions
from shared.clients.doors import generation_client, rag_client
from shared.generation.modes import ReuseMode
from shared.generation.orders import Auto, Reuse
from shared.generation.told import ObeyedVerdict, Usage
from shared.request import RequestContext
from shared.verdicts import read_verdicts
from tests.e2e.conftest import COLLECTION
from tests.e2e.stack import Stack, wait_for
from tests.e2e.test_services import health_of

pytestmark = pytest.mark.e2e
QUESTION = "Which day is market day in Tambach?"


async def ask(stack: Stack) -> Usage:
    inquiry = Inquiry(COLLECTION, (QUESTION,), Reuse(Auto.AUTO), retrieval=RetrievalOptions(k=3))
    async with (
        rag_client(stack.target) as client,
        aclosing(client.answer(RequestContext.create(), inquiry)) as events,
    ):
        (usage,) = [event.usage async for event in events if isinstance(event, AnswerUsage)]
        return usage


def test_an_answer_by_the_verdict_is_compared_and_a_suspended_verdict_is_told(
    stack: Stack, verdict: Path
) -> None:
    usage = asyncio.run(ask(stack))
    (made,) = read_verdicts(verdict)
    assert (usage.reuse, usage.verdict, usage.note) == (ReuseMode.REORDERED, ObeyedVerdict(made.id, 0.98), "")

    def judged() -> str | None:
        facts = asyncio.run(health_of(stack, "gateway")).facts
        return facts["shadow"] if facts["shadow_judged"] == "1" else None

    assert wait_for(judged, "comparison with the reference").startswith("agreement ")

    async def suspend() -> bool:
        async with generation_client(stack.target) as client:
            return await client.suspend(RequestContext.create(), made.id, "agreement 50 % of 20 questions")

    assert asyncio.run(suspend())
    assert read_verdicts(verdict)[0].suspended == "agreement 50 % of 20 questions"
    usage = asyncio.run(ask(stack))
    assert (usage.reuse, usage.verdict) == (ReuseMode.FULL, None)
    assert usage.note.startswith("auto is full: the verdict is suspended by shadow: agreement 50 %")
    status = " ".join(stack.cli("status").stdout.split())
    assert "suspended by shadow" in status
