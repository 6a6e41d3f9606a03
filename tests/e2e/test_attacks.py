"""Sends a running system what nobody should send, and looks whether it is the same system afterwards.

The table of ``tests.e2e.attack_table`` is walked RPC by RPC; then comes what ``tests.e2e.attack_inputs``
holds. All processes of the system live under a limit of memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import resource
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import grpc
import pytest

from cluster.local import launcher
from cluster.paths import PROJECT_ROOT
from protos.kvquilt.v1 import common_pb2, ingest_pb2
from shared.clients import generation, ingest, rag
from shared.clients.grpc_transport import CHANNEL_OPTIONS
from tests.e2e import attack_table
from tests.e2e import stack as stacks
from tests.e2e.attack_inputs import BODIES, DOCUMENTS, EXPLORED, PROMPTS, QUESTIONS, question
from tests.e2e.attack_table import NEVER, TYPED, Attack
from tests.e2e.conftest import COLLECTION
from tests.e2e.stack import Stack

pytestmark = pytest.mark.e2e
APPLICATIONS = ("kv_store", "retrieval", "generator", "selector", "ingestion", "gateway")
OF_A_PROCESS = 6 << 30
MAY_GROW = 500 << 20
WAIT_S = 30.0
RPCS = [(rpc, list(of_it)) for rpc, of_it in groupby(attack_table.attacks(), key=lambda attack: attack.rpc)]


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory, documents: Path, auxiliary: Path) -> Iterator[Stack]:
    """A system of its own: what the attacks leave behind is nobody else's."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (OF_A_PROCESS, hard))
    try:
        running = stacks.start(
            tmp_path_factory.mktemp("attacked") / "data", selector={"model": str(auxiliary)}
        )
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
    try:
        ingested = running.cli("ingest", str(documents), "-c", COLLECTION)
        assert ingested.returncode == 0, ingested.stdout + ingested.stderr
        before = processes(running)
        yield running
        after = processes(running)
        assert after.keys() == before.keys(), "a service was started anew"
        grown = {name: (after[name] - before[name]) >> 20 for name in after}
        assert max(grown.values()) < MAY_GROW >> 20, f"MiB: {grown}"
        assert "unexpected error" not in logs(running)
    finally:
        launcher.stop(running.data_dir)


def processes(running: Stack) -> dict[tuple[str, int], int]:
    """The bytes that each service's process holds."""
    pids = {name: running.replica_pid(name) for name in APPLICATIONS}
    return {(name, pid): resident_bytes(pid) for name, pid in pids.items()}


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


def logs(running: Stack) -> str:
    found = [path for path in running.data_dir.rglob("*.log") if path.is_file()]
    return "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in found)


async def answered(
    channel: grpc.aio.Channel, application: str, method: str, *payloads: bytes, give_up_s: float = WAIT_S
) -> tuple[str, str]:
    """The status and what it says. A request is sent as a stream where there is more than one."""
    service, name = method.split(".")
    call: Any
    metadata = (("application", application),)
    path = f"/kvquilt.v1.{service}/{name}"

    async def requests() -> AsyncIterator[bytes]:
        for payload in payloads:
            yield payload

    streams = streaming(service, name)
    if streams == (False, False):
        call = channel.unary_unary(path)(payloads[0], metadata=metadata, timeout=give_up_s)
    elif streams == (False, True):
        call = channel.unary_stream(path)(payloads[0], metadata=metadata, timeout=give_up_s)
    elif streams == (True, False):
        call = channel.stream_unary(path)(requests(), metadata=metadata, timeout=give_up_s)
    else:
        call = channel.stream_stream(path)(requests(), metadata=metadata, timeout=give_up_s)
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
        if streams[1]:
            async for _ in call:
                pass
        else:
            await call
    return (await call.code()).name, await call.details() or ""


def streaming(service: str, name: str) -> tuple[bool, bool]:
    for each in attack_table.services():
        if each.name == service:
            method = each.methods_by_name[name]
            return method.client_streaming, method.server_streaming
    raise AssertionError(service)


@contextlib.asynccontextmanager
async def channel_to(running: Stack) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(running.target, options=CHANNEL_OPTIONS) as channel:
        yield channel


def test_the_page_of_attacks_is_what_is_tried() -> None:
    page = Path(__file__).parents[2] / "docs" / "attacks.md"
    assert page.read_text(encoding="utf-8") == attack_table.page(), (
        "run 'python -m tests.e2e.attack_table > docs/attacks.md'"
    )
    assert len(attack_table.attacks()) >= 120


@pytest.mark.parametrize(("rpc", "of_it"), RPCS, ids=[rpc for rpc, _ in RPCS])
async def test_bad_requests_get_what_the_table_says(attacked: Stack, rpc: str, of_it: list[Attack]) -> None:
    async with channel_to(attacked) as channel:
        got = {
            attack.kind: await answered(channel, attack.application, rpc, attack.payload) for attack in of_it
        }
        wrong = {attack.kind: got[attack.kind] for attack in of_it if got[attack.kind][0] not in attack.gets}
        assert not wrong
        if of_it[0].kind == attack_table.CALLED:
            return
        health = "Rag.Health" if of_it[0].service.name == "Admin" else f"{of_it[0].service.name}.Health"
        assert (await answered(channel, of_it[0].application, health, b""))[0] == "OK"


@pytest.mark.parametrize("name", QUESTIONS)
async def test_a_question_that_nobody_asks(attacked: Stack, name: str) -> None:
    asked, gets = QUESTIONS[name]
    async with channel_to(attacked) as channel:
        status, details = await answered(channel, rag.APPLICATION, "Rag.Answer", question(**asked))
    assert status in gets, details


@pytest.mark.parametrize("name", DOCUMENTS)
async def test_a_document_that_stops_nobody(attacked: Stack, name: str) -> None:
    file, content = DOCUMENTS[name]
    documents = [
        ingest_pb2.SourceDocument(document_id=file, content=content),
        ingest_pb2.SourceDocument(document_id="good.txt", content=b"The mill stands at the river."),
    ]
    request = ingest_pb2.UpsertRequest(collection="attacked", documents=documents)
    said: dict[str, Any] = {}
    async with channel_to(attacked) as channel:
        call = channel.unary_stream(
            "/kvquilt.v1.Ingest/Upsert", response_deserializer=ingest_pb2.UpsertProgress.FromString
        )
        stream = call(
            request.SerializeToString(), metadata=(("application", ingest.APPLICATION),), timeout=270
        )
        async for progress in stream:
            said[progress.document_id] = progress
    assert said.keys() == {file, "good.txt"}
    assert said["good.txt"].error == ""
    assert said[file].error_code not in NEVER, said[file].error


@pytest.mark.parametrize(
    "document_id",
    ["../../etc/passwd", "a\nb", "", "x" * 9000, "\u202egpj.txt", "a/" * 2000, "C:\\a", ".", "\0"],
)
async def test_a_name_that_no_document_should_have(attacked: Stack, document_id: str) -> None:
    document = ingest_pb2.SourceDocument(document_id=document_id, content=b"text", media_type="text/plain")
    request = ingest_pb2.UpsertRequest(collection="attacked", documents=[document, document])
    async with channel_to(attacked) as channel:
        status, details = await answered(
            channel, ingest.APPLICATION, "Ingest.Upsert", request.SerializeToString()
        )
    assert status in TYPED, details
    assert not list(attacked.data_dir.parent.rglob("passwd"))


@pytest.mark.parametrize("name", EXPLORED)
async def test_a_forest_that_nobody_grows(attacked: Stack, name: str) -> None:
    payloads = [command.SerializeToString() for command in EXPLORED[name]]
    async with channel_to(attacked) as channel:
        status, details = await answered(
            channel, generation.APPLICATION, "Generation.Explore", *payloads, give_up_s=60
        )
    assert status in TYPED, details


async def test_streams_that_are_left_do_not_stay(attacked: Stack) -> None:
    """Two hundred callers who go away, some of whom never read: then somebody is answered."""
    asked = question(sampling=common_pb2.Sampling(max_tokens=200, ignore_eos=True))
    metadata = (("application", rag.APPLICATION),)
    async with channel_to(attacked) as channel:
        calls = [
            channel.unary_stream("/kvquilt.v1.Rag/Answer")(asked, metadata=metadata, timeout=60)
            for _ in range(200)
        ]
        await asyncio.sleep(1)
        for call in calls:
            call.cancel()
        status, details = await answered(channel, rag.APPLICATION, "Rag.Answer", question())
    assert status == "OK", details


def post(
    running: Stack, body: bytes, headers: dict[str, str] | None = None, path: str = "/v1/chat/completions"
) -> tuple[int, bytes]:
    host, port = running.state.http.removeprefix("http://").rsplit(":", 1)
    connection = http.client.HTTPConnection(host, int(port), timeout=WAIT_S)
    try:
        sent = {"content-type": "application/json", **(headers or {})}
        connection.request("POST", path, body=body, headers=sent)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


@pytest.mark.parametrize("name", BODIES)
def test_a_body_that_nobody_sends(attacked: Stack, name: str) -> None:
    body, status = BODIES[name]
    got, said = post(attacked, body)
    assert got == status, said[:500]
    assert b"error" in said
    assert len(said) < 4096, "nobody is sent back what he sent"


@pytest.mark.parametrize("name", PROMPTS)
def test_a_prompt_that_nobody_sends(attacked: Stack, name: str) -> None:
    body, status = PROMPTS[name]
    got, said = post(attacked, body, path="/v1/completions")
    assert got == status, said[:500]
    assert b"error" in said


@pytest.mark.parametrize(
    "headers",
    [
        {"x-request-id": "x" * 60_000},
        {"x-request-id": "a b"},
        {"x-kvquilt-tenant": "../../etc"},
        {"content-type": "text/xml"},
    ],
    ids=lambda headers: next(iter(headers)),
)
def test_a_header_that_nobody_sends(attacked: Stack, headers: dict[str, str]) -> None:
    body = b'{"model": "demo", "messages": [{"role": "user", "content": "a"}], "collection": "towns"}'
    status, _ = post(attacked, body, headers)
    assert 400 <= status < 500


@pytest.mark.parametrize(
    "sent",
    [
        b"\0" * 1000,
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\nabc",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 100,
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffff\r\n",
    ],
    ids=["NULs", "negative length", "half a body", "half of HTTP/2", "an endless chunk"],
)
async def test_bytes_that_are_no_call(attacked: Stack, sent: bytes) -> None:
    """To both ports, from callers who then go."""
    for address in (attacked.target, attacked.state.http.removeprefix("http://")):
        host, port = address.rsplit(":", 1)
        sockets = [socket.create_connection((host, int(port)), timeout=WAIT_S) for _ in range(20)]
        for each in sockets:
            with contextlib.suppress(OSError):
                each.sendall(sent)
        for each in sockets:
            each.close()
    async with channel_to(attacked) as channel:
        status, details = await answered(channel, rag.APPLICATION, "Rag.Answer", question())
    assert status == "OK", details


@pytest.mark.parametrize(
    ("application", "method"),
    [
        ("gateway", "Rag.Nothing"),
        ("nothing", "Rag.Answer"),
        ("", "Rag.Answer"),
        ("generator", "Rag.Answer"),
        ("../gateway", "Rag.Answer"),
    ],
)
async def test_a_call_of_what_is_not_there(attacked: Stack, application: str, method: str) -> None:
    service, name = method.split(".")
    async with channel_to(attacked) as channel:
        call = channel.unary_unary(f"/kvquilt.v1.{service}/{name}")
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await call(question(), metadata=(("application", application),), timeout=WAIT_S)
    assert failed.value.code().name in {"UNIMPLEMENTED", "NOT_FOUND", "INVALID_ARGUMENT", "INTERNAL"}
    assert str(attacked.data_dir) not in (failed.value.details() or "")


def test_whatever_is_drawn_for_every_rpc_is_answered_in_its_words(attacked: Stack) -> None:
    """`make fuzz` with a running system for its target; it ends with 0 if nothing was wrong."""
    command = [sys.executable, "-m", "tests.fuzz", "--seconds", "10", "--seed", "17"]
    command += ["--target", f"grpc://{attacked.target}", "--data-dir", str(attacked.data_dir)]
    fuzzed = subprocess.run(command, cwd=PROJECT_ROOT, capture_output=True, text=True, timeout=240)
    assert fuzzed.returncode == 0, fuzzed.stdout + fuzzed.stderr
    assert "rounds" in fuzzed.stdout
