"""A Milvus server goes away, or hangs, under a retrieval that runs: callers are told to retry, and nothing
that was acknowledged is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from load_tests.servers.milvus import MilvusServer
from services.retrieval.milvus import connect
from shared.clients.retrieval import RetrievalClient
from shared.errors import DeadlineExceeded, Unavailable
from shared.patience import patiently
from shared.request import RequestContext
from shared.search import IndexedIds
from tests.integration.test_retrieval_service import WordEmbedder, _document, _serving

Meanwhile = Callable[[], Awaitable[None]]
Outage = Callable[[MilvusServer, Meanwhile], Awaitable[None]]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[MilvusServer]:
    running = MilvusServer(tmp_path / "milvus")
    yield running
    running.close()


@pytest.fixture
async def client(server: MilvusServer) -> AsyncIterator[RetrievalClient]:
    milvus = connect(server.uri, "", 30)
    async with _serving(WordEmbedder(), milvus) as connected:
        yield connected
    milvus.close()


async def _down(server: MilvusServer, meanwhile: Meanwhile) -> None:
    server.stop()  # as by kill -9
    await meanwhile()
    server.start()


async def _hangs(server: MilvusServer, meanwhile: Meanwhile) -> None:
    server.hang()
    try:
        await meanwhile()
    finally:
        server.go_on()


@pytest.mark.parametrize("outage", [_down, _hangs])
async def test_what_was_acknowledged_is_there_after_an_outage(
    client: RetrievalClient, server: MilvusServer, outage: Outage
) -> None:
    ctx = RequestContext.create(deadline_ms=60_000)
    texts = ("a red apple falls", "a blue whale swims", "a green frog jumps")
    await client.index(ctx, "c", _document("d", *texts))
    before = await client.search(ctx, "c", ["blue whale"], k=3)

    async def meanwhile() -> None:
        for call in (
            lambda now: client.search(now, "c", ["blue whale"], k=3),
            lambda now: client.index(now, "c", _document("late", "a white owl sleeps")),
        ):
            with pytest.raises((Unavailable, DeadlineExceeded)):
                await call(RequestContext.create(deadline_ms=1_500))

    await outage(server, meanwhile)
    waits = RequestContext.create(deadline_ms=60_000)
    after = await patiently(waits, "searching", lambda: client.search(waits, "c", ["blue whale"], k=3))
    assert after.rankings[0][0].chunk == before.rankings[0][0].chunk
    late = _document("late", "a white owl sleeps")
    await client.index(RequestContext.create(deadline_ms=60_000), "c", late)
    assert await client.list_indexed(ctx, "c") == IndexedIds(("d", "late"))
