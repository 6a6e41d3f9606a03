"""Beams, thoughts, margins and live forests through the whole system: Ray Serve's proxy, the gateway, the
command line."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from shared.answer import AnswerDone, AnswerEvent, AnswerText, Inquiry, RetrievalOptions
from shared.clients.doors import forest_client, rag_client
from shared.errors import InvalidRequest
from shared.generation.asked import Beams, Choice, ChoiceRule, Decoding, Margins, SamplingParams
from shared.generation.forest import Edit, Fork, Grow, Rewind, Start
from shared.generation.orders import ForestOrder
from shared.generation.told import AppliedEvent, ChosenEvent, DoneEvent, GrownEvent, MarginEvent, RefusedEvent
from shared.request import RequestContext
from tests.e2e.conftest import COLLECTION
from tests.e2e.stack import Stack

pytestmark = pytest.mark.e2e
QUESTION = "Which day is market day in Tambach?"


async def ask(stack: Stack, decoding: Decoding, sampling: SamplingParams) -> list[AnswerEvent]:
    async with rag_client(stack.target) as client:
        inquiry = Inquiry(
            COLLECTION,
            (QUESTION,),
            sampling=sampling,
            retrieval=RetrievalOptions(k=3),
            decoding=decoding,
        )
        events = client.answer(RequestContext.create(), inquiry)
        async with aclosing(events):
            return [event async for event in events]


async def test_beams_come_ranked_with_sources(stack: Stack) -> None:
    events = await ask(stack, Decoding(beams=Beams(4)), SamplingParams(8, n=3))
    texts = [e for e in events if isinstance(e, AnswerText)]
    assert [t.sample for t in texts] == [0, 1, 2]
    assert [t.score for t in texts] == sorted((t.score for t in texts), reverse=True)
    assert texts[0].citations[0].document_id.startswith("tambach")


async def test_thoughts_and_margins(stack: Stack) -> None:
    decoding = Decoding(choose=Choice(ChoiceRule.MAJORITY), margins=Margins(max_tokens=6))
    events = await ask(stack, decoding, SamplingParams(8, temperature=0.5, n=3))
    assert sorted(e.chunk for e in events if isinstance(e, MarginEvent)) == [0, 1, 2]
    assert sum(isinstance(e, ChosenEvent) for e in events) == 1
    assert isinstance(events[-1], AnswerDone)
    with pytest.raises(InvalidRequest, match=r"sampling\.n"):
        await ask(stack, decoding, SamplingParams(8))


async def test_a_live_forest_through_the_proxy(stack: Stack) -> None:
    async def commands() -> AsyncIterator[Edit]:
        for command in (
            Start(0, QUESTION),
            Fork(1, 0, 4),
            Rewind(0, 500),
            Grow(0, SamplingParams(3, ignore_eos=True)),
        ):
            yield command

    async with forest_client(stack.target) as client:
        order = ForestOrder(("Market day in Tambach is Monday.",))
        stream = client.explore(RequestContext.create(), order, commands())
        async with aclosing(stream):
            events = [event async for event in stream]
    assert [e.command for e in events if isinstance(e, AppliedEvent)] == [0, 1, 3]
    (refused,) = (e for e in events if isinstance(e, RefusedEvent))
    assert refused.error.detail.startswith("rewind.num_tokens: 500 is out of range")
    assert sum(isinstance(e, GrownEvent) for e in events) == 3
    assert isinstance(events[-1], DoneEvent)


def test_the_command_line(stack: Stack) -> None:
    beams = stack.cli(
        "ask", QUESTION, "-c", COLLECTION, "-k", "3", "--beams", "3", "--samples", "2", "--json"
    )
    assert beams.returncode == 0, beams.stderr
    assert len(json.loads(beams.stdout)["answers"]) == 2
    thoughts = stack.cli("ask", QUESTION, "-c", COLLECTION, "-k", "3", "--thoughts", "3", "--margins")
    assert thoughts.returncode == 0, thoughts.stderr
    assert "chosen: " in thoughts.stdout
    assert thoughts.stdout.count("margin on ") == 3
    wrong = stack.cli("ask", QUESTION, "-c", COLLECTION, "--beams", "2", "--samples", "3")
    assert wrong.returncode == 2
    assert "sampling.n" in wrong.stderr


def test_a_live_forest_on_the_command_line(stack: Stack) -> None:
    said = [
        f"start a {QUESTION}",
        "grow a 6",
        "fork b a 5",
        "append b  Well,",
        "merge c a b",
        "grow c 3",
        "fork d nobody",
    ]
    told = stack.cli("explore", QUESTION, "-c", COLLECTION, "-k", "3", stdin="\n".join(said))
    assert told.returncode == 2, told.stderr
    assert told.stdout.startswith("[1] tambach")
    (grown,) = re.findall(r"^a: .*\[(?:stop|length), (\d+) tokens\]$", told.stdout, re.MULTILINE)
    forked, appended = re.findall(r"^b: (\d+) tokens$", told.stdout, re.MULTILINE)
    merged, growing = re.findall(r"^c: (\d+) tokens$", told.stdout, re.MULTILINE)
    assert int(forked) == 5 < int(appended)
    assert int(merged) == int(growing) == int(grown) + int(appended) - 5
    assert re.search(r"^c: .*\[(stop|length), \d+ tokens\]$", told.stdout, re.MULTILINE)
    assert "refused: fork d nobody: there is no branch nobody" in told.stdout
    assert re.search(r"\d+ prompt tokens: \d+ reused, \d+ computed; \d+ generated", told.stdout)
