"""The gateway over HTTP, asked by OpenAI's own client without a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx2
import openai
import pytest
from fastapi import FastAPI

from services.gateway.config import GatewayConfig, HttpConfig
from services.gateway.http.routes import http_app
from services.gateway.pipeline import Pipeline
from services.gateway.prefetch import Prefetching
from shared.admission.entrance import Entrance
from shared.config import load
from shared.errors import (
    ContextTooLong,
    CorruptData,
    DeadlineExceeded,
    KvquiltError,
    ModelMismatch,
    NotFound,
    Overloaded,
    PermissionDenied,
    Unavailable,
)
from shared.generation.modes import ReuseMode
from shared.limits import RequestLimits
from shared.principals.callers import OPERATOR, Call, Caller
from shared.search import Block
from tests.unit.gateway.fakes import FakeGenerator, FakeRetriever, hit

WHO = "Who built the bridge?"
HITS = [
    hit("a", "Orla Venn built it", heading="Bridge", place=2, block=Block(1, "Works", 1, True)),
    hit("b", "It was built in 1874"),
]
USER = {"role": "user", "content": WHO}
NOW_S = 1_700_000_000


def app(
    generator: FakeGenerator | None = None,
    retriever: FakeRetriever | None = None,
    door: Entrance | None = None,
    **settings: Any,
) -> FastAPI:
    config = GatewayConfig(http=HttpConfig("tiny", max_body_bytes=4096), **settings)
    pipeline = Pipeline(
        retriever or FakeRetriever({WHO: HITS}),
        generator or FakeGenerator({WHO: "Orla Venn"}),
        config,
        Prefetching(None),
    )
    return http_app(pipeline, config.http, config.limits, clock=lambda: NOW_S, door=door)


def client(served: FastAPI | None = None, **options: Any) -> openai.AsyncOpenAI:
    transport = httpx2.ASGITransport(served or app(), raise_app_exceptions=False)
    http = httpx2.AsyncClient(transport=transport)
    return openai.AsyncOpenAI(
        api_key="none", base_url="http://gateway/v1", http_client=http, max_retries=0, **options
    )


async def ask(served: FastAPI | None = None, **parameters: Any) -> Any:
    asked = {"model": "tiny", "messages": [USER], "extra_body": {"collection": "handbook"}} | parameters
    return await client(served).chat.completions.create(**asked)


async def post(body: bytes | str, served: FastAPI | None = None, **headers: str) -> httpx2.Response:
    transport = httpx2.ASGITransport(served or app(), raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://gateway") as http:
        content_type = {"content-type": "application/json"}
        return await http.post("/v1/chat/completions", content=body, headers=content_type | headers)


async def chunks_of(stream: AsyncIterator[Any]) -> list[Any]:
    return [chunk async for chunk in stream]


async def test_a_whole_answer_with_its_sources_and_what_it_cost() -> None:
    answer = await ask()
    assert (answer.object, answer.model, answer.created) == ("chat.completion", "tiny", NOW_S)
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == (
        "assistant",
        "Orla Venn",
        "stop",
    )
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (100, 2, 102)
    assert usage.prompt_tokens_details.cached_tokens == 90
    told = answer.kvquilt
    assert answer.id == f"chatcmpl-{told['request_id']}"
    assert told["citations"] == [
        {
            "document_id": "a.txt",
            "title": "a",
            "heading": "Bridge",
            "chunk_id": "a",
            "choice": 0,
            "source": 0,
            "block": 1,
            "block_heading": "Works",
            "conditioned_on": "header + 1 chunk",
        }
    ]
    assert [source["chunk_id"] for source in told["sources"]] == ["a", "b"]
    assert not told["refused"]
    assert told["timings_ms"]["prefill"] == 5000.0
    assert told["tokens"]["recomputed"] == 10


@pytest.mark.parametrize(
    "options", [{"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}]
)
async def test_a_stream_is_a_role_the_text_an_end_and_the_cost(options: dict[str, bool]) -> None:
    chunks = await chunks_of(await ask(stream=True, stream_options=options))
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    deltas = [chunk.choices[0].delta for chunk in chunks[:-1]]
    assert (deltas[0].role, deltas[0].content) == ("assistant", "")
    assert [delta.content for delta in deltas[1:]] == ["Orla", " Venn", None]
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None, None, None, "stop"]
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * 4
    assert chunks[-2].kvquilt["citations"][0]["document_id"] == "a.txt"
    assert (chunks[-1].choices, chunks[-1].usage.completion_tokens) == ([], 2)


async def test_every_event_of_a_stream_is_a_line_of_json_and_the_last_says_done() -> None:
    body = {"model": "tiny", "messages": [USER], "collection": "handbook", "stream": True}
    response = await post(json.dumps(body))
    assert response.headers["content-type"].startswith("text/event-stream")
    *frames, done, rest = response.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    events = [json.loads(frame.removeprefix("data: ")) for frame in frames]
    assert all("usage" not in event for event in events), "nobody asked for it"
    assert events[1]["choices"] == [{"index": 0, "delta": {"content": "Orla"}, "finish_reason": None}]
    assert [event["choices"][0]["delta"] for event in events][-1] == {}


async def test_samples_are_choices_whole_and_streamed() -> None:
    answer = await ask(n=3)
    assert [(c.index, c.message.content) for c in answer.choices] == [(i, "Orla Venn") for i in range(3)]
    assert {cited["choice"] for cited in answer.kvquilt["citations"]} == {0, 1, 2}
    texts = {0: "", 1: "", 2: ""}
    ended = []
    for chunk in await chunks_of(await ask(n=3, stream=True)):
        choice = chunk.choices[0]
        texts[choice.index] += choice.delta.content or ""
        ended += [choice.index] if choice.finish_reason else []
    assert texts == dict.fromkeys(range(3), "Orla Venn")
    assert sorted(ended) == [0, 1, 2]


async def test_what_is_asked_reaches_the_generator() -> None:
    generator = FakeGenerator({f"Be brief.\n\n{WHO}": "Orla"})
    await ask(
        app(generator),
        messages=[{"role": "system", "content": "Be brief."}, USER],
        max_completion_tokens=9,
        extra_body={"collection": "handbook", "mode": "composite", "adapter": "qa", "top_k": 1},
    )
    (order,) = generator.asked
    assert (order.reuse.mode, order.reuse.adapter) == (ReuseMode.COMPOSITE, "qa")
    assert order.sampling.max_tokens == 9
    assert len(order.chunks) == 1


async def test_a_refused_question_is_answered_by_the_configured_text_and_marked() -> None:
    far = FakeRetriever({WHO: [replace(hit("x", "Rain is expected"), similarity=0.1)]})
    extra = {"collection": "handbook", "refusal": "strict"}
    answer = await ask(app(FakeGenerator({}), far), extra_body=extra)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (
        "The documents do not say.",
        "stop",
    )
    assert answer.kvquilt["refused"]
    assert answer.kvquilt["note"].startswith("refused: the evidence")
    chunks = await chunks_of(await ask(app(FakeGenerator({}), far), extra_body=extra, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "The documents do not say."
    assert chunks[-1].kvquilt["refused"]


async def test_the_models_are_the_one_that_is_served_with_the_modes_that_can_be_named() -> None:
    model, full, auto = (await client().models.list()).data
    assert (full.id, full.kvquilt, auto.id) == ("tiny:full", {"modes": ["full"]}, "tiny:auto")
    assert (await client().models.retrieve("tiny:composite")).id == "tiny:composite"
    assert (model.id, model.object, model.owned_by) == ("tiny", "model", "kvquilt")
    assert {"full", "reordered", "auto"} <= set(model.kvquilt["modes"])
    assert "tokens" not in model.kvquilt["modes"]
    assert (await client().models.retrieve("tiny")).id == "tiny"


@pytest.mark.parametrize("name", ["gpt-5", "a/b", "tiny:", "tiny:tokens", "tiny:full:full", "tinyfull"])
async def test_another_model_is_not_found(name: str) -> None:
    with pytest.raises(openai.NotFoundError) as asked:
        await ask(model=name)
    assert (asked.value.code, asked.value.param) == ("model_not_found", "model")
    assert "'tiny' is" in asked.value.message
    with pytest.raises(openai.NotFoundError, match="not served here"):
        await client().models.retrieve(name)


@pytest.mark.parametrize(
    ("error", "kind", "status", "code", "again"),
    [
        (NotFound("no collection 'handbook'"), openai.NotFoundError, 404, "not_found", False),
        (ContextTooLong("too long"), openai.BadRequestError, 400, "context_length_exceeded", False),
        (ModelMismatch("run it again"), openai.BadRequestError, 400, "model_mismatch", False),
        (Overloaded("no room"), openai.RateLimitError, 429, "overloaded", True),
        (CorruptData("bad"), openai.InternalServerError, 500, "corrupt_data", False),
        (DeadlineExceeded("late"), openai.InternalServerError, 504, "deadline_exceeded", False),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_errors_have_the_status_that_clients_expect(
    error: KvquiltError, kind: type[openai.APIStatusError], status: int, code: str, again: bool, stream: bool
) -> None:
    generator = FakeGenerator({WHO: "Orla"}, failures=[(0, error)])
    with pytest.raises(kind) as failed:
        await ask(app(generator), stream=stream)
    raised = failed.value
    assert (raised.status_code, raised.code, raised.body["message"]) == (status, code, error.detail)  # type: ignore[index, call-overload]
    assert raised.response.headers["x-should-retry"] == str(again).lower()
    assert ("retry-after" in raised.response.headers) is again


async def test_a_service_that_is_away_is_said_to_be_so_until_the_deadline() -> None:
    extra = {"collection": "handbook", "deadline_ms": 1}
    gone = FakeRetriever({WHO: HITS}, error=Unavailable("retrieval is not available; retry"))
    with pytest.raises(openai.InternalServerError) as failed:
        await ask(app(retriever=gone), extra_body=extra)
    assert failed.value.status_code in (503, 504)


async def test_what_nobody_foresaw_is_logged_and_not_told(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(openai.InternalServerError) as failed:
        await ask(app(FakeGenerator({})))  # KeyError
    assert failed.value.message.startswith("Error code: 500")
    assert "Traceback" not in failed.value.response.text
    assert "KeyError" in caplog.text


async def test_an_answer_that_breaks_off_in_its_middle_ends_with_an_error_and_is_not_done() -> None:
    generator = FakeGenerator({WHO: "Orla Venn built"}, failures=[(2, Unavailable("it died"))])
    stream = await ask(app(generator), stream=True)
    texts = [(await anext(stream)).choices[0].delta.content for _ in range(3)]
    assert texts == ["", "Orla", " Venn"]
    with pytest.raises(openai.APIError, match="the generator died while answering"):
        await anext(stream)


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ("{", None, "the body is not JSON"),
        ("[]", None, "the body must be a JSON object"),
        ('{"messages": []}', "model", "model: is required"),
        ('{"model": "tiny", "messages": [{"role": "user", "content": 5}]}', "messages[0].content", "string"),
        ('{"model": "tiny", "messages": [5]}', "messages[0]", "messages[0]: "),
        ('{"model": "tiny", "messages": "hi"}', "messages", "messages: "),
        ('{"model": "tiny", "messages": [], "n": "two"}', "n", "n: Input should be a valid integer"),
        ('{"model": "tiny", "messages": [], "top_k": 0}', "top_k", "top_k: Input should be greater"),
        (
            '{"model": "tiny", "messages": [{"role": "user", "content": "\\ud800"}]}',
            "messages[0].content",
            "half",
        ),
        ('{"model": "tiny", "messages": [], "\\ud800": 1}', None, "the body: "),
    ],
)
async def test_bodies_that_cannot_be_read_are_refused_by_the_place(
    body: str, param: str | None, says: str
) -> None:
    response = await post(body)
    error = response.json()["error"]
    assert response.status_code == 400
    assert error["type"] == "invalid_request_error"
    assert says in error["message"]
    if param:
        assert error["param"] == param


async def test_fields_are_named_as_they_are_over_http() -> None:
    for extra, param in (
        ({"top_k": 65}, "top_k"),
        ({"ratio": 2.0}, "ratio"),
        ({"tenant": "../x"}, "tenant"),
        ({"seed": -1}, "seed"),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            await ask(extra_body={"collection": "handbook"} | extra)
        assert refused.value.param == param
        assert refused.value.body["message"].startswith(f"{param}: ")  # type: ignore[index, call-overload]


async def test_a_question_has_the_limits_that_it_has_by_grpc() -> None:
    for asked, says in (
        ({"stop": ["x"] * 65}, "stop: has 65 entries, more than the 64 that limits.stop_strings allows"),
        (
            {"messages": [{"role": "system", "content": "é" * 100}, USER]},
            "messages: has 200 bytes, more than the 100 that limits.text_bytes allows",
        ),
        (
            {"messages": [{"role": "user", "content": "x" * 41}]},
            "messages: has 41 bytes, more than the 40 that limits.question_bytes allows",
        ),
        ({"messages": [{"role": "user", "content": "a\0"}]}, "messages: holds NUL"),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            await ask(app(limits=RequestLimits(question_bytes=40, text_bytes=100)), **asked)
        assert str(refused.value.body["message"]).startswith(says)  # type: ignore[index, call-overload]


async def test_a_request_id_that_would_forge_log_lines_is_refused() -> None:
    body = json.dumps({"model": "tiny", "messages": [USER], "collection": "handbook"})
    response = await post(body, **{"x-request-id": "a\x1b[2J"})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "x-request-id")


async def test_a_large_body_is_refused_before_it_is_read() -> None:
    response = await post(json.dumps({"model": "tiny", "messages": [USER | {"content": "x" * 5000}]}))
    assert response.status_code == 413
    error = response.json()["error"]
    assert (error["type"], error["message"]) == (
        "invalid_request_error",
        "the body is larger than 4096 bytes",
    )


async def test_what_is_not_served_is_said_in_openais_form() -> None:
    with pytest.raises(openai.NotFoundError, match="POST /v1/embeddings is not served here"):
        await client().embeddings.create(model="tiny", input="x")
    with pytest.raises(openai.APIStatusError, match="is not possible") as refused:
        await client().get("/chat/completions", cast_to=object)
    assert refused.value.status_code == 405
    assert refused.value.response.headers["allow"] == "POST"


@pytest.mark.parametrize("hang_after", [0, 1])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_caller_that_goes_away_ends_the_generation(hang_after: int, stream: bool) -> None:
    generator = FakeGenerator({WHO: "Orla Venn"}, hang_after=hang_after)
    asked = asyncio.create_task(consume(app(generator), stream))
    while not generator.asked:
        await asyncio.sleep(0)
    for _ in range(50):  # as far as it gets
        await asyncio.sleep(0)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert generator.closed == 1


async def consume(served: FastAPI, stream: bool) -> None:
    """As Ray Serve runs it: the task is cancelled when the caller is gone."""
    body = json.dumps({"model": "tiny", "messages": [USER], "collection": "handbook", "stream": stream})
    sent = iter([{"type": "http.request", "body": body.encode(), "more_body": False}])

    async def receive() -> Any:
        for message in sent:
            return message
        return await asyncio.Event().wait()

    async def send(message: Any) -> None:
        await asyncio.sleep(0)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "path": "/v1/chat/completions",
        "raw_path": b"/v1/chat/completions",
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "headers": [(b"content-type", b"application/json")],
        "client": ("caller", 1),
        "server": ("gateway", 80),
    }
    await served(scope, receive, send)


async def test_metrics_are_shown_where_there_are_any() -> None:
    config = GatewayConfig(http=HttpConfig("tiny", max_body_bytes=4096))
    pipeline = Pipeline(FakeRetriever({}), FakeGenerator({}), config, Prefetching(None))
    served = http_app(pipeline, config.http, metrics=lambda: "kvquilt_answers_running 0.0\n")
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(served), base_url="http://x") as http:
        shown = await http.get("/metrics")
    assert shown.status_code == 200
    assert shown.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert shown.text == "kvquilt_answers_running 0.0\n"
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app()), base_url="http://x") as http:
        assert (await http.get("/metrics")).status_code == 404


async def test_metrics_are_for_those_who_may_see_the_status() -> None:
    class Asked:
        trouble, identity = "", None

        def __init__(self) -> None:
            self.methods: list[str] = []

        async def of_call(self, method: str, call: Call | None) -> Caller:
            self.methods.append(method)
            if method == "Status":
                raise PermissionDenied("Status needs the role admin, which the caller does not have")
            return OPERATOR

    callers = Asked()
    config = GatewayConfig(http=HttpConfig("tiny", max_body_bytes=4096))
    pipeline = Pipeline(FakeRetriever({}), FakeGenerator({}), config, Prefetching(None))
    served = http_app(pipeline, config.http, callers=callers, metrics=lambda: "secret 1\n")
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(served), base_url="http://x") as http:
        refused = await http.get("/metrics")
        assert (await http.get("/v1/models")).status_code == 200
    assert refused.status_code == 403
    assert "secret" not in refused.text
    assert callers.methods == ["Status", "Answer"]


async def test_who_asks_too_often_is_told_when_to_come_again() -> None:
    limits = load(RequestLimits, {"per_principal": {"requests_per_s": 0.1, "burst_s": 10}})
    served = app(limits=limits)
    await ask(served)
    with pytest.raises(openai.RateLimitError, match=r"limits\.per_principal\.requests_per_s") as raised:
        await ask(served)
    assert raised.value.response.headers["retry-after"] == "10"
    await ask(served, extra_body={"collection": "handbook", "tenant": "other"})


async def test_a_stream_is_under_way_until_it_ends() -> None:
    limits = load(RequestLimits, {"per_principal": {"concurrent": 1}})
    door = Entrance(limits.per_principal)
    served = app(limits=limits, door=door)
    async for _ in await ask(served, stream=True):
        pass
    await ask(served)
    door.check_invariants()
    assert [account.under_way for account in door._accounts.values()] == [0]
