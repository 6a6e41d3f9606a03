"""Spans reach a collector by OTLP, over gRPC and over HTTP: one trace, from the gateway into the engine."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from services.gateway.config import GatewayConfig
from services.gateway.pipeline import Pipeline
from services.gateway.prefetch import Prefetching
from services.generator.service import Generator
from shared.answer import Inquiry
from shared.generation.asked import SamplingParams
from shared.generation.modes import ReuseMode
from shared.generation.orders import Reuse
from shared.search import IndexedChunk, SearchHit
from shared.tracing.config import TracingConfig
from shared.tracing.provider import start_tracing
from shared.tracing.spans import record_by
from tests.generation_server import Served, context, save_byte_tokenizer, serving
from tests.oracles import tiny_model
from tests.recorded_spans import CALLER_ID, TRACE_ID, traced
from tests.unit.gateway.fakes import FakeRetriever

pytestmark = pytest.mark.usefixtures("one_thread")
QUESTION, TEXTS = "Who built it?", ("Orla Venn built the bridge.", "It stands in Tambach.")
Request = trace_service_pb2.ExportTraceServiceRequest
Response = trace_service_pb2.ExportTraceServiceResponse


class Collector(trace_service_pb2_grpc.TraceServiceServicer):  # type: ignore[misc]
    """Remembers the spans that it is sent, and what the services that sent them are called."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.services: set[str] = set()

    def Export(self, request: Request, context: object) -> Response:
        for of_resource in request.resource_spans:
            told = {pair.key: pair.value.string_value for pair in of_resource.resource.attributes}
            self.services.add(told["service.name"])
            for of_scope in of_resource.scope_spans:
                self.spans += of_scope.spans
        return Response()

    @contextmanager
    def over_grpc(self) -> Iterator[str]:
        server = grpc.server(ThreadPoolExecutor(1))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.stop(None).wait()

    @contextmanager
    def over_http(self) -> Iterator[str]:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/v1/traces"
                collector.Export(
                    Request.FromString(self.rfile.read(int(self.headers["content-length"]))), None
                )
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            server.server_close()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "talking"
    tiny_model("qwen2", seed=5, vocab_size=300).save_pretrained(path)
    save_byte_tokenizer(path)
    return path


async def ask(served: Served) -> None:
    assert isinstance(served.generator, Generator)
    prompts = served.generator.tokenizer
    assert prompts is not None
    fingerprint = (await served.client.describe(context())).fingerprint
    chunks = [IndexedChunk(f"{i:040x}", text, prompts.encode_chunk(text)) for i, text in enumerate(TEXTS)]
    retriever = FakeRetriever({QUESTION: [SearchHit(c, "a.md", "", fingerprint, 1.0) for c in chunks]})
    pipeline = Pipeline(retriever, served.client, GatewayConfig(), Prefetching(None))
    sampling = SamplingParams(max_tokens=3, ignore_eos=True)
    inquiry = Inquiry("towns", (QUESTION,), Reuse(ReuseMode.REORDERED), sampling)
    async with aclosing(pipeline.answer(traced("r7", "acme"), inquiry)) as events:
        async for _ in events:
            pass


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
async def test_a_collector_gets_one_trace_with_every_stage(model: Path, protocol: Any) -> None:
    collector = Collector()
    receiving = collector.over_http if protocol.startswith("http") else collector.over_grpc
    before = record_by(None)
    try:
        with receiving() as endpoint:
            provider = start_tracing("gateway", TracingConfig(endpoint, protocol), {})
            assert provider is not None
            async with serving(model) as served:
                await ask(served)
            await asyncio.to_thread(provider.shutdown)
    finally:
        record_by(before)
    names = Counter(span.name for span in collector.spans)
    expected = ["invoke_workflow kvquilt", "retrieval", "generator/Generate", "chat", "queue", "load"]
    expected += ["stitch and prefill", "decode"]
    assert {name: names[name] for name in expected} == dict.fromkeys(expected, 1)
    assert collector.services == {"kvquilt-gateway"}
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE_ID}
    known = {span.span_id: span for span in collector.spans}
    roots = [span for span in collector.spans if span.parent_span_id not in known]
    assert [(root.name, root.parent_span_id.hex()) for root in roots] == [
        ("invoke_workflow kvquilt", CALLER_ID)
    ]
    (chat,) = (span for span in collector.spans if span.name == "chat")
    told = {pair.key: pair.value for pair in chat.attributes}
    assert told["gen_ai.operation.name"].string_value == "chat"
    assert told["gen_ai.usage.output_tokens"].int_value == 3
    assert told["kvquilt.request_id"].string_value == "r7"
    for span in collector.spans:
        assert span.start_time_unix_nano <= span.end_time_unix_nano
        text = span.SerializeToString()
        assert not any(said.encode() in text for said in (QUESTION, "Orla", "a.md"))


async def test_a_collector_that_is_away_costs_spans_and_no_answer(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.1")
    before = record_by(None)
    try:
        provider = start_tracing("gateway", TracingConfig("http://127.0.0.1:9", "http/protobuf"), {})
        assert provider is not None
        async with serving(model) as served:
            await ask(served)
        await asyncio.to_thread(provider.shutdown)
    finally:
        record_by(before)
