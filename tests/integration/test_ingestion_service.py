"""Ingestion behind a real gRPC server, with the services around it in memory."""

from collections.abc import AsyncIterator

import grpc
import pytest

from protos.kvquilt.v1 import ingest_pb2, ingest_pb2_grpc
from services.ingestion.config import IngestionConfig
from services.ingestion.handlers import IngestHandlers
from shared import config
from shared.clients.grpc_transport import GrpcTransport
from shared.clients.ingest import APPLICATION, SERVICE, IngestClient
from shared.clients.service import meta_of
from shared.documents import SourceDocument, Stage
from shared.errors import ConfigError, InvalidRequest, NotFound
from tests.ingestion_world import World, context, outcome, text


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
async def channel(world: World) -> AsyncIterator[grpc.aio.Channel]:
    server = grpc.aio.server()
    ingest_pb2_grpc.add_IngestServicer_to_server(IngestHandlers(world.service(), run_deadline_s=60), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as opened:
        yield opened
    await server.stop(0)


@pytest.fixture
def client(channel: grpc.aio.Channel) -> IngestClient:
    return IngestClient(GrpcTransport(channel, SERVICE, APPLICATION))


async def test_documents_go_in_are_listed_and_go_out_again(client: IngestClient, world: World) -> None:
    documents = [
        text("a.txt", "One.", lang="en"),
        SourceDocument("b", b"# Two", "text/markdown"),
        SourceDocument("c.pdf", b"no"),
    ]
    events = [e async for e in client.upsert(context(), "c", documents)]
    assert outcome(events) == {"a.txt": Stage.STORED, "b": Stage.STORED, "c.pdf": Stage.FAILED}
    assert next(e for e in events if e.stage is Stage.FAILED).error_code == "DOCUMENT_UNREADABLE"
    assert world.manifests["default", "c", "a.txt"].metadata == {"lang": "en"}
    assert outcome([e async for e in client.upsert(context(), "c", documents[:2])]) == {
        "a.txt": Stage.UNCHANGED,
        "b": Stage.UNCHANGED,
    }
    listed = [d async for d in client.list(context(), "c")]
    assert [(d.document_id, d.title, d.num_chunks, d.current) for d in listed] == [
        ("a.txt", "a", 1, True),
        ("b", "Two", 1, True),
    ]
    deleted = await client.delete(context(), "c", ["a.txt", "x"])
    assert (deleted.num_documents, deleted.num_chunks, deleted.not_found) == (1, 1, ("x",))
    assert (await client.delete(context(), "c", everything=True)).num_documents == 1
    world.check_settled()


@pytest.mark.parametrize("collection", ["c", ""])
async def test_listings_go_on_past_a_page(client: IngestClient, collection: str) -> None:
    names = [f"{i}.txt" for i in range(5)]
    async for _ in client.upsert(context(), "c", [text(name, "Same.") for name in names]):
        pass
    assert [d.document_id async for d in client.list(context(), collection)] == names


async def test_a_collection_is_re_encoded_over_the_wire(client: IngestClient, world: World) -> None:
    async for _ in client.upsert(context(), "c", [text("a.txt", "One.")]):
        pass
    world.fingerprint = "model-b"
    assert [d.current async for d in client.list(context(), "c")] == [False]
    assert outcome([e async for e in client.re_encode(context(), "c")]) == {"a.txt": Stage.STORED}
    assert [d.current async for d in client.list(context(), "c")] == [True]


async def test_an_index_is_rebuilt_and_kv_refreshed_over_the_wire(client: IngestClient, world: World) -> None:
    async for _ in client.upsert(context(), "c", [text("a.txt", "One."), text("b.txt", "Two.")]):
        pass
    del world.indexed["default", "c", "a.txt"]
    del world.manifests["default", "c", "b.txt"]
    assert outcome([e async for e in client.rebuild(context())]) == {
        "c/a.txt": Stage.STORED,
        "c/b.txt": Stage.REMOVED,
    }
    (chunk,) = world.manifests["default", "c", "a.txt"].chunks
    world.kv.clear()
    refreshed = client.refresh(context(), "c", [chunk.chunk_id], "int8")
    assert outcome([e async for e in refreshed]) == {"a.txt": Stage.STORED}
    assert world.encodings[chunk.chunk_id] == "int8"
    world.check_settled()
    for call in (client.rebuild, client.refresh):
        with pytest.raises(NotFound, match="'nowhere'"):
            async for _ in call(context(), "nowhere"):
                pass


async def test_errors_arrive_as_what_they_are(client: IngestClient, channel: grpc.aio.Channel) -> None:
    with pytest.raises(InvalidRequest, match="comes more than once"):
        async for _ in client.upsert(context(), "c", [text("a.txt", "1"), text("a.txt", "2")]):
            pass
    with pytest.raises(NotFound, match="'nowhere'"):
        async for _ in client.re_encode(context(), "nowhere"):
            pass
    both = ingest_pb2.UpsertRequest(
        meta=meta_of(context()),
        collection="c",
        re_encode=True,
        documents=[ingest_pb2.SourceDocument(document_id="a.txt")],
    )
    stream = GrpcTransport(channel, SERVICE, APPLICATION).stream("Upsert", both, ingest_pb2.UpsertProgress, 5)
    with pytest.raises(InvalidRequest, match="must be empty with re_encode"):
        async for _ in stream:
            pass


async def test_health_says_why_it_is_not_ready(client: IngestClient, world: World) -> None:
    assert (await client.health(context())).ready
    world.salt = 1
    health = await client.health(context())
    assert not health.ready
    assert "tokenizer" in health.detail


@pytest.mark.parametrize(
    "values", [{"chunk_tokens": 8}, {"chunk_tokens": 9000}, {"prefill_batch": 0}, {"step_timeout_s": 0.0}]
)
def test_settings_out_of_range_are_named(values: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(values))):
        config.load(IngestionConfig, {"model": "m", **values})
    loaded = config.load(IngestionConfig, {"model": "m"})
    assert config.load(IngestionConfig, config.to_dict(loaded)) == loaded
