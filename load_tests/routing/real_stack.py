"""Asks real replicas: one stack after the other on this machine, each routing in another way, over the same
documents and the same questions."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import urllib.request
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from cluster.cli.startup import start_progress
from cluster.local import launcher
from cluster.local.demo_session import demo_config
from cluster.local.state import StackState
from cluster.sizing.decoder import read_decoder
from load_tests.benchmark import say
from load_tests.pasted.documents import prose
from load_tests.routing.real_findings import WAYS, WayRun, way_runs
from load_tests.routing.real_plan import WARM, PlannedQuestion, RealPlan, instants_s, num_documents, planned
from load_tests.servers.faulty_s3 import FaultyS3
from load_tests.servers.s3 import S3Server
from load_tests.service.demo_cluster import terminated_like_interrupted
from load_tests.service.driver import Driver, OnToken
from load_tests.service.loads import reply_of
from load_tests.service.sample import Reply, Sample
from shared.answer import Inquiry, RetrievalOptions
from shared.clients.doors import ingest_client, rag_client
from shared.clients.rag import RagClient
from shared.documents import SourceDocument, Stage
from shared.errors import ConfigError, InternalError
from shared.generation.asked import SamplingParams
from shared.generation.modes import ReuseMode
from shared.generation.orders import Reuse
from shared.prompt import PromptTokenizer
from shared.request import RequestContext
from shared.search import Filter, FilterOp

COLLECTION = "routed"
QUESTION = "What did the surveyor measure, and when?"
_DEADLINE_MS = 120_000
_DOCUMENTS_PER_CALL = 8
_MOST_IN_FLIGHT = 256
_QUESTIONS_ON_THEIR_WAY = 2  # of each replica: their chunks fit on the disk of a node behind a link …
_LEASE_S = 1.0  # … if those before them may leave it
_MARGIN = 0.9  # chunks end between sentences: a document that is cut into as many is somewhat shorter


def run_all(plan: RealPlan, console: Console) -> dict[str, WayRun]:
    """By way of choosing.

    Raises:
        KvquiltError: a stack did not start, or a document could not be ingested.
    """
    rounds, samples = planned(plan), dict[str, list[Sample]]()
    told: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    scratch = Path(tempfile.mkdtemp(prefix="kvquilt-routing-"))
    try:
        with terminated_like_interrupted(), _object_store(plan, scratch / "s3") as objects:
            for number, questions in enumerate(rounds):
                for way in reversed(WAYS) if number % 2 else WAYS:
                    with _stack(plan, way, objects, scratch / "data", console) as state:
                        if not samples:
                            asyncio.run(_ingest(plan, num_documents(rounds, plan), state))
                        say(f"{way}: {len(questions)} questions to {plan.replicas} replicas")
                        asked = asyncio.run(_ask_all(plan, questions, state.target))
                        samples.setdefault(way, []).extend(_of_round(number, asked, plan))
                        for name, value in _counted(state.http).items():
                            told[way][name] += value
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    counted = [question for questions in rounds for question in questions if question.phase != WARM]
    return way_runs(counted, samples, told, len(_prompts(plan).prefix_ids))


def _of_round(number: int, samples: Iterable[Sample], plan: RealPlan) -> list[Sample]:
    """Of a round's samples, that count its questions, ones that count those of all."""
    before = number * (plan.steady + plan.novel)
    return [replace(sample, index=before + sample.index) for sample in samples]


@contextmanager
def _object_store(plan: RealPlan, data: Path) -> Iterator[dict[str, Any]]:
    """The settings of ``kv_store`` by which a stack uses it. Keys are in the environment."""
    if not plan.link_mb_per_s:
        yield {}
        return
    server = S3Server(data)
    try:
        with (
            mock.patch.dict(os.environ, server.environment),
            FaultyS3(server.endpoint, bytes_per_s=1e6 * plan.link_mb_per_s) as link,
        ):
            yield {
                "objects": {"endpoint": link.endpoint, "secure": False},
                "disk_capacity_bytes": _QUESTIONS_ON_THEIR_WAY * plan.replicas * _question_bytes(plan),
                "memory": {"capacity_bytes": 0},
                "lease_s": _LEASE_S,
            }
    finally:
        server.close()


@contextmanager
def _stack(
    plan: RealPlan, way: str, kv_store: Mapping[str, Any], data_dir: Path, console: Console
) -> Iterator[StackState]:
    config = demo_config(data_dir, **_settings(plan, way), kv_store=kv_store)
    try:
        with start_progress(console) as on_progress:
            state = launcher.start(config, on_progress)
        yield state
    finally:
        launcher.stop(data_dir)


def _settings(plan: RealPlan, way: str) -> dict[str, Any]:
    pool_bytes = int(plan.pool_share * plan.working_tokens * _kv_bytes_per_token(plan))
    return {
        "model": plan.model,
        "ingestion": {"chunk_tokens": plan.chunk_tokens},
        "selector": {"model": ""},
        "generator": {
            "routing": way,
            "engine": {"resident_bytes": pool_bytes, "num_threads": 1},
            "deployment": {"num_replicas": plan.replicas},
        },
    }


def _kv_bytes_per_token(plan: RealPlan) -> int:
    return read_decoder(Path(demo_config(Path("unused"), model=plan.model).model)).kv_bytes_per_token


def _question_bytes(plan: RealPlan) -> int:
    return plan.chunks * plan.chunk_tokens * _kv_bytes_per_token(plan)


def _prompts(plan: RealPlan) -> PromptTokenizer:
    prompts = PromptTokenizer.of_model(demo_config(Path("unused"), model=plan.model).model)
    if prompts is None:
        raise ConfigError(f"--model: {plan.model} has no tokenizer, and documents are texts")
    return prompts


@dataclass(frozen=True, slots=True)
class _Asking:
    client: RagClient
    plan: RealPlan
    questions: Sequence[PlannedQuestion]

    async def ask(self, number: int, on_token: OnToken) -> Reply:
        about = Filter("document_id", FilterOp.EQ, (name_of(self.questions[number].document),))
        inquiry = Inquiry(
            COLLECTION,
            (QUESTION,),
            Reuse(ReuseMode.REORDERED),
            SamplingParams(max_tokens=self.plan.num_generated, ignore_eos=True),
            RetrievalOptions(k=self.plan.chunks, filters=(about,)),
        )
        context = RequestContext.create(deadline_ms=_DEADLINE_MS)
        return await reply_of(self.client.answer(context, inquiry), on_token)


def name_of(document: int) -> str:
    return f"document-{document:05}.txt"


async def _ask_all(plan: RealPlan, questions: Sequence[PlannedQuestion], target: str) -> list[Sample]:
    async with rag_client(target) as client:
        asking = _Asking(client, plan, questions)
        warming = asyncio.Semaphore(plan.replicas)

        async def warm(number: int) -> None:
            async with warming:
                await asking.ask(number, lambda branch: None)

        await asyncio.gather(*map(warm, range(plan.warm)))
        driver = Driver(lambda index, on_token: asking.ask(plan.warm + index, on_token), _MOST_IN_FLIGHT)
        return await driver.run(instants_s(plan, questions))


async def _ingest(plan: RealPlan, count: int, state: StackState) -> None:
    """
    Raises:
        InternalError: a document could not be ingested.
    """
    say(f"ingesting {count} documents of {plan.chunks} chunks")
    prompts = _prompts(plan)

    def document(number: int) -> SourceDocument:
        num_tokens = int(_MARGIN * plan.chunks * plan.chunk_tokens)
        text = prose(f"{plan.seed}/{number}", num_tokens, lambda of: len(prompts.encode(of)))
        return SourceDocument(name_of(number), text.encode())

    async with ingest_client(state.target) as client:
        for first in range(0, count, _DOCUMENTS_PER_CALL):
            batch = [document(number) for number in range(first, min(count, first + _DOCUMENTS_PER_CALL))]
            async for progress in client.upsert(RequestContext.create(), COLLECTION, batch):
                if progress.stage is Stage.FAILED:
                    raise InternalError(f"{progress.document_id} could not be ingested: {progress.error}")


def _counted(http: str) -> dict[str, float]:
    """By the services, since the start: how long routers decided, and chunks that were not where a router
    took them to be."""
    with urllib.request.urlopen(f"{http}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    names = {
        "kvquilt_route_seconds_sum": "decision_s",
        "kvquilt_route_seconds_count": "decisions",
        "kvquilt_route_stale_total": "stale",
    }
    found: defaultdict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            if one.name in names:
                found[names[one.name]] += one.value
    return dict(found)
