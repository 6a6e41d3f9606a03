"""Two replicas: a question goes where its chunks are, several at once do not wait for each other, and when a
replica dies no answer goes with it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from cluster.local import launcher
from shared.answer import AnswerDone, AnswerUsage, Inquiry, RetrievalOptions
from shared.clients.doors import rag_client
from shared.generation.asked import SamplingParams
from shared.generation.modes import ReuseMode
from shared.generation.orders import Reuse
from shared.generation.told import Usage
from shared.request import RequestContext
from tests.e2e import stack as stacks
from tests.e2e.conftest import COLLECTION
from tests.e2e.stack import Stack
from tests.e2e.test_metrics import scraped, total

pytestmark = pytest.mark.e2e
QUESTIONS = (
    "Which day is market day in Tambach?",
    "Who founded Tamdal?",
    "What is made in Almwick?",
    "What is known of Zannau?",
    "Who lives in Rudeley?",
    "Which river is Ildrath at?",
)


NUM_CHUNKS = 12
"""Enough that loading them takes longer than what counts as equal."""


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory, documents: Path) -> Iterator[Stack]:
    """A stack with two generators."""
    settings: dict[str, object] = {
        "ingestion": {"chunk_tokens": 96},
        "selector": {"model": ""},
        "generator": {"routing": "chunks", "deployment": {"num_replicas": 2}},
    }
    running = stacks.start(tmp_path_factory.mktemp("replicas") / "data", **settings)
    try:
        ingested = running.cli("ingest", str(documents), "-c", COLLECTION)
        assert ingested.returncode == 0, ingested.stdout + ingested.stderr
        yield running
    finally:
        launcher.stop(running.data_dir)


async def ask(stack: Stack, *questions: str, k: int = 2) -> list[Usage]:
    """All at once, over ``k`` chunks each; each answer is whole."""

    async def one(question: str) -> Usage:
        inquiry = Inquiry(
            COLLECTION,
            (question,),
            Reuse(ReuseMode.REORDERED),
            retrieval=RetrievalOptions(k=k),
            sampling=SamplingParams(max_tokens=4),
            explain=True,
        )
        async with aclosing(client.answer(RequestContext.create(), inquiry)) as events:
            told = [event async for event in events]
        assert isinstance(told[-1], AnswerDone)
        (usage,) = (event.usage for event in told if isinstance(event, AnswerUsage))
        return usage

    async with rag_client(stack.target) as client, asyncio.timeout(60):
        return list(await asyncio.gather(*map(one, questions)))


def where(usage: Usage) -> str:
    """The replica."""
    return usage.route.partition(": ")[0]


def resident(usage: Usage) -> int:
    """How many of its chunks the router took to be there."""
    found = re.search(r"(\d+) resident", usage.route)
    return int(found[1]) if found else 0


def pid_of(stack: Stack, replica: str) -> int:
    """By the log that it writes."""
    pids = stack.processes.of("generator")
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            if replica in os.readlink(link):
                return pid
    raise AssertionError(f"none of {pids} is replica {replica}")


def reports(stack: Stack) -> float:
    return total(scraped(stack), "kvquilt_route_reports_total", outcome="applied")


def test_questions_go_where_their_chunks_are_and_outlive_a_replica(replicas: Stack) -> None:
    (first,) = asyncio.run(ask(replicas, QUESTIONS[0], k=NUM_CHUNKS))
    before = reports(replicas)
    # four lanes each time: what both hold now has been told, and heard
    stacks.wait_for(lambda: reports(replicas) >= before + 16 or None, "reports", timeout_s=20)
    held = [asyncio.run(ask(replicas, QUESTIONS[0], k=NUM_CHUNKS))[0] for _ in range(4)]
    assert [where(usage) for usage in held] == [where(first)] * 4
    assert [resident(usage) for usage in held] == [NUM_CHUNKS] * 4
    assert [usage.loaded_tokens for usage in held] == [0] * 4

    asyncio.run(ask(replicas, *QUESTIONS, *QUESTIONS))  # none waits for ever
    metrics = scraped(replicas)
    assert total(metrics, "kvquilt_routed_chunks_total", outcome="hit") >= 4 * NUM_CHUNKS
    assert total(metrics, "kvquilt_route_decisions_total", reason="held") >= 4
    assert total(metrics, "kvquilt_route_seconds_count") >= 5 + 2 * len(QUESTIONS)
    assert total(metrics, "kvquilt_route_reports_total", outcome="applied") >= 2

    shown = replicas.cli(
        "ask", QUESTIONS[0], "-c", COLLECTION, "-k", str(NUM_CHUNKS), "--explain", "--reuse", "reordered"
    )
    assert f"chunks: {NUM_CHUNKS} resident" in shown.stdout, shown.stdout + shown.stderr

    victim = where(held[0])
    os.kill(pid_of(replicas, victim), signal.SIGKILL)
    (outlived,) = asyncio.run(ask(replicas, QUESTIONS[0]))  # the router does not know yet
    assert where(outlived) != victim
