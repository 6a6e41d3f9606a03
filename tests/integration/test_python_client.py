"""The Python client against a server that fails as it is told, and its wheel by itself."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from cluster.client_wheel import build, renamed
from protos.kvquilt.v1 import (
    generation_pb2,
    ingest_pb2,
    ingest_pb2_grpc,
    rag_pb2,
    rag_pb2_grpc,
    retrieval_pb2,
    retrieval_pb2_grpc,
)
from shared.errors import DeadlineExceeded, InvalidRequest, KvquiltError, NotFound, Overloaded
from shared.python_client import AsyncClient, Client, HandedDocument, SourceDocument, Stage, TokenEvent
from shared.status import DETAILS_KEY, status_of, to_status

QUESTION = "Which day is market day?"


class Server(rag_pb2_grpc.RagServicer, ingest_pb2_grpc.IngestServicer, retrieval_pb2_grpc.RetrievalServicer):
    """``failures``: of the calls to come, in turn; then it answers. ``stuck``: an answer stops behind its
    first token, until its caller goes away."""

    def __init__(self) -> None:
        self.failures: list[KvquiltError] = []
        self.calls: list[str] = []
        self.metadata: dict[str, Any] = {}
        self.stuck = False
        self.left = threading.Event()
        self.batches: list[int] = []
        self.target = ""

    def Answer(self, request: rag_pb2.AnswerRequest, context: grpc.ServicerContext) -> Iterator[Any]:
        self._called("answer", context)
        context.add_callback(self.left.set)
        yield rag_pb2.AnswerEvent(token=generation_pb2.GeneratedToken(text="Fri"))
        if self.stuck:
            self.left.wait(30)
            return
        yield rag_pb2.AnswerEvent(answer=rag_pb2.AnswerText(text="Friday."))
        yield rag_pb2.AnswerEvent(done=rag_pb2.AnswerDone(request_id="r1"))

    def Search(self, request: retrieval_pb2.SearchRequest, context: grpc.ServicerContext) -> Any:
        self._called("search", context)
        ranking = retrieval_pb2.Ranking()
        mode = retrieval_pb2.SEARCH_MODE_HYBRID
        return retrieval_pb2.SearchResponse(rankings=[ranking], mode=mode)

    def Upsert(self, request: ingest_pb2.UpsertRequest, context: grpc.ServicerContext) -> Iterator[Any]:
        self._called("upsert", context)
        self.batches.append(len(request.documents))
        for document in request.documents:
            stored = ingest_pb2.UpsertProgress.STAGE_STORED
            yield ingest_pb2.UpsertProgress(document_id=document.document_id, stage=stored)

    def _called(self, name: str, context: grpc.ServicerContext) -> None:
        self.calls.append(name)
        self.metadata = dict(context.invocation_metadata())
        if self.failures:
            error = self.failures.pop(0)
            text, details = to_status(error)
            context.set_trailing_metadata(((DETAILS_KEY, details),))
            context.abort(grpc.StatusCode[status_of(type(error))], text)


@pytest.fixture
def server() -> Iterator[Server]:
    service = Server()
    unlimited = [("grpc.max_receive_message_length", -1)]
    running = grpc.server(ThreadPoolExecutor(8), options=unlimited)
    rag_pb2_grpc.add_RagServicer_to_server(service, running)
    ingest_pb2_grpc.add_IngestServicer_to_server(service, running)
    retrieval_pb2_grpc.add_RetrievalServicer_to_server(service, running)
    port = running.add_insecure_port("127.0.0.1:0")
    running.start()
    service.target = f"127.0.0.1:{port}"
    yield service
    running.stop(None).wait()


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.target, api_key="k") as made:
        yield made


def busy() -> Overloaded:
    return Overloaded("no room", retry_after_s=0.01)


def test_an_answer_is_put_together_and_says_who_asks(server: Server, client: Client) -> None:
    answer = client.ask(QUESTION, "towns", k=3, mode="full")
    assert (answer.text, answer.request_id, answer.citations) == ("Friday.", "r1", ())
    assert server.metadata["authorization"] == "Bearer k"
    assert server.metadata["application"] == "gateway"


def test_questions_and_searches_are_asked_again_while_there_is_no_room(
    server: Server, client: Client
) -> None:
    server.failures = [busy(), busy()]
    assert client.ask(QUESTION, "towns").text == "Friday."
    server.failures = [busy(), busy()]
    assert client.search("market", "towns") == ()
    assert server.calls == ["answer"] * 3 + ["search"] * 3
    server.failures = [busy()] * 3
    with pytest.raises(Overloaded, match="no room"):
        client.ask(QUESTION, "towns")


def test_a_pause_that_would_outlast_the_deadline_is_not_waited_for(server: Server, client: Client) -> None:
    server.failures = [Overloaded("no room", retry_after_s=60.0)]
    with pytest.raises(Overloaded):
        client.ask(QUESTION, "towns", deadline_s=5.0)
    assert server.calls == ["answer"]


def test_what_changes_something_or_cannot_succeed_is_asked_once(server: Server, client: Client) -> None:
    server.failures = [busy()]
    with pytest.raises(Overloaded):
        list(client.ingest("towns", [SourceDocument("a.txt", b"a")]))
    server.failures = [NotFound("no such collection")]
    with pytest.raises(NotFound, match="no such collection"):
        client.search("market", "nowhere")
    assert server.calls == ["upsert", "search"]


def test_documents_are_sent_a_few_megabytes_at_a_time(server: Server, client: Client) -> None:
    documents = [SourceDocument(f"{i}.txt", bytes(3 << 20)) for i in range(5)]
    stages = [(told.document_id, told.stage) for told in client.ingest("towns", documents)]
    assert stages == [(f"{i}.txt", Stage.STORED) for i in range(5)]
    assert server.batches == [2, 2, 1]


def test_leaving_a_stream_ends_the_work_behind_it(server: Server, client: Client) -> None:
    server.stuck = True
    for event in client.stream(QUESTION, "towns"):
        assert isinstance(event, TokenEvent)
        break
    assert server.left.wait(10)


def test_a_deadline_ends_an_answer_that_does_not_come(server: Server, client: Client) -> None:
    server.stuck = True
    with pytest.raises(DeadlineExceeded):
        client.ask(QUESTION, "towns", deadline_s=0.5)


async def test_the_asyncio_client_does_the_same(server: Server) -> None:
    async with AsyncClient(server.target) as client:
        server.failures = [busy()]
        texts = [e.text async for e in client.stream(QUESTION, "towns") if isinstance(e, TokenEvent)]
        assert texts == ["Fri"]
        handed = [HandedDocument("Market", "On Fridays.")]
        assert (await client.ask(QUESTION, documents=handed)).text == "Friday."
    assert "authorization" not in server.metadata


def test_what_is_asked_wrongly_names_the_argument(client: Client) -> None:
    with pytest.raises(InvalidRequest, match="collection: name one"):
        client.ask(QUESTION)
    with pytest.raises(InvalidRequest, match="mode: 'fast' is not one of"):
        client.ask(QUESTION, "towns", mode="fast")
    with pytest.raises(TypeError, match="unexpected argument 'colection'"):
        client.ask(QUESTION, colection="towns")
    for how, message in (
        ({"target": "nowhere"}, "target"),
        ({"deadline_s": 0}, "deadline_s"),
        ({"retries": -1}, "retries"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            Client(**how)


def test_the_target_and_the_key_may_come_from_the_environment(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVQUILT_TARGET", server.target)
    monkeypatch.setenv("KVQUILT_API_KEY", "from-there")
    with Client() as client:
        client.ask(QUESTION, "towns")
    assert server.metadata["authorization"] == "Bearer from-there"


def test_a_closed_client_may_be_closed_again(server: Server) -> None:
    client = Client(server.target)
    client.close()
    client.close()


def test_imports_move_below_the_package_of_the_client() -> None:
    source = "from shared.errors import X\nimport protos.a\n    from shared import y\nfrom shareds import z\n"
    assert renamed(source) == (
        "from kvquilt_client._kvquilt.shared.errors import X\nimport kvquilt_client._kvquilt.protos.a\n"
        "    from kvquilt_client._kvquilt.shared import y\nfrom shareds import z\n"
    )


def test_the_wheel_works_by_itself(tmp_path: Path, server: Server) -> None:
    with zipfile.ZipFile(build(tmp_path)) as wheel:
        wheel.extractall(tmp_path / "there")
        names = set(wheel.namelist())
        metadata = wheel.read("kvquilt_client-0.1.0.dist-info/METADATA").decode()
    assert {name.partition("/")[0] for name in names} == {"kvquilt_client", "kvquilt_client-0.1.0.dist-info"}
    assert "kvquilt_client/py.typed" in names
    required = {
        line.split()[1].partition(">")[0] for line in metadata.splitlines() if "Requires-Dist" in line
    }
    assert required == {"googleapis-common-protos", "grpcio", "protobuf"}
    code = (
        "import sys\nfrom kvquilt_client import Client\n"
        f"with Client({server.target!r}) as client: print(client.ask('Which day?', 'towns').text)\n"
        "print(sorted({'torch', 'ray', 'pyarrow', 'numpy', 'shared', 'protos'} & sys.modules.keys()))"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "there")}
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "Friday.\n[]\n"
