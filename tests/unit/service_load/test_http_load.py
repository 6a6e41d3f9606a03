"""The load over HTTP: what is asked, and what comes back."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import openai
import pytest

from load_tests.service.command import _parser
from load_tests.service.http_clients import OpenAiClient
from load_tests.service.http_load import HttpLoad
from load_tests.service.loads import QuestionLoad, QuestionPlan
from load_tests.service.setting import Setting
from services.gateway.config import GatewayConfig, HttpConfig
from services.gateway.http.routes import http_app
from services.gateway.pipeline import Pipeline
from services.gateway.prefetch import Prefetching
from shared.errors import FailedPrecondition, InvalidRequest, Unavailable
from shared.generation.modes import ReuseMode
from shared.request import RequestContext
from tests.unit.gateway.fakes import FakeGenerator, FakeRetriever, hit

WHO = "Who built the bridge?"
HITS = [hit("a", "Orla Venn built it"), hit("b", "It was built in 1874")]


def load_over(transport: httpx2.AsyncBaseTransport, **plan: Any) -> HttpLoad:
    http = httpx2.AsyncClient(transport=transport)
    client = openai.AsyncOpenAI(api_key="none", base_url="http://gateway/v1", http_client=http, max_retries=0)
    asked = QuestionPlan("handbook", (WHO,), **plan)
    # its own client is not asked
    load = QuestionLoad(None, asked, lambda: RequestContext.create(tenant="load-test"))  # type: ignore[arg-type]
    return HttpLoad(OpenAiClient(client), load)


def gateway(generator: FakeGenerator) -> httpx2.ASGITransport:
    config = GatewayConfig(http=HttpConfig("tiny"))
    pipeline = Pipeline(FakeRetriever({WHO: HITS}), generator, config, Prefetching(None))
    return httpx2.ASGITransport(http_app(pipeline, config.http), raise_app_exceptions=False)


def telling(*lines: str) -> httpx2.MockTransport:
    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET":
            return httpx2.Response(200, json={"object": "list", "data": [{"id": "tiny", "object": "model"}]})
        return httpx2.Response(200, text="".join(f"data: {line}\n\n" for line in lines))

    return httpx2.MockTransport(answer)


async def test_the_gateway_is_asked_as_it_is_over_grpc_and_its_cost_comes_back() -> None:
    generator, tokens = FakeGenerator({WHO: "Orla Venn"}), list[tuple[int, int]]()
    reply = await load_over(gateway(generator), num_generated=7).ask(3, ReuseMode.COMPOSITE, tokens.append)
    (order,) = generator.asked
    assert (order.questions, order.reuse.mode, order.sampling.max_tokens) == ((WHO,), ReuseMode.COMPOSITE, 7)
    assert len(order.chunks) == len(HITS)
    assert tokens
    assert set(tokens) == {(0, 0)}
    assert reply.usage.prompt_tokens == reply.usage.reused_tokens + reply.usage.recomputed_tokens > 0
    assert reply.usage.generated_tokens > 0
    assert reply.timings.total_s >= reply.timings.first_token_s >= 0


async def test_what_the_gateway_refuses_is_told() -> None:
    with pytest.raises(FailedPrecondition, match=r"over HTTP: status 400: .*top_k"):
        await load_over(gateway(FakeGenerator({})), k=10_000).ask(0, ReuseMode.FULL, lambda branch: None)


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([json.dumps({"choices": []})], "ended before the answer was whole"),
        ([json.dumps({"error": {"message": "the generator died"}})], "over HTTP: the generator died"),
    ],
)
async def test_an_answer_that_breaks_off_is_none(lines: list[str], says: str) -> None:
    with pytest.raises(Unavailable, match=says):
        await load_over(telling(*lines)).ask(0, ReuseMode.FULL, lambda branch: None)


async def test_an_address_where_nobody_answers_is_named() -> None:
    def refuse(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("refused")

    with pytest.raises(Unavailable, match="cannot ask over HTTP at http://gateway/v1"):
        await load_over(httpx2.MockTransport(refuse)).ask(0, ReuseMode.FULL, lambda branch: None)


@pytest.mark.parametrize("options", ["--level generate", "--questions-per-request 2"])
def test_what_cannot_be_asked_over_http_is_refused_by_option(options: str) -> None:
    with pytest.raises(InvalidRequest, match="--http: is for level answer and one question"):
        Setting.of_options(_parser().parse_args(["--http", "http://127.0.0.1:8000", *options.split()]))
