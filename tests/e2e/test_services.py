"""The services as a program from outside meets them: plain grpcio on Ray Serve's port."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import grpc
import pytest
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from cluster.compose import APPLICATIONS
from protos.kvquilt.v1 import (
    common_pb2,
    generation_pb2,
    rag_pb2,
    rag_pb2_grpc,
    recompute_pb2,
    retrieval_pb2,
    selection_pb2,
)
from shared.answer import (
    AnswerDone,
    AnswerEvent,
    AnswerText,
    AnswerUsage,
    Inquiry,
    RetrievalOptions,
    Retrieved,
)
from shared.clients.doors import ingest_client, rag_client
from shared.clients.grpc_transport import CHANNEL_OPTIONS, GrpcTransport
from shared.clients.health import ServiceHealth
from shared.clients.service import ServiceClient
from shared.errors import ContextTooLong, InvalidRequest, NotFound
from shared.generation.asked import SamplingParams
from shared.generation.modes import ReuseMode
from shared.generation.orders import Reuse
from shared.generation.told import TokenEvent
from shared.request import RequestContext
from tests.e2e.conftest import COLLECTION
from tests.e2e.stack import Stack

pytestmark = pytest.mark.e2e
QUESTION = "Which day is market day in Tambach?"
SERVICES = dict(
    zip(
        ("kv_store", "retrieval", "generator", "selector", "ingestion", "gateway"),
        ("KvStore", "Retrieval", "Generation", "Selection", "Ingest", "Rag"),
        strict=True,
    )
)
SHORT = RetrievalOptions(k=3)


async def ask(stack: Stack, question: str = QUESTION, reuse: ReuseMode | None = None) -> list[AnswerEvent]:
    sampling = SamplingParams(max_tokens=8, ignore_eos=True)
    async with rag_client(stack.target) as client:
        inquiry = Inquiry(COLLECTION, (question,), Reuse(reuse), sampling, SHORT)
        events = client.answer(RequestContext.create("req-1"), inquiry)
        async with aclosing(events):
            return [event async for event in events]


async def health_of(stack: Stack, application: str) -> ServiceHealth:
    async with grpc.aio.insecure_channel(stack.target) as channel:
        transport = GrpcTransport(channel, f"kvquilt.v1.{SERVICES[application]}", application)
        return await ServiceClient(transport).health(RequestContext.create())


@pytest.mark.parametrize("application", APPLICATIONS)
async def test_every_application_answers_its_own_health(stack: Stack, application: str) -> None:
    answer = await health_of(stack, application)
    assert (answer.service, answer.ready, answer.detail) == (application, True, "")


def test_reflection_lists_every_service(stack: Stack) -> None:
    with grpc.insecure_channel(stack.target) as channel:
        listed = set(ProtoReflectionDescriptorDatabase(channel).get_services())
    assert {f"kvquilt.v1.{name}" for name in (*SERVICES.values(), "Admin")} <= listed
    assert "kvquilt.v1.NodeStore" not in listed, "what nodes say to each other is not public"


def test_a_plain_grpcio_client_gets_a_whole_answer(stack: Stack) -> None:
    request = rag_pb2.AnswerRequest(
        collection=COLLECTION, questions=[QUESTION], sampling=common_pb2.Sampling(max_tokens=4)
    )
    with grpc.insecure_channel(stack.target) as channel:
        events = list(rag_pb2_grpc.RagStub(channel).Answer(request, metadata=(("application", "gateway"),)))
    assert events[0].WhichOneof("event") == "retrieved"
    assert events[-1].WhichOneof("event") == "done"


def test_events_of_an_answer_come_together_where_that_is_asked_for(stack: Stack) -> None:
    def messages(interval_ms: int) -> list[rag_pb2.AnswerEvent]:
        meta = common_pb2.RequestMeta(stream_interval_ms=interval_ms)
        sampling = common_pb2.Sampling(max_tokens=40, ignore_eos=True)
        request = rag_pb2.AnswerRequest(
            meta=meta, collection=COLLECTION, questions=[QUESTION], sampling=sampling
        )
        with grpc.insecure_channel(stack.target) as channel:
            stub = rag_pb2_grpc.RagStub(channel)
            return list(stub.Answer(request, metadata=(("application", "gateway"),)))

    def tokens(events: list[rag_pb2.AnswerEvent]) -> list[int]:
        return [e.token.token_id for e in events if e.WhichOneof("event") == "token"]

    single, together = messages(0), messages(10_000)
    assert not any(message.more for message in single)
    assert len(together) <= 8 < 40 < len(single)
    assert [message.WhichOneof("event") for message in together[:2]] == ["retrieved", "token"]
    events = [event for message in together for event in (message, *message.more)]
    assert tokens(events) == tokens(single)
    assert events[-1].WhichOneof("event") == "done"


async def test_an_answer_streams_context_tokens_text_cost_and_end(stack: Stack) -> None:
    events = await ask(stack)
    assert isinstance(events[0], Retrieved)
    assert events[-1] == AnswerDone("req-1")
    tokens = [e for e in events if isinstance(e, TokenEvent)]
    (text,) = [e for e in events if isinstance(e, AnswerText)]
    assert len(tokens) == 8
    assert text.finish_reason == "length"
    (cost,) = [e for e in events if isinstance(e, AnswerUsage)]
    assert cost.usage.prompt_tokens == cost.usage.reused_tokens + cost.usage.recomputed_tokens
    assert cost.usage.generated_tokens == 8
    assert 0 < cost.timings.retrieve_s < cost.timings.first_token_s <= cost.timings.total_s


async def test_full_computes_what_reordered_reuses(stack: Stack) -> None:
    full, reordered = [
        next(e.usage for e in await ask(stack, reuse=reuse) if isinstance(e, AnswerUsage))
        for reuse in (ReuseMode.FULL, ReuseMode.REORDERED)
    ]
    assert full.prompt_tokens == reordered.prompt_tokens
    assert reordered.reused_tokens > reordered.recomputed_tokens
    assert full.recomputed_tokens > reordered.recomputed_tokens


async def test_several_questions_share_one_context(stack: Stack) -> None:
    questions = (QUESTION, "Who is the mayor of Almwick?")
    async with rag_client(stack.target) as client:
        inquiry = Inquiry(COLLECTION, questions, sampling=SamplingParams(max_tokens=6), retrieval=SHORT)
        events = client.answer(RequestContext.create(), inquiry)
        collected = [event async for event in events]
    assert sum(isinstance(e, Retrieved) for e in collected) == 1
    assert {e.question for e in collected if isinstance(e, AnswerText)} == {0, 1}


@pytest.mark.parametrize(
    ("collection", "question", "error", "says"),
    [
        ("nowhere", QUESTION, NotFound, "nowhere"),
        (COLLECTION, "  ", InvalidRequest, "question"),
        ("../up", QUESTION, InvalidRequest, "collection"),
        (COLLECTION, "why " * 5000, ContextTooLong, "position"),
    ],
)
async def test_bad_requests_raise_what_the_service_raised(
    stack: Stack, collection: str, question: str, error: type[Exception], says: str
) -> None:
    async with rag_client(stack.target) as client:
        with pytest.raises(error, match=says):
            async for _ in client.answer(RequestContext.create(), Inquiry(collection, (question,))):
                pass


TOO_MUCH: list[tuple[str, str, Message, str]] = [
    (
        "gateway",
        "Answer",
        rag_pb2.AnswerRequest(questions=[QUESTION], sampling=common_pb2.Sampling(stop=["x"] * 100_000)),
        r"^sampling.stop: has 100000 entries, more than the 64 that limits.stop_strings allows",
    ),
    (
        "gateway",
        "Answer",
        rag_pb2.AnswerRequest(meta=common_pb2.RequestMeta(request_id="a\nb"), questions=[QUESTION]),
        r"^meta.request_id: 'a\\nb' is no word",
    ),
    (
        "generator",
        "Generate",
        generation_pb2.GenerateRequest(questions=[generation_pb2.Piece(text="why " * 1_250_000)]),
        r"^GenerateRequest: has \d+ bytes, more than the 4194304 that limits.message_bytes allows",
    ),
    (
        "generator",
        "Generate",
        generation_pb2.GenerateRequest(
            questions=[generation_pb2.Piece(text="why?")],
            recompute=recompute_pb2.Recompute(tokens=[*range(100_000), 7]),
        ),
        r"^recompute.tokens: 7 is there more than once",
    ),
    (
        "selector",
        "Select",
        selection_pb2.SelectRequest(chunks=[selection_pb2.SelectionChunk(text="word " * 4_000_000)]),
        r"^SelectRequest: has \d+ bytes, more than the 4194304 that limits.message_bytes allows",
    ),
    (
        "retrieval",
        "Index",
        retrieval_pb2.IndexRequest(title="t" * 50_000_000),
        r"^title: has 50000000 bytes, more than the 16384 that limits.title_bytes allows",
    ),
    (
        "retrieval",
        "Search",
        retrieval_pb2.SearchRequest(
            queries=[QUESTION],
            filters=[retrieval_pb2.Filter(field="k", op=6, values=["v"])],  # type: ignore[arg-type]
        ),
        r"^filters\[0\].op: 6 is not known; use one of .*OP_NE",
    ),
]


@pytest.mark.parametrize(
    ("application", "method", "request_", "says"), TOO_MUCH, ids=[says[1:20] for *_, says in TOO_MUCH]
)
async def test_what_exceeds_a_limit_is_refused_by_name(
    stack: Stack, application: str, method: str, request_: Message, says: str
) -> None:
    async with grpc.aio.insecure_channel(stack.target, options=CHANNEL_OPTIONS) as channel:
        transport = GrpcTransport(channel, f"kvquilt.v1.{SERVICES[application]}", application)
        streams = method in ("Answer", "Generate")
        with pytest.raises(InvalidRequest, match=says):
            await (
                anext(transport.stream(method, request_, Empty, 60.0))
                if streams
                else transport.unary(method, request_, Empty, 60.0)
            )


async def test_an_error_names_its_reason_and_leaks_nothing(stack: Stack) -> None:
    async with grpc.aio.insecure_channel(stack.target) as channel:
        call = rag_pb2_grpc.RagStub(channel).Answer(
            rag_pb2.AnswerRequest(collection="nowhere", questions=["x"]),
            metadata=(("application", "gateway"),),
        )
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await call.read()
    assert failure.value.code() is grpc.StatusCode.NOT_FOUND
    assert (failure.value.details() or "").startswith("NOT_FOUND: collection 'nowhere' does not exist")
    for leak in ("Traceback", "pid=", "ip=", "/"):
        assert leak not in (failure.value.details() or "")


async def test_a_client_that_leaves_in_mid_answer_frees_the_generator(stack: Stack) -> None:
    async with rag_client(stack.target) as client:
        endless = SamplingParams(max_tokens=400, ignore_eos=True)
        events = client.answer(
            RequestContext.create(), Inquiry(COLLECTION, (QUESTION,), sampling=endless, retrieval=SHORT)
        )
        async for event in events:
            if isinstance(event, TokenEvent):
                break
        await events.aclose()
    async with asyncio.timeout(20):
        while (await health_of(stack, "generator")).facts["running_requests"] != "0":
            await asyncio.sleep(0.05)


async def test_tenants_do_not_see_each_others_documents(stack: Stack) -> None:
    async with ingest_client(stack.target) as client:
        other = [d async for d in client.list(RequestContext.create(tenant="other"))]
        ours = [d async for d in client.list(RequestContext.create())]
    assert (len(other), len(ours) > 0) == (0, True)
    async with rag_client(stack.target) as client:
        with pytest.raises(NotFound):
            async for _ in client.answer(
                RequestContext.create(tenant="other"), Inquiry(COLLECTION, (QUESTION,))
            ):
                pass
