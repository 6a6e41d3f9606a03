"""What a request may hold at most is looked at before anything is made of it, and told by name."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.limits_reference import fields_of, request_types
from protos.kvquilt.v1 import (
    common_pb2,
    generation_pb2,
    ingest_pb2,
    kv_store_node_pb2,
    kv_store_pb2,
    rag_pb2,
    recompute_pb2,
    retrieval_pb2,
    selection_pb2,
)
from shared.clients.grpc_transport import error_of
from shared.errors import InvalidRequest
from shared.limits import FIELDS, MESSAGES, OF_ONE_REQUEST, RequestLimits, check_request, limits_of
from shared.request import RequestContext
from shared.rpc import HealthServicer, both_streams, unary

SMALL = RequestLimits(
    message_bytes=4000,
    upsert_bytes=8000,
    messages=50,
    entries=10,
    chunks=20,
    tokens=100,
    ids=30,
    opened=5,
    stop_strings=3,
    name_bytes=16,
    title_bytes=32,
    question_bytes=64,
    text_bytes=128,
    deadline_ms=1000,
)


def answer(**given: Any) -> rag_pb2.AnswerRequest:
    return rag_pb2.AnswerRequest(**given)


def piece(text: str) -> generation_pb2.Piece:
    return generation_pb2.Piece(text=text)


TOO_MUCH: list[tuple[Message, str]] = [
    (
        ingest_pb2.UpsertRequest(documents=[ingest_pb2.SourceDocument(content=b"x" * 9000)]),
        "UpsertRequest: has 9006 bytes, more than the 8000 that limits.upsert_bytes allows",
    ),
    (
        selection_pb2.SelectRequest(chunks=[selection_pb2.SelectionChunk(text="x" * 5000)]),
        "SelectRequest: has 5006 bytes, more than the 4000 that limits.message_bytes allows",
    ),
    (
        selection_pb2.SelectRequest(chunks=[selection_pb2.SelectionChunk(text="x" * 129)]),
        "chunks[0].text: has 129 bytes, more than the 128 that limits.text_bytes allows",
    ),
    (
        answer(sampling=common_pb2.Sampling(stop=["x"] * 4)),
        "sampling.stop: has 4 entries, more than the 3 that limits.stop_strings allows",
    ),
    (
        answer(sampling=common_pb2.Sampling(stop=["x", "ß" * 9])),
        "sampling.stop[1]: has 18 bytes, more than the 16 that limits.name_bytes allows",
    ),
    (
        answer(questions=["a", "b" * 65]),
        "questions[1]: has 65 bytes, more than the 64 that limits.question_bytes allows",
    ),
    (answer(questions=["a"] * 11), "questions: has 11 entries, more than the 10 that limits.entries allows"),
    (
        answer(recompute=recompute_pb2.Recompute(tokens=range(101))),
        "recompute.tokens: has 101 entries, more than the 100 that limits.tokens allows",
    ),
    (
        retrieval_pb2.IndexRequest(title="t" * 33),
        "title: has 33 bytes, more than the 32 that limits.title_bytes allows",
    ),
    (
        ingest_pb2.UpsertRequest(
            documents=[ingest_pb2.SourceDocument(), ingest_pb2.SourceDocument(metadata={"k" * 17: ""})]
        ),
        f"documents[1].metadata['{'k' * 17}']: has 17 bytes, more than the 16 that limits.name_bytes allows",
    ),
    (
        ingest_pb2.UpsertRequest(documents=[ingest_pb2.SourceDocument(metadata={"k": "v" * 65})]),
        "documents[0].metadata['k']: has 65 bytes, more than the 64 that limits.question_bytes allows",
    ),
    (
        kv_store_node_pb2.OpenRequest(chunk_ids=["0" * 8] * 6),
        "chunk_ids: has 6 entries, more than the 5 that limits.opened allows",
    ),
    (
        answer(meta=common_pb2.RequestMeta(deadline_ms=1001)),
        "meta.deadline_ms: 1001 is more than the 1000 that limits.deadline_ms allows",
    ),
    (
        generation_pb2.GenerateRequest(
            chunks=[generation_pb2.Piece(context=[piece("x")] * 9) for _ in range(6)]
        ),
        "chunks[4].context[8]: here the request has more parts than the 50 that limits.messages allows",
    ),
]


@pytest.mark.parametrize(("request_", "says"), TOO_MUCH, ids=lambda value: str(value)[:30])
def test_what_is_too_much_is_named_with_its_size_and_the_limit(request_: Message, says: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        check_request(request_, SMALL)
    assert refusal.value.detail == says


NEVER: list[tuple[Message, str]] = [
    (
        retrieval_pb2.SearchRequest(filters=[retrieval_pb2.Filter(op=77)]),  # type: ignore[arg-type]
        "filters[0].op: 77 is not known; use one of OP_UNSPECIFIED, OP_EQ, OP_NE, OP_IN, OP_PREFIX",
    ),
    (retrieval_pb2.SearchRequest(mode=9), "mode: 9 is not known; use one of SEARCH_MODE_"),  # type: ignore[arg-type]
    (rag_pb2.FeedbackRequest(rating=5), "rating: 5 is not known; use one of RATING_"),  # type: ignore[arg-type]
    (
        kv_store_pb2.PutManifestRequest(manifest=kv_store_pb2.Manifest(created_s=float("nan"))),
        "manifest.created_s: nan is out of range; it must be finite",
    ),
    (
        kv_store_pb2.CollectGarbageRequest(grace_s=float("inf")),
        "grace_s: inf is out of range; it must be finite",
    ),
    (answer(collection="a\0b"), "collection: holds NUL, which no text does; remove it"),
    (answer(questions=["why", "a\0"]), "questions[1]: holds NUL, which no text does; remove it"),
]


@pytest.mark.parametrize(("request_", "says"), NEVER, ids=lambda value: str(value)[:30])
def test_what_no_field_may_hold_is_named(request_: Message, says: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        check_request(request_)
    assert refusal.value.detail.startswith(says)


@pytest.mark.parametrize("rpc", ["Rag.Answer", "Generation.Generate", "KvStore.PutManifest", "Ingest.Upsert"])
@given(wire=st.binary(max_size=300))
@settings(max_examples=50)
def test_whatever_bytes_a_request_is_made_of_it_passes_or_is_refused(rpc: str, wire: bytes) -> None:
    request = GetMessageClass(request_types()[rpc])()
    try:
        request.ParseFromString(wire)
    except DecodeError:
        return
    with contextlib.suppress(InvalidRequest):
        check_request(request, SMALL)


def test_what_is_within_the_limits_passes() -> None:
    check_request(
        answer(
            meta=common_pb2.RequestMeta(request_id="r", tenant="t", deadline_ms=1000),
            questions=["q" * 64] * 10,
            sampling=common_pb2.Sampling(stop=["ß" * 8] * 3, temperature=0.5),
            retrieval=rag_pb2.RetrievalOptions(filters=[retrieval_pb2.Filter(op=retrieval_pb2.Filter.OP_NE)]),
            recompute=recompute_pb2.Recompute(tokens=range(100)),
        ),
        SMALL,
    )


def test_every_limit_that_is_listed_is_of_a_field_that_there_is_and_every_limit_is_used() -> None:
    messages = {request.name: request for request in request_types().values()}
    known = {
        f"{field.containing_type.name}.{field.name}"
        for request in messages.values()
        for field in fields_of(request)
    }
    assert FIELDS.keys() <= known
    assert MESSAGES.keys() <= messages.keys()
    used = {name for limits in FIELDS.values() for name in limits} | set(MESSAGES.values())
    assert used | {"message_bytes", "messages", "tokens"} == set(OF_ONE_REQUEST)


@pytest.mark.parametrize("rpc", list(request_types()))
def test_whatever_of_a_request_can_be_large_has_a_limit(rpc: str) -> None:
    for field in fields_of(request_types()[rpc]):
        limits = limits_of(field)
        if field.is_repeated:
            assert limits, field.full_name
        if field.type == FieldDescriptor.TYPE_STRING:
            assert limits[-1].endswith("_bytes"), field.full_name
            assert len(limits) == 1 + field.is_repeated, field.full_name


class Asked(HealthServicer):
    application = "asked"
    limits = SMALL

    @unary
    async def Answer(self, request: rag_pb2.AnswerRequest, ctx: RequestContext) -> common_pb2.HealthResponse:
        return common_pb2.HealthResponse(ready=True)

    @both_streams
    async def Explore(self, requests: AsyncIterator[rag_pb2.AnswerRequest]) -> AsyncIterator[int]:
        async for number, _ in enumerated(requests):
            yield number


async def enumerated(values: AsyncIterator[Any]) -> AsyncIterator[tuple[int, Any]]:
    number = 0
    async for value in values:
        yield number, value
        number += 1


async def test_every_rpc_looks_at_what_it_is_asked_by_its_services_limits() -> None:
    assert (await Asked().Answer(answer(questions=["a"]))).ready
    with pytest.raises(InvalidRequest, match=r"^questions\[0\]: has 65 bytes"):
        await Asked().Answer(answer(questions=["a" * 65]))


async def test_so_does_one_that_is_asked_by_a_stream_message_by_message() -> None:
    async def requests() -> AsyncIterator[rag_pb2.AnswerRequest]:
        yield answer(questions=["a"])
        yield answer(questions=["a" * 65])

    stream = Asked().Explore(requests())
    assert await anext(stream) == 0
    with pytest.raises(InvalidRequest, match=r"^questions\[0\]: has 65 bytes"):
        await anext(stream)


def test_a_message_that_was_not_even_taken_in_is_a_wrong_request() -> None:
    error = grpc.aio.AioRpcError(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.aio.Metadata(),
        grpc.aio.Metadata(),
        "SERVER: Received message larger than max (5000000 vs. 4194304)",
    )
    told = error_of(error)
    assert isinstance(told, InvalidRequest)
    assert told.detail.startswith("the message has 5000000 bytes, more than the 4194304 that are taken")


def test_a_limit_that_cannot_be_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="stop_strings: must be at least 1, got 0"):
        RequestLimits(stop_strings=0)
    with pytest.raises(ValueError, match="upsert_bytes: no message has more than 2147483647 bytes"):
        RequestLimits(upsert_bytes=2**31)
