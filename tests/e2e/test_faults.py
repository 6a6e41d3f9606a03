"""Processes die; nothing is lost and nothing is half."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from cluster.paths import DEMO_ASSETS
from shared.answer import AnswerDone, AnswerEvent, Inquiry, RetrievalOptions
from shared.clients.doors import ingest_client, rag_client, retrieval_client
from shared.errors import InternalError, KvquiltError, NotFound, Unavailable
from shared.generation.asked import SamplingParams
from shared.generation.told import TokenEvent
from shared.request import RequestContext
from tests.e2e.conftest import COLLECTION
from tests.e2e.stack import Stack, command, environment

pytestmark = pytest.mark.e2e
QUESTION = "Which day is market day in Tambach?"
RECOVERY_S = 90.0


async def ask(stack: Stack, max_tokens: int, on_token: object = None) -> list[AnswerEvent]:
    seen: list[AnswerEvent] = []
    async with rag_client(stack.target) as client:
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        ctx = RequestContext.create(deadline_ms=60_000)
        async for event in client.answer(
            ctx, Inquiry(COLLECTION, (QUESTION,), sampling=sampling, retrieval=RetrievalOptions(k=3))
        ):
            seen.append(event)
            if isinstance(event, TokenEvent) and callable(on_token):
                on_token()
                on_token = None
    return seen


async def answers_again(stack: Stack) -> None:
    async with asyncio.timeout(RECOVERY_S):
        while True:
            try:
                assert isinstance((await ask(stack, 4))[-1], AnswerDone)
                return
            except (Unavailable, InternalError):  # a proxy that has just lost a replica calls it internal
                await asyncio.sleep(0.5)


async def test_a_generator_killed_while_answering_ends_the_stream_as_retryable_and_is_replaced(
    stack: Stack,
) -> None:
    with pytest.raises(Unavailable) as failure:
        await ask(stack, 600, on_token=lambda: stack.kill_replica("generator"))
    assert failure.value.retryable
    await answers_again(stack)


async def test_a_gateway_killed_while_answering_is_replaced(stack: Stack) -> None:
    with pytest.raises(KvquiltError):
        await ask(stack, 600, on_token=lambda: stack.kill_replica("gateway"))
    await answers_again(stack)


async def test_ingestion_killed_in_mid_run_goes_on_with_the_same_command(
    stack: Stack, tmp_path: Path
) -> None:
    folder = tmp_path / "many"
    shutil.copytree(DEMO_ASSETS / "documents", folder)
    num_documents = sum(path.is_file() for path in folder.rglob("*"))
    run = subprocess.Popen(
        command(stack.data_dir, "ingest", str(folder), "-c", "many"),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    async with ingest_client(stack.target) as client:

        async def stored() -> int:
            try:
                return len([d async for d in client.list(RequestContext.create(), "many")])
            except NotFound:
                return 0

        async with asyncio.timeout(60):
            while not await stored():
                await asyncio.sleep(0.05)
        stack.kill_replica("ingestion")
        _, told = await asyncio.to_thread(run.communicate, timeout=60)
        assert run.returncode == 4, told
        async with asyncio.timeout(RECOVERY_S):
            while (
                again := await asyncio.to_thread(stack.cli, "ingest", str(folder), "-c", "many")
            ).returncode == 4:
                await asyncio.sleep(0.5)
        assert again.returncode == 0, again.stdout + again.stderr
        assert await stored() == num_documents
    hits = await asyncio.to_thread(
        stack.cli, "ask", QUESTION, "-c", "many", "-k", "5", "--json", "--max-tokens", "1"
    )
    assert hits.returncode == 0, hits.stderr


@pytest.mark.parametrize(
    "applications",
    [("retrieval",), ("kv_store",), ("retrieval", "kv_store", "ingestion", "gateway")],
    ids=["retrieval", "the store's front", "several at once"],
)
async def test_services_killed_in_mid_ingestion_lose_nothing_that_was_stored(
    stack: Stack, tmp_path: Path, applications: tuple[str, ...]
) -> None:
    """Whatever the run was told, the same command brings all documents in, and every one is found."""
    collection, folder = f"killed-{len(applications)}-{applications[0]}", tmp_path / "towns"
    shutil.copytree(DEMO_ASSETS / "documents" / "towns", folder)
    run = subprocess.Popen(
        command(stack.data_dir, "ingest", str(folder), "-c", collection),
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    async with ingest_client(stack.target) as client:

        async def stored() -> set[str]:
            try:
                return {d.document_id async for d in client.list(RequestContext.create(), collection)}
            except NotFound:
                return set()

        async with asyncio.timeout(60):
            while not (before := await stored()):
                await asyncio.sleep(0.05)
        pids = [stack.replica_pid(application) for application in applications]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        await asyncio.to_thread(run.wait, timeout=120)
        async with asyncio.timeout(RECOVERY_S):
            while (
                again := await asyncio.to_thread(stack.cli, "ingest", str(folder), "-c", collection)
            ).returncode in (4, 5):
                await asyncio.sleep(0.5)
        assert again.returncode == 0, again.stdout + again.stderr
        after = await stored()
        assert before <= after
        assert len(after) == sum(path.is_file() for path in folder.rglob("*"))
    verified = await asyncio.to_thread(stack.cli, "store", "verify")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    async with retrieval_client(stack.target) as retrieval:
        (hits,) = (await retrieval.search(RequestContext.create(), collection, [QUESTION], 99)).rankings
    assert {hit.document_id for hit in hits} == after


async def test_a_selector_that_is_killed_stops_no_answer(stack: Stack) -> None:
    options = ("-c", COLLECTION, "-k", "3", "--json", "--max-tokens", "4", "--reuse", "cacheclip")

    async def usage() -> dict[str, object]:
        shown = await asyncio.to_thread(stack.cli, "ask", QUESTION, *options)
        assert shown.returncode == 0, shown.stderr
        told: dict[str, object] = json.loads(shown.stdout)["usage"]
        return told

    assert (await usage())["reuse"] == "cacheclip"
    stack.kill_replica("selector")
    told = await usage()
    assert told["generated_tokens"] == 4
    assert (told["reuse"], bool(told["note"])) in [("epic", True), ("cacheclip", False)], (
        "the fallback, if it is not back yet"
    )
    async with asyncio.timeout(RECOVERY_S):
        while (await usage())["reuse"] != "cacheclip":
            await asyncio.sleep(0.5)
