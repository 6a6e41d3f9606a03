"""The tools at `/mcp`, called by the official client without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from services.gateway.config import GatewayConfig, HttpConfig
from services.gateway.http.mcp_route import PATH, ToolSources
from services.gateway.http.routes import http_app
from services.gateway.metering import Metered
from services.gateway.pipeline import Pipeline
from services.gateway.ports import Answering
from services.gateway.prefetch import Prefetching
from shared.admission.entrance import Entrance
from shared.admission.settings import PrincipalLimits
from shared.answer import AnswerEvent, Inquiry, Retrieved
from shared.audit import AuditConfig, AuditLog, read_lines
from shared.audited import Recorder
from shared.documents import DocumentInfo, DocumentPage
from shared.generation.modes import ReuseMode
from shared.metrics.recorder import Metrics
from shared.principals.callers import Callers
from shared.principals.keys import new_key
from shared.request import RequestContext
from shared.search import SearchMode
from tests.unit.gateway.fakes import FakeGenerator, FakeRetriever, hit
from tests.unit.metrics.test_recorder import samples
from tests.unit.principals.test_callers import StaticKeys, World

WHO = "Who built the bridge?"
HITS = [hit("a", "Orla Venn built it", heading="Bridge"), hit("b", "It was built in 1874")]
ASKED = {"question": WHO, "collection": "handbook"}


class Seeing(FakeRetriever):
    """Notes for whom was searched."""

    def __init__(self) -> None:
        super().__init__({WHO: HITS, "What else?": []})
        self.tenants: list[str] = []

    async def search(self, ctx: Any, *args: Any, **more: Any) -> Any:
        self.tenants.append(ctx.tenant)
        return await super().search(ctx, *args, **more)


class Catalogue:
    """Three documents of the caller's tenant, two on a page."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str, int]] = []

    async def list_page(
        self, ctx: RequestContext, collection: str, start_after: str, limit: int
    ) -> DocumentPage:
        self.asked.append((ctx.tenant, collection, start_after, limit))
        names = ["a.md", "b.md", "c.md"]
        after = names[names.index(start_after.rpartition("/")[2]) + 1 :] if start_after else names
        found = tuple(DocumentInfo("handbook", name, name.title(), 3, "f", True, 1.0) for name in after[:2])
        return DocumentPage(found, len(after) > 2)


class Hanging:
    """Never says anything. ``closed``: who asked has gone."""

    def __init__(self) -> None:
        self.asked, self.closed = asyncio.Event(), asyncio.Event()

    async def answer(self, ctx: RequestContext, inquiry: Inquiry) -> AsyncGenerator[AnswerEvent, None]:
        try:
            self.asked.set()
            await asyncio.Event().wait()
            yield Retrieved((), SearchMode.DENSE)
        finally:
            self.closed.set()


def served(
    pipeline: Answering | None = None,
    retriever: FakeRetriever | None = None,
    catalogue: Catalogue | None = None,
    generator: FakeGenerator | None = None,
    callers: Callers | None = None,
    **more: Any,
) -> FastAPI:
    config = GatewayConfig(http=HttpConfig("tiny", max_body_bytes=4096))
    retriever = retriever or Seeing()
    answering = pipeline or Pipeline(
        retriever, generator or FakeGenerator({WHO: "Orla Venn"}), config, Prefetching(None)
    )
    tool_sources = ToolSources(retriever, catalogue or Catalogue())
    return http_app(answering, config.http, config.limits, callers, tools=tool_sources, **more)


def http(app: FastAPI, **headers: str) -> httpx2.AsyncClient:
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False, client=("10.0.0.9", 5000))
    return httpx2.AsyncClient(transport=transport, headers=headers, base_url="http://gateway")


@asynccontextmanager
async def client(app: FastAPI, mode: str = "auto", **headers: str) -> AsyncIterator[Client]:
    async with app.router.lifespan_context(app), http(app, **headers) as requests:
        transport = streamable_http_client(f"http://gateway{PATH}", http_client=requests)
        async with Client(transport, mode=mode) as found:
            yield found


async def call(app: FastAPI, tool: str, arguments: dict[str, Any], **headers: str) -> Any:
    async with client(app, **headers) as tools:
        return await tools.call_tool(tool, arguments)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_tools_are_listed_with_what_they_take_and_tell(mode: str) -> None:
    async with client(served(), mode) as tools:
        found = {tool.name: tool for tool in (await tools.list_tools()).tools}
    assert set(found) == {"search", "ask", "list_documents"}
    for tool in found.values():
        assert tool.description
        assert tool.annotations is not None
        assert tool.annotations.read_only_hint is True
        assert "call" not in tool.input_schema["properties"]
    assert set(found["ask"].input_schema["required"]) == {"question", "collection"}
    assert "citations" in (found["ask"].output_schema or {})["properties"]
    assert "reordered" in found["ask"].input_schema["properties"]["mode"]["description"]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_an_answer_comes_with_its_citations_as_values(mode: str) -> None:
    async with client(served(), mode) as tools:
        result = await tools.call_tool("ask", ASKED)
    assert not result.is_error
    answer = result.structured_content
    assert answer is not None
    assert answer["text"] == "Orla Venn"
    assert answer["refused"] is False
    assert [source["text"] for source in answer["sources"]] == [one.chunk.text for one in HITS]
    cited = answer["citations"][0]
    assert answer["sources"][cited["source"]]["chunk_id"] == cited["chunk_id"]
    assert cited["heading"] == "Bridge"
    assert answer["prompt_tokens"] > 0


async def test_a_question_may_name_its_mode_and_how_much_is_read() -> None:
    generator = FakeGenerator({WHO: "Orla Venn"})
    more = {"mode": "epic", "ratio": 0.3, "max_tokens": 5, "top_k": 1}
    result = await call(served(generator=generator), "ask", ASKED | more)
    assert not result.is_error
    (order,) = generator.asked
    assert (order.reuse.mode, order.reuse.recompute.ratio) == (ReuseMode.EPIC, 0.3)
    assert order.sampling.max_tokens == 5
    assert len(order.chunks) == 1


async def test_passages_are_found_without_generating_anything() -> None:
    generator = FakeGenerator({})
    found = await call(
        served(generator=generator), "search", {"query": WHO, "collection": "handbook", "top_k": 2}
    )
    passages = found.structured_content["passages"]
    assert [one["text"] for one in passages] == [one.chunk.text for one in HITS]
    assert generator.asked == []


async def test_documents_are_listed_page_by_page() -> None:
    catalogue = Catalogue()
    async with client(served(catalogue=catalogue)) as tools:
        first = (await tools.call_tool("list_documents", {"limit": 2})).structured_content
        assert first is not None
        second = (
            await tools.call_tool("list_documents", {"limit": 2, "start_after": first["next"]})
        ).structured_content
        of_one = (await tools.call_tool("list_documents", {"collection": "handbook"})).structured_content
    assert second is not None
    assert of_one is not None
    assert [one["document_id"] for one in first["documents"]] == ["a.md", "b.md"]
    assert first["next"] == "handbook/b.md"
    assert ([one["document_id"] for one in second["documents"]], second["next"]) == (["c.md"], None)
    assert of_one["next"] == "b.md"


@pytest.mark.parametrize(
    ("tool", "arguments", "says"),
    [
        ("ask", ASKED | {"collection": ""}, "INVALID_REQUEST: collection"),
        ("ask", ASKED | {"mode": "fastest"}, "INVALID_REQUEST: mode: 'fastest' is not one of full"),
        ("ask", ASKED | {"ratio": 1.5}, "less than or equal to 1"),
        ("ask", ASKED | {"top_k": 0}, "greater than or equal to 1"),
        ("ask", ASKED | {"question": "why " * 20_000}, "INVALID_REQUEST: questions"),
        ("ask", {"question": WHO}, "collection"),
        ("ask", {"question": "What else?", "collection": "handbook"}, "NOT_FOUND: "),
        ("search", {"query": WHO, "collection": "handbook", "top_k": 1000}, "less than or equal to 100"),
    ],
)
async def test_what_is_wrong_is_told_to_the_model(tool: str, arguments: dict[str, Any], says: str) -> None:
    app = served() if len(str(arguments)) < 4000 else large_bodies()
    result = await call(app, tool, arguments)
    assert result.is_error
    assert says in result.content[0].text


def large_bodies() -> FastAPI:
    config = GatewayConfig(http=HttpConfig("tiny", max_body_bytes=1 << 20))
    pipeline = Pipeline(Seeing(), FakeGenerator({}), config, Prefetching(None))
    return http_app(pipeline, config.http, config.limits, tools=ToolSources(Seeing(), Catalogue()))


async def test_what_is_unexpected_is_not_told() -> None:
    class Broken(Catalogue):
        async def list_page(self, *args: Any) -> DocumentPage:
            raise RuntimeError("a path of the server: /secret")

    result = await call(served(catalogue=Broken()), "list_documents", {})
    assert result.is_error
    assert result.content[0].text.endswith("INTERNAL: failed unexpectedly; the service's log has the reason")
    assert "secret" not in str(result)


@pytest.fixture
def world() -> World:
    return World(StaticKeys([]))


async def test_a_key_says_whose_documents_all_tools_see(world: World) -> None:
    retriever, catalogue = Seeing(), Catalogue()
    app = served(retriever=retriever, catalogue=catalogue, callers=world.callers)
    headers = {"authorization": f"Bearer {world.key()}", "x-kvquilt-tenant": "victim"}
    async with client(app, **headers) as tools:
        await tools.call_tool("ask", ASKED)
        await tools.call_tool("search", {"query": WHO, "collection": "handbook"})
        await tools.call_tool("list_documents", {})
    assert retriever.tenants == ["acme", "acme"]
    assert [tenant for tenant, *_ in catalogue.asked] == ["acme"]


async def test_strangers_are_refused_before_anything_is_read(world: World) -> None:
    async with http(served(callers=world.callers), authorization=f"Bearer {new_key()}") as requests:
        refused = await requests.post(PATH, json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
    assert refused.status_code == 401
    assert refused.json()["error"]["code"] == "invalid_api_key"


async def test_the_limits_of_a_principal_hold_for_all_tools(world: World, tmp_path: Path) -> None:
    recorder = Recorder(AuditLog("gateway", AuditConfig(str(tmp_path))), clock=lambda: 0.0)
    door = Entrance(PrincipalLimits(requests_per_s=0.001, burst_s=1.0))
    app = served(callers=world.callers, door=door, recorder=recorder)
    async with client(app, authorization=f"Bearer {world.key('anna')}") as tools:
        assert not (await tools.call_tool("ask", ASKED)).is_error
        for tool, arguments in (
            ("ask", ASKED),
            ("search", {"query": WHO, "collection": "handbook"}),
            ("list_documents", {}),
        ):
            result: Any = await tools.call_tool(tool, arguments)
            assert result.is_error
            assert "OVERLOADED: " in result.content[0].text
    recorder.close()
    (line,) = read_lines(tmp_path)  # the same refusal, for a while
    assert (line["outcome"], line["principal"], line["tenant"]) == ("OVERLOADED", "key/anna", "acme")


async def test_an_answer_counts_in_the_metrics_as_any_other() -> None:
    metrics = Metrics()
    config = GatewayConfig()
    pipeline = Pipeline(Seeing(), FakeGenerator({WHO: "Orla Venn"}), config, Prefetching(None))
    await call(served(Metered(pipeline, metrics)), "ask", ASKED)
    told = samples(metrics)
    (answered,) = [value for name, value in told.items() if name.startswith("kvquilt_answers_total")]
    assert answered == 1


async def test_who_leaves_ends_the_answer() -> None:
    hanging = Hanging()
    app = served(hanging)
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "ask", "arguments": ASKED}}
    headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-06-18"}
    async with app.router.lifespan_context(app), http(app, **headers) as requests:
        asking = asyncio.ensure_future(requests.post(PATH, json=body))
        await hanging.asked.wait()
        asking.cancel()
        await hanging.closed.wait()


async def test_other_methods_and_large_bodies_are_refused_as_everywhere() -> None:
    app = served()
    async with app.router.lifespan_context(app), http(app) as requests:
        assert (await requests.get(PATH)).status_code == 405
        large = await requests.post(PATH, content=b"x" * 5000, headers={"content-type": "application/json"})
    assert large.status_code == 413


async def test_without_sources_there_are_no_tools() -> None:
    config = GatewayConfig()
    app = http_app(Pipeline(Seeing(), FakeGenerator({}), config, Prefetching(None)), config.http)
    async with http(app) as requests:
        assert (await requests.post(PATH, json={})).status_code == 404
