"""What is searched by where a question follows others."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

import pytest

from services.gateway.config import FollowUpsConfig, FollowUpSearch
from services.gateway.metering import Metered
from services.gateway.pipeline import Pipeline
from shared.answer import AnswerUsage, FollowUp, Inquiry, Refusal, Retrieved
from shared.earlier_turns import EarlierTurn, Speaker
from shared.errors import KvquiltError, Unavailable
from shared.generation.described import ModelDescription
from shared.generation.orders import GenerationOrder
from shared.generation.told import GenerationEvent
from shared.metrics.recorder import Metrics
from shared.request import RequestContext
from tests.unit.gateway.fakes import FakeGenerator, FakeRetriever
from tests.unit.gateway.test_http_routes import app
from tests.unit.gateway.test_http_routes import ask as ask_chat
from tests.unit.gateway.test_pipeline import HITS, WHEN, ask, pipeline
from tests.unit.metrics.test_recorder import samples

ASKED = "And when?"
TURNS = (EarlierTurn(Speaker.USER, "Who built the bridge?"), EarlierTurn(Speaker.ASSISTANT, "Orla Venn"))
FOLLOWING = Inquiry("handbook", (ASKED,), turns=TURNS)
REWRITE = FollowUpsConfig(FollowUpSearch.REWRITE, max_tokens=21)
_EARLIER = "Earlier in this conversation:\nUser: Who built the bridge?\nAssistant: Orla Venn"


@dataclass
class Rewriter:
    """Answers every question, and rewrites by saying ``written``, or failing, or never ending."""

    written: str = WHEN
    error: KvquiltError | None = None
    hangs: bool = False
    written_for: list[GenerationOrder] = field(default_factory=list)
    answered: list[GenerationOrder] = field(default_factory=list)
    closed: int = 0

    async def describe(self, ctx: RequestContext) -> ModelDescription:
        return await FakeGenerator({}).describe(ctx)

    async def suspend(self, ctx: RequestContext, verdict: str, reason: str) -> bool:
        raise AssertionError("nobody asks for it")

    async def generate(
        self, ctx: RequestContext, order: GenerationOrder
    ) -> AsyncGenerator[GenerationEvent, None]:
        rewriting = not order.chunks
        (self.written_for if rewriting else self.answered).append(order)
        try:
            if rewriting and self.hangs:
                await asyncio.Event().wait()
            if rewriting and self.error is not None:
                raise self.error
            texts: defaultdict[str, str] = defaultdict(lambda: self.written if rewriting else "in 1874")
            said = {str(question): texts[str(question)] for question in order.questions}
            async for event in FakeGenerator(said).generate(ctx, order):
                yield event
        finally:
            self.closed += 1


def world(rewriter: Rewriter, config: FollowUpsConfig = REWRITE) -> tuple[Pipeline, FakeRetriever]:
    joined = f"Who built the bridge?\n{ASKED}"
    retriever = FakeRetriever({WHEN: HITS, ASKED: HITS[1:], joined: HITS})
    return pipeline(rewriter, retriever, follow_ups=config), retriever  # type: ignore[arg-type]


def searched(retriever: FakeRetriever) -> list[tuple[str, ...]]:
    return [queries for _, queries, *_ in retriever.asked]


def retrieved_of(events: Any) -> Retrieved:
    (found,) = [event for event in events if isinstance(event, Retrieved)]
    return found


def usage_of(events: Any) -> AnswerUsage:
    (found,) = [event for event in events if isinstance(event, AnswerUsage)]
    return found


async def test_a_follow_up_is_searched_by_as_the_model_writes_it_and_answered_as_it_was_asked() -> None:
    rewriter = Rewriter(f'\n Written again: "{WHEN}"\nThis is the question.')
    asking, retriever = world(rewriter)
    events = await ask(asking, FOLLOWING)
    assert searched(retriever) == [(WHEN,)]
    assert (retrieved_of(events).queries, retrieved_of(events).follow_up) == ((WHEN,), FollowUp.REWRITTEN)
    (order,) = rewriter.written_for
    told = str(order.questions[0])
    assert f"\nUser: Who built the bridge?\nAssistant: Orla Venn\nLast question: {ASKED}\n" in told
    assert (order.sampling.max_tokens, order.sampling.temperature, order.sampling.n) == (21, 0.0, 1)
    (answer,) = rewriter.answered
    assert answer.questions == (f"{_EARLIER}\n\n{ASKED}",)


async def test_what_begins_with_earlier_turns_is_asked_as_a_turn_of_a_conversation() -> None:
    rewriter = Rewriter()
    asking, _ = world(rewriter)
    for inquiry in (
        FOLLOWING,
        Inquiry("handbook", (ASKED,)),
        Inquiry("handbook", (ASKED,), preface="Be brief."),
    ):
        await ask(asking, inquiry)
    assert [order.conversation for order in rewriter.answered] == [True, False, False]
    assert [order.conversation for order in rewriter.written_for] == [False]


async def test_what_writing_took_is_charged_to_the_answer() -> None:
    usage = usage_of(await ask(world(Rewriter())[0], FOLLOWING)).usage
    assert (usage.prompt_tokens, usage.reused_tokens, usage.recomputed_tokens) == (200, 180, 20)
    assert usage.generated_tokens == len(WHEN.split()) + len(["in", "1874"])
    assert usage.note == ""


async def test_evidence_is_judged_by_what_was_searched_by() -> None:
    refusing = Inquiry("handbook", ("And?",), turns=TURNS, refusal=Refusal.STRICT)
    rewriter = Rewriter("Orla Venn built it")
    retriever = FakeRetriever({"Orla Venn built it": HITS})
    await ask(pipeline(rewriter, retriever, follow_ups=REWRITE), refusing)  # type: ignore[arg-type]
    assert rewriter.answered  # "And?" alone is in none of the chunks


async def test_a_first_question_and_several_at_once_are_searched_by_as_they_are() -> None:
    rewriter = Rewriter()
    asking, retriever = world(rewriter)
    for one in (Inquiry("handbook", (ASKED,)), Inquiry("handbook", (ASKED, WHEN), turns=TURNS)):
        assert retrieved_of(await ask(asking, one)).follow_up is FollowUp.NONE
    assert searched(retriever) == [(ASKED,), (ASKED, WHEN)]
    assert rewriter.written_for == []


@pytest.mark.parametrize("written", ["", " \n", '""', "?!"])
async def test_what_says_nothing_is_not_searched_by(written: str) -> None:
    asking, retriever = world(Rewriter(written))
    events = await ask(asking, FOLLOWING)
    assert searched(retriever) == [(ASKED,)]
    assert retrieved_of(events).follow_up is FollowUp.FAILED
    assert "searched by as it is" in usage_of(events).usage.note


async def test_a_model_that_fails_is_told_of_in_the_answer_and_costs_none() -> None:
    rewriter = Rewriter(error=KvquiltError("it is broken"))
    asking, retriever = world(rewriter)
    events = await ask(asking, FOLLOWING)
    assert searched(retriever) == [(ASKED,)]
    assert usage_of(events).usage.note.endswith("it is broken")
    assert len(rewriter.answered) == 1


@pytest.mark.parametrize("rewriter", [Rewriter(hangs=True), Rewriter(error=Unavailable("away"))])
async def test_a_model_that_takes_too_long_is_not_waited_for(rewriter: Rewriter) -> None:
    asking, retriever = world(rewriter, FollowUpsConfig(FollowUpSearch.REWRITE, timeout_s=0.01))
    events = await ask(asking, FOLLOWING)
    assert searched(retriever) == [(ASKED,)]
    assert retrieved_of(events).follow_up is FollowUp.FAILED
    assert rewriter.closed >= 2  # also what would still have been written


async def test_no_more_than_half_of_the_time_that_is_left_goes_to_writing() -> None:
    asking, retriever = world(Rewriter(hangs=True), FollowUpsConfig(FollowUpSearch.REWRITE, timeout_s=3600.0))
    events = await ask(asking, FOLLOWING, RequestContext.create("r1", deadline_ms=100))
    assert searched(retriever) == [(ASKED,)]
    assert usage_of(events)


async def test_the_last_turns_alone_are_read_and_of_each_its_beginning() -> None:
    turns = (*TURNS, EarlierTurn(Speaker.USER, "x" * 999 + "yz"), EarlierTurn(Speaker.ASSISTANT, "No."))
    rewriter = Rewriter()
    config = FollowUpsConfig(FollowUpSearch.REWRITE, most_turns=2)
    await ask(world(rewriter, config)[0], Inquiry("handbook", (ASKED,), turns=turns))
    told = str(rewriter.written_for[0].questions[0])
    assert "Who built" not in told
    assert "xy\n" in told


async def test_it_may_be_searched_by_with_what_the_user_said_before() -> None:
    rewriter = Rewriter()
    asking, retriever = world(rewriter, FollowUpsConfig(FollowUpSearch.JOINED))
    assert retrieved_of(await ask(asking, FOLLOWING)).follow_up is FollowUp.JOINED
    assert searched(retriever) == [(f"Who built the bridge?\n{ASKED}",)]
    assert rewriter.written_for == []


async def test_the_operator_may_have_it_searched_by_as_it_is() -> None:
    asking, retriever = world(Rewriter(), FollowUpsConfig(FollowUpSearch.LAST))
    assert retrieved_of(await ask(asking, FOLLOWING)).follow_up is FollowUp.LAST
    assert searched(retriever) == [(ASKED,)]


async def test_how_follow_ups_were_searched_by_is_counted() -> None:
    metrics = Metrics()
    for rewriter in (Rewriter(), Rewriter(), Rewriter("")):
        await ask(Metered(world(rewriter)[0], metrics), FOLLOWING)  # type: ignore[arg-type]
    told = samples(metrics, "kvquilt_follow_ups_total")
    assert told == {
        "kvquilt_follow_ups_total{searched=rewritten}": 2,
        "kvquilt_follow_ups_total{searched=failed}": 1,
    }


async def test_over_http_the_answer_says_what_was_searched_by() -> None:
    served = app(Rewriter(), FakeRetriever({WHEN: HITS}), follow_ups=REWRITE)  # type: ignore[arg-type]
    said = [("user", "Who built the bridge?"), ("assistant", "Orla Venn"), ("user", ASKED)]
    answer = await ask_chat(served, messages=[{"role": role, "content": text} for role, text in said])
    assert (answer.kvquilt["follow_up"], answer.kvquilt["queries"]) == ("rewritten", [WHEN])
    first = await ask_chat(served, messages=[{"role": "user", "content": WHEN}])
    assert (first.kvquilt["follow_up"], first.kvquilt["queries"]) == (None, [WHEN])
