"""Spans stand below each other as what they are of, whoever iterates; and tell no content."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

import pytest
from opentelemetry.trace import StatusCode

from protos.kvquilt.v1 import common_pb2
from shared.errors import InvalidRequest, NotFound
from shared.request import RequestContext
from shared.rpc import HealthServicer, server_stream, unary
from shared.tracing.spans import StageSpan, add_span, is_traced, span, traced_stream
from shared.tracing.traceparent import new_traceparent, read_traceparent, trace_id_of
from tests.recorded_spans import CALLER_ID, TRACE_ID, TRACEPARENT, recorded_spans, traced

QUIET = RequestContext.create("quiet")


@pytest.mark.parametrize(
    ("told", "read"),
    [
        (TRACEPARENT, TRACEPARENT),
        (TRACEPARENT.replace("-01", "-00"), TRACEPARENT.replace("-01", "-00")),
        (f"cc{TRACEPARENT[2:]}-what-follows", TRACEPARENT),
        (TRACEPARENT.replace("-01", "-03"), TRACEPARENT),
        (f"{TRACEPARENT}-more", ""),
        (f"ff{TRACEPARENT[2:]}", ""),
        (TRACEPARENT.upper(), ""),
        (TRACEPARENT.replace(TRACE_ID, "0" * 32), ""),
        (TRACEPARENT.replace(CALLER_ID, "0" * 16), ""),
        ("00-\nforged", ""),
        ("", ""),
    ],
)
def test_a_callers_span_is_read_or_ignored(told: str, read: str) -> None:
    assert read_traceparent(told) == read
    assert RequestContext.create(traceparent=told).traceparent == read


def test_a_new_one_wants_a_trace() -> None:
    assert read_traceparent(new_traceparent()).endswith("-01")


def test_what_is_not_traced_costs_no_span_and_keeps_its_context() -> None:
    with span(traced(), "alone") as stage:  # nothing is recorded in this process
        assert stage.ctx.traceparent == TRACEPARENT
        assert not stage.recorded
    unwanted = RequestContext.create(traceparent=TRACEPARENT.replace("-01", "-00"))
    with recorded_spans(share=1.0) as spans:
        for ctx in (QUIET, unwanted):
            with span(ctx, "quiet", may_begin=ctx is unwanted) as stage:
                stage.set({"kvquilt.chunks": 1})
                assert stage.ctx is ctx
        assert spans.all() == ()


def test_stages_stand_below_each_other_and_name_request_and_tenant() -> None:
    with recorded_spans() as spans:
        with span(traced("r7", "acme"), "outer", {"kvquilt.chunks": 3}) as outer, span(outer.ctx, "inner"):
            pass
        assert spans.parent("inner") == "outer"
        assert spans.parent("outer") == "caller"
        assert {f"{s.context.trace_id:032x}" for s in spans.all()} == {TRACE_ID}
        told = spans.attributes("outer")
        assert told == {"kvquilt.request_id": "r7", "kvquilt.tenant": "acme", "kvquilt.chunks": 3}


def test_an_error_is_told_by_its_code_alone() -> None:
    with recorded_spans() as spans:
        with pytest.raises(NotFound), span(traced(), "failing"):
            raise NotFound("no document 'The lease of Orla Venn'")
        with pytest.raises(ValueError, match="Orla"), span(traced(), "broken"):
            raise ValueError("Orla Venn")
        assert spans.attributes("failing")["error.type"] == "NOT_FOUND"
        assert spans.attributes("broken")["error.type"] == "ValueError"
        assert spans.one("broken").status.status_code is StatusCode.ERROR
        assert "Orla" not in "".join(found.to_json() for found in spans.all())


def test_a_trace_begins_by_chance_only_where_one_may() -> None:
    with recorded_spans(share=1.0) as spans:
        with span(QUIET, "begun", may_begin=True) as stage:
            assert is_traced(stage.ctx)
        with span(QUIET, "not begun"):
            pass
        assert spans.names() == {"begun"}
        assert spans.one("begun").parent is None
    with recorded_spans(share=0.0) as spans, span(QUIET, "never", may_begin=True):
        assert spans.all() == ()


def test_a_stage_that_has_ended_is_added_with_its_times() -> None:
    now = time.monotonic()
    with recorded_spans() as spans:
        below = add_span(traced(), "queue", now - 2.0, now - 0.5, {"kvquilt.chunks": 2})
        add_span(below, "within", now - 1.5, now - 1.0)
        assert spans.parent("within") == "queue"
        queue = spans.one("queue")
        assert queue.start_time is not None
        assert queue.end_time is not None
        assert queue.end_time - queue.start_time == pytest.approx(1.5e9, abs=1e3)
        assert abs(queue.end_time / 1e9 - (time.time() - 0.5)) < 60


async def test_a_stream_is_a_stage_as_long_as_it_is_read_and_its_end_by_its_reader_is_no_error() -> None:
    async def numbers(stage: StageSpan) -> AsyncGenerator[int, None]:
        for number in range(3):
            with span(stage.ctx, f"number {number}"):
                pass
            yield number

    with recorded_spans() as spans:
        assert [n async for n in traced_stream(traced(), "whole", stream=numbers)] == [0, 1, 2]
        async with aclosing(traced_stream(traced(), "left", stream=numbers)) as values:
            assert await anext(values) == 0
        assert spans.one("left").status.status_code is StatusCode.UNSET
        assert [n async for n in traced_stream(QUIET, "quiet", stream=numbers)] == [0, 1, 2]
        assert "quiet" not in spans.names()
        assert len(spans.named("number 0")) == 2


class Words(HealthServicer):
    application = "words"
    begins_traces = frozenset({"Say"})

    @unary
    async def Say(self, request: common_pb2.HealthRequest, ctx: RequestContext) -> common_pb2.HealthResponse:
        with span(ctx, "saying"):
            return common_pb2.HealthResponse(detail=ctx.traceparent)

    @server_stream
    async def Count(
        self, request: common_pb2.HealthRequest, ctx: RequestContext
    ) -> AsyncIterator[common_pb2.HealthResponse]:
        with span(ctx, "counting"):
            yield common_pb2.HealthResponse()
        raise InvalidRequest("no more")


class FromOutside:
    """The part of a gRPC context that is looked at."""

    def __init__(self, **metadata: str) -> None:
        self.metadata, self.code = tuple(metadata.items()), ""

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return self.metadata

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def set_code(self, code: object) -> None:
        self.code = str(code)

    def set_details(self, details: str) -> None: ...
    def set_trailing_metadata(self, trailing_metadata: object) -> None: ...
    def abort(self) -> None: ...


def asked(traceparent: str = "") -> common_pb2.HealthRequest:
    return common_pb2.HealthRequest(meta=common_pb2.RequestMeta(request_id="r1", traceparent=traceparent))


async def test_a_call_is_traced_by_its_metadata_or_its_request() -> None:
    for request, context in (
        (asked(TRACEPARENT), None),
        (asked(), FromOutside(traceparent=TRACEPARENT)),
        (asked(TRACEPARENT), FromOutside(traceparent=new_traceparent())),
    ):
        with recorded_spans() as spans:
            answer = await Words().Say(request, context)
            assert spans.parent("words/Say") == "caller"
            assert spans.parent("saying") == "words/Say"
            assert spans.attributes("words/Say")["rpc.method"] == "Say"
            assert trace_id_of(answer.detail) == TRACE_ID


async def test_a_call_begins_a_trace_by_chance_where_it_may_and_never_another_one() -> None:
    with recorded_spans(share=1.0) as spans:
        await Words().Say(asked())
        with pytest.raises(InvalidRequest):
            [one async for one in Words().Count(asked())]
        assert spans.names() == {"words/Say", "saying"}


async def test_a_stream_that_fails_is_told_by_its_code() -> None:
    with recorded_spans() as spans:
        context = FromOutside(traceparent=TRACEPARENT)
        assert len([one async for one in Words().Count(asked(), context)]) == 1
        assert spans.parent("counting") == "words/Count"
        assert spans.attributes("words/Count")["error.type"] == "INVALID_REQUEST"
        assert context.code == "StatusCode.INVALID_ARGUMENT"
