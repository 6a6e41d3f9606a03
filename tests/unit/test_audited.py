"""Which calls are on record, by whom, with what outcome, and what is not told of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from protos.kvquilt.v1 import common_pb2, generation_pb2, ingest_pb2, kv_store_pb2, retrieval_pb2
from shared.audit import AuditConfig, AuditLog, read_lines
from shared.audited import ACTIONS, Recorder
from shared.errors import NotFound, Overloaded, PermissionDenied
from shared.request import RequestContext
from shared.rpc import HealthServicer, server_stream, unary

SECRET = "the word is Quexalotl"


class Outside:
    """A call's gRPC context."""

    def set_code(self, code: object) -> None: ...
    def set_details(self, details: str) -> None: ...
    def set_trailing_metadata(self, metadata: object) -> None: ...
    def abort(self) -> None: ...
    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()

    def peer(self) -> str:
        return "ipv4:10.0.0.7:5000"


class Nobody:
    """Knows no caller."""

    identity, trouble = None, ""

    async def of_call(self, method: str, call: object) -> Any:
        raise PermissionDenied(f"{method}: not you")


class Service(HealthServicer):
    application = "ingestion"

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.failure: Exception | None = None

    @server_stream
    async def Upsert(
        self, request: ingest_pb2.UpsertRequest, ctx: RequestContext
    ) -> AsyncIterator[ingest_pb2.UpsertProgress]:
        for document in request.documents:
            if self.failure is not None:
                raise self.failure
            yield ingest_pb2.UpsertProgress(document_id=document.document_id)

    @unary
    async def CollectGarbage(
        self, request: kv_store_pb2.CollectGarbageRequest, ctx: RequestContext
    ) -> kv_store_pb2.CollectGarbageResponse:
        return kv_store_pb2.CollectGarbageResponse()

    @unary
    async def ListDocuments(
        self, request: ingest_pb2.ListDocumentsRequest, ctx: RequestContext
    ) -> ingest_pb2.ListDocumentsResponse:
        raise self.failure or NotFound("nothing is here")

    @unary
    async def SuspendVerdict(
        self, request: generation_pb2.SuspendVerdictRequest, ctx: RequestContext
    ) -> generation_pb2.SuspendVerdictResponse:
        return generation_pb2.SuspendVerdictResponse()


def upsert(num_documents: int = 2) -> ingest_pb2.UpsertRequest:
    documents = [
        ingest_pb2.SourceDocument(document_id=f"{n}.md", content=SECRET.encode(), metadata={"who": SECRET})
        for n in range(num_documents)
    ]
    meta = common_pb2.RequestMeta(tenant="acme", request_id="r1")
    return ingest_pb2.UpsertRequest(meta=meta, collection="books", documents=documents)


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[tuple[Service, Callable[[], list[dict[str, Any]]]]]:
    recorder = Recorder(AuditLog("ingestion", AuditConfig(str(tmp_path))), clock=lambda: 0.0)
    yield Service(recorder), lambda: [dict(line) for line in read_lines(tmp_path)]
    recorder.close()


Recorded = tuple[Service, Callable[[], list[dict[str, Any]]]]


async def test_what_was_done_is_on_record_before_the_call_ends_and_no_text_is(
    recorded: Recorded, tmp_path: Path
) -> None:
    service, lines = recorded
    assert len([p async for p in service.Upsert(upsert(), Outside())]) == 2
    (line,) = lines()
    told = {name: line[name] for name in ("action", "tenant", "request_id", "outcome", "collection")}
    assert told == {
        "action": "ingest",
        "tenant": "acme",
        "request_id": "r1",
        "outcome": "OK",
        "collection": "books",
    }
    assert (line["document_ids"], line["num_documents"]) == (["0.md", "1.md"], 2)
    assert SECRET not in (tmp_path / "ingestion.jsonl").read_text()


async def test_very_many_documents_are_counted(recorded: Recorded) -> None:
    service, lines = recorded
    assert [p async for p in service.Upsert(upsert(50), Outside())]
    assert (len(lines()[0]["document_ids"]), lines()[0]["num_documents"]) == (20, 50)


async def test_what_failed_and_what_was_given_up_say_so(recorded: Recorded) -> None:
    service, lines = recorded
    service.failure = NotFound("no such thing")
    assert [p async for p in service.Upsert(upsert(), Outside())] == []
    service.failure = None
    stream: Any = service.Upsert(upsert(), Outside())
    await anext(stream)
    await stream.aclose()
    assert [line["outcome"] for line in lines()] == ["NOT_FOUND", "CANCELLED"]


async def test_what_services_ask_of_each_other_is_on_record_where_it_came_in(recorded: Recorded) -> None:
    service, lines = recorded
    assert [p async for p in service.Upsert(upsert())]
    await service.CollectGarbage(kv_store_pb2.CollectGarbageRequest(grace_s=5.0), Outside())
    await service.SuspendVerdict(generation_pb2.SuspendVerdictRequest(verdict="v"))
    assert [(line["action"], line["outcome"]) for line in lines()] == [
        ("gc", "OK"),
        ("suspend verdict", "OK"),
    ]


async def test_callers_who_are_refused_are_on_record_once_a_second(recorded: Recorded) -> None:
    service, lines = recorded
    service.callers = Nobody()  # type: ignore[assignment]
    for _ in range(5):
        assert [p async for p in service.Upsert(upsert(), Outside())] == []
    (line,) = lines()
    assert (line["action"], line["method"], line["outcome"], line["peer"]) == (
        "call",
        "Upsert",
        "PERMISSION_DENIED",
        "ipv4:10.0.0.7:5000",
    )
    service.recorder._clock = lambda: 10.0
    assert [p async for p in service.Upsert(upsert(), Outside())] == []
    assert lines()[1]["left_out"] == 4


async def test_who_is_refused_for_want_of_room_is_on_record_by_his_name(recorded: Recorded) -> None:
    service, lines = recorded
    service.failure = Overloaded("too much at once")
    asked = ingest_pb2.ListDocumentsRequest(meta=common_pb2.RequestMeta(tenant="acme", request_id="r2"))
    for _ in range(3):
        await service.ListDocuments(asked, Outside())
    with pytest.raises(Overloaded):
        await service.ListDocuments(asked)
    service.callers = Nobody()  # type: ignore[assignment]
    await service.ListDocuments(asked, Outside())
    told = [(line["outcome"], line["method"], line["principal"], line["tenant"]) for line in lines()]
    assert told == [
        ("OVERLOADED", "ListDocuments", "operator", "acme"),
        ("PERMISSION_DENIED", "ListDocuments", "", ""),
    ], "one kind of refusal does not hide another"


async def test_an_action_without_room_is_on_record_once(recorded: Recorded) -> None:
    service, lines = recorded
    service.failure = Overloaded("too much at once")
    assert [p async for p in service.Upsert(upsert(), Outside())] == []
    assert [(line["action"], line["outcome"]) for line in lines()] == [("ingest", "OVERLOADED")]


async def test_who_goes_away_while_it_is_recorded_stops_nothing(recorded: Recorded) -> None:
    service, lines = recorded
    call = asyncio.create_task(
        service.CollectGarbage(kv_store_pb2.CollectGarbageRequest(grace_s=5.0), Outside())
    )
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    service.recorder.close()
    assert len(lines()) <= 1


def test_every_action_is_a_call_that_there_is() -> None:
    methods = {
        method.name
        for module in (ingest_pb2, kv_store_pb2, generation_pb2, retrieval_pb2)
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert set(ACTIONS) <= methods
