"""What is counted of questions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from services.gateway.config import GatewayConfig, RefusalConfig
from services.gateway.metering import Metered, ServicesHealth
from services.gateway.pipeline import Pipeline
from services.gateway.prefetch import Prefetching
from shared.answer import AnswerEvent, Inquiry, Refusal
from shared.clients.health import ServiceHealth
from shared.errors import KvquiltError, NotFound, Unavailable
from shared.metrics.recorder import Metrics
from shared.request import RequestContext
from tests.unit.gateway.fakes import FakeGenerator, FakeRetriever, hit
from tests.unit.metrics.test_recorder import samples

WHO = "Who built the bridge?"
INQUIRY = Inquiry("towns", (WHO,))


def metered(
    metrics: Metrics,
    generator: FakeGenerator | None = None,
    retriever: FakeRetriever | None = None,
    config: GatewayConfig | None = None,
) -> Metered:
    pipeline = Pipeline(
        retriever or FakeRetriever({WHO: [hit("a", "Orla Venn built it")]}),
        generator or FakeGenerator({WHO: "Orla Venn"}),
        config or GatewayConfig(),
        Prefetching(None),
    )
    return Metered(pipeline, metrics)


async def asked(answering: Metered, inquiry: Inquiry = INQUIRY) -> list[AnswerEvent]:
    return [event async for event in answering.answer(RequestContext.create(), inquiry)]


async def test_a_whole_answer_is_counted_by_its_mode() -> None:
    metrics = Metrics()
    events = await asked(metered(metrics))
    assert events
    told = samples(metrics)
    (answered,) = [name for name in told if name.startswith("kvquilt_answers_total")]
    assert "code=OK" in answered
    assert told["kvquilt_answers_running"] == 0
    assert told["kvquilt_retrieve_seconds_count"] == 1
    assert sum(v for n, v in told.items() if n.startswith("kvquilt_answer_seconds_count")) == 1
    firsts = [n for n in told if n.startswith("kvquilt_answer_time_to_first_token_seconds_count")]
    assert len(firsts) == 1
    assert "kvquilt_answer_tokens_total{kind=generated}" in told


async def test_an_error_is_counted_by_its_code() -> None:
    metrics = Metrics()
    retriever = FakeRetriever({}, error=NotFound("no collection 'towns'"))
    with pytest.raises(KvquiltError):
        await asked(metered(metrics, retriever=retriever))
    told = samples(metrics)
    assert told["kvquilt_answers_total{code=NOT_FOUND,mode=none}"] == 1
    assert told["kvquilt_answers_running"] == 0
    assert not any(name.startswith("kvquilt_answer_seconds") for name in told)


async def test_a_question_without_evidence_is_refused_and_no_error() -> None:
    metrics = Metrics()
    config = GatewayConfig(refusal=RefusalConfig(mode=Refusal.STRICT, lenient=1.0, strict=1.0))
    await asked(metered(metrics, config=config))
    assert samples(metrics)["kvquilt_answers_total{code=REFUSED,mode=none}"] == 1


async def test_a_caller_who_leaves_is_counted_as_such() -> None:
    metrics = Metrics()
    async with aclosing(metered(metrics).answer(RequestContext.create(), INQUIRY)) as events:
        await anext(events)
    told = samples(metrics)
    assert told["kvquilt_answers_total{code=CANCELLED,mode=none}"] == 1
    assert told["kvquilt_answers_running"] == 0


async def test_something_unexpected_is_an_internal_error() -> None:
    class Broken:
        async def answer(self, ctx: RequestContext, inquiry: Inquiry) -> AsyncGenerator[AnswerEvent, None]:
            raise ZeroDivisionError
            yield

    metrics = Metrics()
    with pytest.raises(ZeroDivisionError):
        await asked(Metered(Broken(), metrics))
    assert samples(metrics)["kvquilt_answers_total{code=INTERNAL,mode=none}"] == 1


class Source:
    def __init__(self, answer: ServiceHealth | KvquiltError) -> None:
        self._answer = answer

    async def health(self, ctx: RequestContext) -> ServiceHealth:
        if isinstance(self._answer, KvquiltError):
            raise self._answer
        return self._answer


async def test_the_health_of_the_others_is_asked_for_when_somebody_looks() -> None:
    sources = {
        "retrieval": Source(ServiceHealth("retrieval", ready=True)),
        "ingestion": Source(ServiceHealth("ingestion", ready=True, detail="no tokenizer")),
        "kv_store": Source(Unavailable("kv_store is not available")),
    }
    metrics = Metrics()
    metrics.ask(ServicesHealth(sources, 1.0, asyncio.get_running_loop()).readings)
    told = await asyncio.to_thread(samples, metrics)
    assert told["kvquilt_service_ready{service=retrieval}"] == 1
    assert told["kvquilt_service_impaired{service=ingestion}"] == 1
    assert told["kvquilt_service_ready{service=kv_store}"] == 0
