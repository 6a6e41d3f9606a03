"""What a trace tells of an answer at the gateway, by gRPC and by HTTP."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import aclosing

import httpx2
import pytest

from services.gateway.config import GatewayConfig
from services.gateway.http.routes import http_app
from services.gateway.pipeline import Pipeline
from services.gateway.prefetch import Prefetching
from shared.answer import AnswerEvent, Inquiry
from shared.errors import NotFound
from shared.request import RequestContext
from tests.recorded_spans import TRACE_ID, TRACEPARENT, RecordedSpans, recorded_spans, traced
from tests.unit.gateway.fakes import FakeFetcher, FakeGenerator, FakeRetriever, hit

WHO, ANSWER = "Who built the bridge?", "Orla Venn did"
HITS = [hit("a", "Orla Venn built it"), hit("b", "It was built in 1874")]
ROOT = "invoke_workflow kvquilt"


def pipeline(**retriever: object) -> Pipeline:
    return Pipeline(
        FakeRetriever({WHO: HITS}, **retriever),  # type: ignore[arg-type]
        FakeGenerator({WHO: ANSWER}),
        GatewayConfig(),
        Prefetching(FakeFetcher()),
    )


async def ask(p: Pipeline, ctx: RequestContext) -> list[AnswerEvent]:
    async with aclosing(p.answer(ctx, Inquiry("handbook", (WHO,)))) as events:
        found = [event async for event in events]
    await asyncio.sleep(0)  # the prefetch is told beside it
    return found


async def test_an_answer_tells_what_was_found_and_what_it_cost_in_the_conventions_words() -> None:
    with recorded_spans() as spans:
        await ask(pipeline(), traced())
        assert spans.parent(ROOT) == "caller"
        assert spans.parent("retrieval") == spans.parent("prefetch") == ROOT
        told = spans.attributes(ROOT)
        assert told["gen_ai.operation.name"] == "invoke_workflow"
        assert told["gen_ai.data_source.id"] == "handbook"
        assert told["gen_ai.usage.input_tokens"] == 100
        assert told["gen_ai.usage.cache_read.input_tokens"] == 90
        assert told["gen_ai.usage.output_tokens"] == 3
        found = spans.attributes("retrieval")
        assert (found["gen_ai.operation.name"], found["gen_ai.retrieval.top_k"]) == ("retrieval", 8)
        assert found["kvquilt.chunks"] == spans.attributes("prefetch")["kvquilt.chunks"] == 2


def told_by(spans: RecordedSpans) -> str:
    return "".join(span.to_json() for span in spans.all())


async def test_content_is_told_only_where_the_settings_want_it() -> None:
    with recorded_spans() as spans:
        await ask(pipeline(), traced())
        told = told_by(spans)
        assert not any(text in told for text in (WHO, ANSWER, "built", "a.txt"))
        assert not re.search(r"(?<![\w.])1874(?!\w)", told)  # ids and times may hold these digits
    with recorded_spans(content=True) as spans:
        await ask(pipeline(), traced())
        told, found = spans.attributes(ROOT), spans.attributes("retrieval")
        (asked,) = json.loads(told["gen_ai.input.messages"])
        (said,) = json.loads(told["gen_ai.output.messages"])
        assert asked == {"role": "user", "parts": [{"type": "text", "content": WHO}]}
        assert said["parts"][0]["content"] == ANSWER
        assert found["gen_ai.retrieval.query.text"] == WHO
        assert [one["id"] for one in json.loads(found["gen_ai.retrieval.documents"])] == ["a.txt", "b.txt"]


async def test_a_failure_is_told_where_it_happened_and_above() -> None:
    with recorded_spans() as spans:
        with pytest.raises(NotFound):
            await ask(pipeline(error=NotFound("no collection 'handbook'")), traced())
        assert spans.attributes("retrieval")["error.type"] == "NOT_FOUND"
        assert spans.attributes(ROOT)["error.type"] == "NOT_FOUND"
        assert "no collection" not in told_by(spans)


@pytest.mark.parametrize("stream", [False, True])
async def test_over_http_the_header_says_whose_trace_it_is(stream: bool) -> None:
    app = http_app(pipeline(), GatewayConfig().http)
    body = {
        "model": "",
        "messages": [{"role": "user", "content": WHO}],
        "collection": "handbook",
        "stream": stream,
    }
    with recorded_spans() as spans:
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://gateway") as http:
            answer = await http.post("/v1/chat/completions", json=body, headers={"traceparent": TRACEPARENT})
            assert answer.status_code == 200
            quiet = await http.post("/v1/chat/completions", json=body)
            assert quiet.status_code == 200
        assert spans.parent("POST /v1/chat/completions") == "caller"
        assert spans.parent(ROOT) == "POST /v1/chat/completions"
        assert {f"{span.context.trace_id:032x}" for span in spans.all()} == {TRACE_ID}
        assert spans.attributes("POST /v1/chat/completions")["http.request.method"] == "POST"
