"""`kvquilt eval --via grpc`: a generator behind gRPC answers cases as the engine here does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import grpc
import pytest

from cluster.evaluation.answers import EvalAnswer
from cluster.evaluation.arms import arms_of
from cluster.evaluation.bench import EvalBench
from cluster.evaluation.remote import RemoteBench
from cluster.evaluation.suites import Suite, SuiteOrder
from cluster.gate.answering import Models
from cluster.paths import DEMO_MODEL
from services.ingestion.config import IngestionConfig
from shared.clients.doors import generation_client
from shared.clients.generation import GenerationClient
from shared.errors import ConfigError, InvalidRequest, Unavailable
from shared.generation.modes import ReuseMode
from shared.kv_types import KvContext
from shared.prompt_config import PromptConfig
from tests.generation_server import serving

pytestmark = pytest.mark.usefixtures("one_thread")

MODELS = Models(str(DEMO_MODEL), "", IngestionConfig(str(DEMO_MODEL), chunk_tokens=96))
CONTEXTS = (KvContext.DOCUMENT, KvContext.NONE)
OTHER_PROMPT = replace(MODELS.ingestion, prompt=PromptConfig("default", instruction="!"))
ARMS = tuple(arms_of((ReuseMode.REORDERED, ReuseMode.QUERY_ATTENTION), CONTEXTS, (0.2,)))
ORDER = SuiteOrder(Suite.RULER, 2, ("niah_single_2",), length=400, max_tokens=12)


def asked(bench: EvalBench | RemoteBench) -> list[EvalAnswer]:
    try:
        (task,) = ORDER.make(bench.cutter, lambda: None)
        return [answer for of_case in bench.ask(task, task.cases, ARMS) for answer in of_case]
    finally:
        bench.close()


async def test_a_generator_answers_as_the_engine_does() -> None:
    ours = await asyncio.to_thread(lambda: asked(EvalBench(MODELS, CONTEXTS, 400)))
    async with serving(DEMO_MODEL) as served:
        theirs = await asyncio.to_thread(
            lambda: asked(RemoteBench(MODELS, CONTEXTS, lambda: generation_client(served.address), "", 400))
        )
    assert [(a.case, a.mode) for a in theirs] == [(a.case, a.mode) for a in ours]
    for here, there in zip(ours, theirs, strict=True):
        assert (there.text, there.score, there.num_tokens) == (here.text, here.score, here.num_tokens)
        assert there.computed == here.computed
        assert there.tflop == pytest.approx(here.tflop, rel=0.05)
        assert there.kl == pytest.approx(here.kl, abs=1e-3)
        assert there.seconds > 0


@pytest.mark.parametrize(
    ("models", "positions", "error", "says"),
    [
        (
            replace(MODELS, ingestion=OTHER_PROMPT),
            400,
            ConfigError,
            "--via: .* another prompt prefix",
        ),
        (MODELS, 4096, InvalidRequest, "--length: 4096 tokens exceed the model's 2048 positions"),
    ],
)
async def test_what_is_not_served_there_is_told(
    models: Models, positions: int, error: type[Exception], says: str
) -> None:
    async with serving(DEMO_MODEL) as served:
        with pytest.raises(error, match=says):
            await asyncio.to_thread(
                lambda: RemoteBench(
                    models, CONTEXTS, lambda: generation_client(served.address), "", positions
                )
            )


async def test_nobody_there_is_told() -> None:
    @asynccontextmanager
    async def impatient() -> AsyncIterator[GenerationClient]:
        from shared.clients.generation import APPLICATION, SERVICE
        from shared.clients.grpc_transport import GrpcTransport

        async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
            yield GenerationClient(GrpcTransport(channel, SERVICE, APPLICATION))

    with pytest.raises(Unavailable):
        await asyncio.to_thread(lambda: RemoteBench(MODELS, CONTEXTS, impatient))
