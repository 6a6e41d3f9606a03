"""Half a minute of what `make fuzz` does for as long as one likes, and what it would find."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from protos.kvquilt.v1 import common_pb2, ingest_pb2
from tests.fuzz.calls import Case, Ended, make, methods
from tests.fuzz.rounds import fuzz_calls, fuzz_files, make_again
from tests.fuzz.targets import target_of
from tests.whole_system import whole_system

SECRET = b"of another"
ASKED = common_pb2.HealthRequest().SerializeToString()


def test_no_file_ends_as_an_internal_error_or_takes_more_than_it_may() -> None:
    findings = fuzz_files(seconds=10.0, seed=1)
    assert findings.wrong == []
    assert findings.rounds


@pytest.mark.usefixtures("one_thread")
async def test_no_call_ends_as_an_internal_error_hangs_keeps_memory_or_tells_what_is_anothers(
    tmp_path: Path,
) -> None:
    async with whole_system(tmp_path) as system, target_of(system) as target:
        target.pids = {"this process": os.getpid()}
        findings = await fuzz_calls(target, seconds=120.0, seed=1, most_rounds=150)
        assert findings.wrong == []
        assert {what.partition(":")[0] for what in findings.told} == set(methods())
        again = [Case.from_json(case.to_json()) for case in findings.cases]
        assert again == findings.cases
        assert (await make_again(target, again)).wrong == []


async def ended(behaviour: Callable[[Any, Any], Awaitable[bytes]], case: Case) -> Ended:
    """By a service that does this to every unary call."""
    handlers = {"Health": grpc.unary_unary_rpc_method_handler(behaviour)}
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("kvquilt.v1.Ingest", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            return await make(channel, case, secrets=[SECRET], give_up_s=0.5)
    finally:
        await server.stop(None)


async def failing(request: Any, context: Any) -> bytes:
    raise ValueError("surprise")


async def aborting(request: Any, context: Any) -> bytes:
    await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")
    raise AssertionError


async def hanging(request: Any, context: Any) -> bytes:
    await asyncio.Event().wait()
    return b""


async def telling(request: Any, context: Any) -> bytes:
    return common_pb2.HealthResponse(detail=SECRET.decode()).SerializeToString()


async def telling_by_its_error(request: Any, context: Any) -> bytes:
    await context.abort(grpc.StatusCode.NOT_FOUND, f"not there: {SECRET.decode()}")
    raise AssertionError


async def refusing(request: Any, context: Any) -> bytes:
    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no")
    raise AssertionError


@pytest.mark.parametrize(
    ("behaviour", "says"),
    [
        (failing, "it ended UNKNOWN"),
        (aborting, "it ended UNAVAILABLE: gone"),
        (hanging, "it did not end"),
        (telling, "told what is another's"),
        (telling_by_its_error, "told what is another's"),
        (refusing, ""),
    ],
)
async def test_what_a_service_must_not_do_is_found(behaviour: Any, says: str) -> None:
    found = await ended(behaviour, Case("1-0", "Ingest.Health", "anybody", (ASKED,)))
    assert says in found.wrong
    assert bool(says) == bool(found.wrong)


async def test_bytes_that_are_no_message_may_be_refused_in_grpcs_words() -> None:
    damaged = Case("1-0", "Ingest.Health", "anybody", (b"\xff" * 9,))
    assert not (await ended(failing, damaged)).wrong


async def test_a_document_that_fails_unexpectedly_is_found() -> None:
    progress = ingest_pb2.UpsertProgress(document_id="a", error="surprise", error_code="INTERNAL")

    async def upsert(request: Any, context: Any) -> AsyncIterator[bytes]:
        yield progress.SerializeToString()

    server = grpc.aio.server()
    handlers = {"Upsert": grpc.unary_stream_rpc_method_handler(upsert)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("kvquilt.v1.Ingest", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        found = await make(channel, Case("1-0", "Ingest.Upsert", "anybody", (b"",)))
    await server.stop(None)
    assert "a part of it ended INTERNAL" in found.wrong
