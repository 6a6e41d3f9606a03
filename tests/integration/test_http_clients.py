"""Both clients over HTTP ask the same and are told the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from cluster.local.launcher import free_port
from load_tests.service.http_clients import HttpClient, OpenAiClient, bare_client, openai_client
from load_tests.service.http_load import HttpLoad
from load_tests.service.loads import QuestionLoad, QuestionPlan
from services.gateway.config import GatewayConfig, HttpConfig
from services.gateway.http.routes import http_app
from services.gateway.pipeline import Pipeline
from services.gateway.prefetch import Prefetching
from shared.errors import FailedPrecondition, Unavailable
from shared.generation.modes import ReuseMode
from shared.request import RequestContext
from tests.unit.gateway.fakes import FakeGenerator, FakeRetriever, hit

WHO = "Who built the bridge?"


def load_by(client: HttpClient, **plan: int) -> HttpLoad:
    asked = QuestionPlan("handbook", (WHO,), **plan)
    return HttpLoad(client, QuestionLoad(None, asked, lambda: RequestContext.create(tenant="load-test")))  # type: ignore[arg-type]


@asynccontextmanager
async def gateway(generator: FakeGenerator) -> AsyncIterator[str]:
    config = GatewayConfig(http=HttpConfig("tiny"))
    hits = {WHO: [hit("a", "Orla Venn built it"), hit("b", "It was built in 1874")]}
    app = http_app(Pipeline(FakeRetriever(hits), generator, config, Prefetching(None)), config.http)
    async with serving(app) as address:
        yield address


@asynccontextmanager
async def serving(app: ASGIApp) -> AsyncIterator[str]:
    """Yields its address."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    running = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        (listening,) = server.servers[0].sockets
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        await running


async def test_a_question_is_the_same_by_either_client() -> None:
    generator = FakeGenerator({WHO: "Orla Venn"})
    async with gateway(generator) as address, bare_client(address) as bare, openai_client(address) as package:
        told = []
        for client in (bare, OpenAiClient(package)):
            tokens = list[tuple[int, int]]()
            reply = await load_by(client, num_generated=7).ask(0, ReuseMode.COMPOSITE, tokens.append)
            told.append((reply.usage, tokens))
        one, other = generator.asked
        assert (one.questions, one.reuse, one.sampling) == (other.questions, other.reuse, other.sampling)
        assert told[0] == told[1]
        assert told[0][1]


async def test_what_is_refused_is_told_with_its_status() -> None:
    async with gateway(FakeGenerator({})) as address, bare_client(address) as bare:
        with pytest.raises(FailedPrecondition, match=r"over HTTP: status 400: .*top_k"):
            await load_by(bare, k=10_000).ask(0, ReuseMode.FULL, lambda branch: None)


async def test_who_may_not_ask_is_told_by_either_client() -> None:
    def refuses(request: Request) -> JSONResponse:
        return JSONResponse({"error": {"message": "a key is needed"}}, 401)

    app = Starlette(routes=[Route("/v1/models", refuses)])
    async with serving(app) as address, bare_client(address) as bare, openai_client(address) as package:
        for client in (bare, OpenAiClient(package)):
            with pytest.raises(FailedPrecondition, match=r"over HTTP: status 401: .*a key is needed"):
                await load_by(client).ask(0, ReuseMode.FULL, lambda branch: None)


async def test_an_address_where_nobody_answers_is_named() -> None:
    address = f"http://127.0.0.1:{free_port()}"
    async with bare_client(address) as bare:
        with pytest.raises(Unavailable, match=f"cannot ask over HTTP at {address}/v1"):
            await load_by(bare).ask(0, ReuseMode.FULL, lambda branch: None)
