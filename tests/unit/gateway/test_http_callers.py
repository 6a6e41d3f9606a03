"""Who may ask over HTTP: the same as by gRPC, told as OpenAI's clients read it."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import openai
import pytest
from fastapi import FastAPI

from services.gateway.config import GatewayConfig, HttpConfig
from services.gateway.http.routes import http_app
from services.gateway.pipeline import Pipeline
from services.gateway.prefetch import Prefetching
from shared.errors import PermissionDenied
from shared.principals.callers import Callers
from shared.principals.keys import new_key
from tests.unit.gateway.fakes import FakeGenerator, FakeRetriever, hit
from tests.unit.principals.test_callers import StaticKeys, World

WHO = "Who built the bridge?"
ASKED: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": WHO}],
    "extra_body": {"collection": "handbook", "tenant": "victim"},
    "extra_headers": {"x-kvquilt-tenant": "victim"},
}


class Seeing(FakeRetriever):
    """Notes for whom was searched."""

    def __init__(self) -> None:
        super().__init__({WHO: [hit("a", "Orla Venn built it")]})
        self.tenants: list[str] = []

    async def search(self, ctx: Any, *args: Any, **more: Any) -> Any:
        self.tenants.append(ctx.tenant)
        return await super().search(ctx, *args, **more)


def served(callers: Callers, retriever: FakeRetriever | None = None) -> FastAPI:
    config = GatewayConfig(http=HttpConfig("tiny", max_body_bytes=4096))
    pipeline = Pipeline(retriever or Seeing(), FakeGenerator({WHO: "Orla Venn"}), config, Prefetching(None))
    return http_app(pipeline, config.http, config.limits, callers)


def client(app: FastAPI, key: str, peer: str = "10.0.0.9", host: str = "gateway") -> openai.AsyncOpenAI:
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False, client=(peer, 5000))
    http = httpx2.AsyncClient(transport=transport)
    return openai.AsyncOpenAI(api_key=key, base_url=f"http://{host}/v1", http_client=http, max_retries=0)


@pytest.fixture
def world() -> World:
    return World(StaticKeys([]))


async def test_a_key_is_the_one_that_openais_clients_send_and_says_the_tenant(world: World) -> None:
    key, retriever = world.key(), Seeing()
    asking = client(served(world.callers, retriever), key)
    await asking.chat.completions.create(**ASKED)
    stream = await asking.chat.completions.create(**ASKED, stream=True)
    assert [chunk async for chunk in stream]
    assert retriever.tenants == ["acme", "acme"]
    assert [model.id async for model in asking.models.list()] == ["tiny", "tiny:full", "tiny:auto"]


async def test_strangers_are_refused_whatever_they_ask(world: World) -> None:
    retriever = Seeing()
    asking = client(served(world.callers, retriever), new_key())
    with pytest.raises(openai.AuthenticationError) as refused:
        await asking.chat.completions.create(**ASKED)
    assert refused.value.code == "invalid_api_key"
    assert refused.value.response.headers["www-authenticate"] == "Bearer"
    with pytest.raises(openai.AuthenticationError):
        await asking.models.list()
    assert retriever.tenants == []


@pytest.mark.parametrize("path", ["/v1/models", "/v1/chat/completions", "/openapi.json", "/", "/nowhere"])
async def test_nothing_is_read_of_what_they_send(world: World, path: str) -> None:
    async def receive() -> Any:
        raise AssertionError("read")

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "headers": [], "client": ("127.0.0.1", 5000)}
    await served(world.callers)(scope, receive, send)
    assert sent[0]["status"] == 401
    assert json.loads(sent[1]["body"])["error"]["message"].startswith("who calls is not said")


async def test_who_has_no_role_for_it_is_denied(world: World) -> None:
    class Nobody:
        trouble, identity = "", None

        async def of_call(self, method: str, call: object) -> Any:
            raise PermissionDenied("Answer needs the role reader")

    with pytest.raises(openai.PermissionDeniedError) as denied:
        await client(served(Nobody()), "x").chat.completions.create(**ASKED)
    assert denied.value.code == "permission_denied"


async def test_without_keys_this_machine_asks_and_nobody_else() -> None:
    app = served(World(local=True).callers)
    assert await client(app, "none", "127.0.0.1", "localhost").models.list()
    for peer, host in (("10.0.0.9", "localhost"), ("127.0.0.1", "evil.example"), ("", "localhost")):
        with pytest.raises(openai.AuthenticationError):
            await client(app, "none", peer, host).models.list()


async def test_a_page_of_somebody_else_asks_nothing_through_its_readers_browser() -> None:
    app = served(World(local=True).callers)
    with pytest.raises(openai.AuthenticationError):
        await client(app, "none", "127.0.0.1", "localhost").models.list(
            extra_headers={"origin": "https://evil.example"}
        )
