"""The console's files and headers, and what the page asks for that OpenAI's clients do not."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI

from services.gateway.config import GatewayConfig, HttpConfig
from services.gateway.console.files import POLICY, STATIC
from services.gateway.http.explained import explained
from services.gateway.http.routes import http_app
from services.gateway.pipeline import Pipeline
from services.gateway.prefetch import Prefetching
from shared.answer import Retrieved
from shared.clients.health import ServiceHealth
from shared.errors import Unavailable
from shared.generation.counted import COMPUTED, LOADED, RESIDENT
from shared.generation.told import SelectedEvent, TextSpan
from shared.kv_reports import NodeStats, StoreStats, TierStats
from shared.metrics import table
from shared.principals.callers import Callers
from shared.principals.principal import Role
from shared.request import RequestContext
from shared.routing.costs import Tier
from shared.search import SearchHit, SearchMode
from tests.unit.gateway.fakes import FakeGenerator, FakeRetriever, hit
from tests.unit.principals.test_callers import StaticKeys, World

WHO = "Who built the bridge?"
MARKUP = "<script>alert(1)</script> <img src=x onerror=alert(2)>"
FILES = sorted(path.name for path in STATIC.iterdir())


def behind(found: SearchHit, parent_id: str) -> SearchHit:
    return replace(found, chunk=replace(found.chunk, parent_id=parent_id))


async def state(ctx: RequestContext) -> list[ServiceHealth]:
    return [
        ServiceHealth("gateway", ready=True),
        ServiceHealth("generator", ready=False, detail="no answer within 2 s", facts={"device": "cpu"}),
    ]


async def held(ctx: RequestContext) -> StoreStats:
    memory, objects = TierStats("memory", 2, 20, 100, 10), TierStats("objects", 3, 30)
    return StoreStats((NodeStats("n1", True, (memory,)),), objects, num_unreachable=1)


async def away(ctx: RequestContext) -> list[ServiceHealth]:
    raise Unavailable("away; retry")


def app(callers: Callers | None = None, generator: FakeGenerator | None = None, told: Any = state) -> FastAPI:
    config = GatewayConfig(http=HttpConfig("tiny", max_body_bytes=4096))
    retriever = FakeRetriever({WHO: [behind(hit("a", MARKUP), "parent"), hit("b", "built in 1874")]})
    pipeline = Pipeline(retriever, generator or FakeGenerator({WHO: "Orla Venn"}), config, Prefetching(None))
    return http_app(pipeline, config.http, config.limits, callers, state=told, tiers=held)


def browser(served: FastAPI, peer: str = "10.0.0.9") -> httpx2.AsyncClient:
    transport = httpx2.ASGITransport(served, raise_app_exceptions=False, client=(peer, 5000))
    return httpx2.AsyncClient(transport=transport, base_url="http://gateway")


def asked(**more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": WHO}]
    return {"model": "tiny", "messages": messages, "collection": "handbook"} | more


@pytest.fixture
def world() -> World:
    return World(StaticKeys([]))


@pytest.mark.parametrize("name", ["", *FILES])
async def test_every_file_comes_with_the_policy_and_its_type_and_without_a_key(
    name: str, world: World
) -> None:
    async with browser(app(world.callers)) as http:
        got = await http.get(f"/console/{name}")
    assert got.status_code == 200
    assert got.content == (STATIC / (name or "index.html")).read_bytes()
    assert got.headers["content-security-policy"] == POLICY
    assert got.headers["x-content-type-options"] == "nosniff"
    kind = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
    assert got.headers["content-type"].split(";")[0] == kind[(name or "x.html").rpartition(".")[2]]


def test_the_policy_lets_only_this_gateways_files_run_and_no_text_become_markup() -> None:
    rules = dict(rule.split(" ", 1) for rule in POLICY.split("; "))
    assert rules["default-src"] == "'none'"
    assert {rules[f"{kind}-src"] for kind in ("script", "style", "img", "connect")} == {"'self'"}
    assert (rules["require-trusted-types-for"], rules["trusted-types"]) == ("'script'", "'none'")
    assert "unsafe" not in POLICY
    assert "http" not in POLICY


@pytest.mark.parametrize("name", ["../files.py", "%2e%2e/files.py", "nothing.js", "static/main.js"])
async def test_nothing_else_is_served(name: str) -> None:
    async with browser(app()) as http:
        got = await http.get(f"/console/{name}")
    assert got.status_code == 404


async def test_the_console_begins_at_a_slash() -> None:
    async with browser(app()) as http:
        got = await http.get("/console")
    assert (got.status_code, got.headers["location"]) == (307, "/console/")


def test_scripts_keep_nothing_load_nothing_and_make_no_markup() -> None:
    forbidden = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|setHTML|eval\(|new Function"
        r"|localStorage|sessionStorage|document\.cookie|indexedDB|https?://(?!www\.w3\.org/2000/svg)"
    )
    for name in FILES:
        assert forbidden.search((STATIC / name).read_text()) is None, name
    page = (STATIC / "index.html").read_text()
    assert not re.search(r"\son\w+=|\sstyle=|<style", page), "the policy would refuse it"


def test_the_console_has_a_name_and_a_colour_for_every_origin_of_kv() -> None:
    origins = {*map(str, Tier), LOADED} - {str(Tier.ARRIVING)}  # what arrives is loaded, or resident already
    assert {RESIDENT, COMPUTED} < origins
    script, style = ((STATIC / name).read_text() for name in ("context.js", "console.css"))
    names = re.search(r"const NAMES = \{(.*?)\};", script, re.DOTALL)
    assert names is not None
    assert origins <= set(re.findall(r"(\w+): \"", names[1]))
    for origin in origins:
        assert re.search(rf"\.{origin}\b[^{{}}]*\{{ --hue: ", style), origin


def test_the_console_looks_for_metrics_that_there_are() -> None:
    there = {metric.name for metric in table.ALL}
    named = set(re.findall(r"kvquilt_\w+", (STATIC / "replicas.js").read_text()))
    assert len(named) > 5
    assert {name.removeprefix("kvquilt_") for name in named} <= there


async def test_the_state_is_for_those_who_may_know_it(world: World) -> None:
    admin, reader = world.key("ada", Role.ADMIN), world.key("ray", Role.READER)
    async with browser(app(world.callers)) as http:
        told = await http.get("/v1/status", headers={"authorization": f"Bearer {admin}"})
        refused = await http.get("/v1/status", headers={"authorization": f"Bearer {reader}"})
        unknown = await http.get("/v1/status")
    assert (told.status_code, refused.status_code, unknown.status_code) == (200, 403, 401)
    assert told.json()["data"] == [
        {"service": "gateway", "ready": True, "detail": "", "facts": {}},
        {
            "service": "generator",
            "ready": False,
            "detail": "no answer within 2 s",
            "facts": {"device": "cpu"},
        },
    ]


async def test_tiers_are_for_those_who_may_know_them(world: World) -> None:
    admin, writer = world.key("ada", Role.ADMIN), world.key("wim", Role.WRITER)
    async with browser(app(world.callers)) as http:
        told = await http.get("/v1/tiers", headers={"authorization": f"Bearer {admin}"})
        refused = await http.get("/v1/tiers", headers={"authorization": f"Bearer {writer}"})
        unknown = await http.get("/v1/tiers")
    assert (told.status_code, refused.status_code, unknown.status_code) == (200, 403, 401)
    memory, objects = told.json()["data"]
    sizes = {"num_chunks": 2, "num_bytes": 20, "capacity_bytes": 100, "pinned_bytes": 10}
    assert memory == {"node": "n1", "tier": "memory"} | sizes
    assert (objects["node"], objects["tier"], objects["num_bytes"]) == (None, "objects", 30)
    assert told.json()["num_unreachable"] == 1


async def test_a_state_that_cannot_be_told_is_an_error_in_openais_form() -> None:
    async with browser(app(told=away)) as http:
        got = await http.get("/v1/status")
    assert (got.status_code, got.json()["error"]["message"]) == (503, "away; retry")


async def test_an_explained_answer_tells_its_chunks_as_they_are() -> None:
    generator = FakeGenerator({WHO: "Orla Venn"})
    generator.selected = SelectedEvent((0, 6), chunks=((TextSpan(0, 7, 0.5),), (TextSpan(0, 5, 0.25),)))
    generator.origins = ("resident", "disk")
    async with browser(app(generator=generator)) as http:
        got = await http.post("/v1/chat/completions", json=asked(explain=True))
        plain = await http.post("/v1/chat/completions", json=asked())
    assert got.json()["kvquilt"]["context"] == [
        {
            "source": 0,
            "text": MARKUP,
            "num_tokens": 4,
            "origin": "resident",
            "conditioned": True,
            "selected_tokens": 1,
            "spans": [{"start": 0, "end": 7, "score": 0.5}],
        },
        {
            "source": 1,
            "text": "built in 1874",
            "num_tokens": 3,
            "origin": "disk",
            "conditioned": False,
            "selected_tokens": 1,
            "spans": [{"start": 0, "end": 5, "score": 0.25}],
        },
    ]
    assert [order.reuse is not None and order.explain for order in generator.asked] == [True, False]
    assert plain.json()["kvquilt"]["context"] is None


@pytest.mark.parametrize("num_questions", [1, 2])
async def test_branches_are_numbered_and_their_tokens_told_as_they_grow(num_questions: int) -> None:
    """What ``branches.js`` goes by: of one question by chat, of several by completions."""
    when = "When was it built?"
    rankings = {WHO: [hit("a", "Orla Venn built it")], when: [hit("b", "built in 1874")]}
    pipeline = Pipeline(
        FakeRetriever(rankings),
        FakeGenerator({WHO: "Orla Venn did", when: "in 1874"}),
        GatewayConfig(),
        Prefetching(None),
    )
    body = asked(n=2, temperature=0.8, explain=True, stream=True, stream_options={"include_usage": True})
    if num_questions == 1:
        path, body = "/v1/chat/completions", body | {"logprobs": True}
    else:
        path, body = "/v1/completions", body | {"prompt": [WHO, when], "logprobs": 0}
        del body["messages"]
    async with browser(http_app(pipeline, HttpConfig("tiny"))) as http:
        got = await http.post(path, json=body)
    chunks = [json.loads(frame[6:]) for frame in got.text.split("\n\n") if frame.startswith("data: {")]
    texts, tokens, ends = defaultdict[int, str](str), Counter[int](), list[int]()
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        index, logprobs = choice["index"], choice.get("logprobs") or {}
        texts[index] += choice.get("text") or choice.get("delta", {}).get("content") or ""
        tokens[index] += len(logprobs.get("token_logprobs") or logprobs.get("content") or ())
        ends += [index] if choice["finish_reason"] else []
    said = ["Orla Venn did", "in 1874"][:num_questions]
    assert [texts[i] for i in range(2 * num_questions)] == [text for text in said for _ in range(2)]
    assert sorted(ends) == list(range(2 * num_questions))
    (cost,) = (chunk["usage"] for chunk in chunks if chunk.get("usage"))
    assert tokens.total() == cost["completion_tokens"]
    (told,) = (chunk["kvquilt"] for chunk in chunks if chunk.get("kvquilt"))
    assert {citation["choice"] for citation in told["citations"]} == set(range(2 * num_questions))
    assert len(told["context"]) == num_questions


def test_behind_a_handed_chunk_nobody_here_counts_tokens() -> None:
    handed = replace(hit("b", "handed over"), chunk=replace(hit("b", "handed over").chunk, token_ids=()))
    told = explained(Retrieved((hit("a", "one two"), handed, hit("c", "three")), SearchMode.DENSE), [], ())
    assert [(chunk.num_tokens, chunk.selected_tokens) for chunk in told] == [(2, 0), (None, None), (1, None)]
    assert {chunk.origin for chunk in told} == {None}, "an older generator names none"
