"""KV on the generator's own node is read from the file that kv_store names; the wire carries names only."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import grpc
from google.protobuf.message import Message

from services.kv_store.node.handlers import start_server
from shared.clients import kv_node, kv_store
from shared.clients.grpc_transport import CHANNEL_OPTIONS, GrpcTransport
from shared.clients.kv_node import NodeFilesClient
from shared.clients.transport import ResponseT, Transport
from shared.generation.asked import SamplingParams
from shared.generation.told import DoneEvent, TokenEvent
from tests.generation_server import context, order_of, serving
from tests.kv_stores import KnownNodes, agent_on
from tests.oracles import ORACLES, Generated, assert_same_generation, tiny_model


class CountingTransport:
    """Counts the bytes of all messages, both ways."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.num_bytes = 0
        self.methods: list[str] = []

    async def unary(
        self, method: str, request: Message, response_type: type[ResponseT], timeout_s: float
    ) -> ResponseT:
        response = await self._inner.unary(method, request, response_type, timeout_s)
        self.methods.append(method)
        self.num_bytes += request.ByteSize() + response.ByteSize()
        return response

    async def stream(
        self, method: str, request: Message, response_type: type[ResponseT], timeout_s: float
    ) -> AsyncGenerator[ResponseT, None]:
        self.methods.append(method)
        self.num_bytes += request.ByteSize()
        async with aclosing(self._inner.stream(method, request, response_type, timeout_s)) as responses:
            async for response in responses:
                self.num_bytes += response.ByteSize()
                yield response


@asynccontextmanager
async def kv_store_service(directory: Path) -> AsyncIterator[CountingTransport]:
    agent = agent_on(directory, "node", KnownNodes())
    server, address = await start_server(agent, "127.0.0.1")
    async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        yield CountingTransport(GrpcTransport(channel, kv_node.SERVICE, kv_store.APPLICATION))
    await server.stop(None)


async def test_answers_from_stored_kv_move_no_kv_over_the_wire(tmp_path: Path) -> None:
    tiny_model("qwen2").save_pretrained(tmp_path / "model")
    prefix, question = (5, 6, 7), (8, 9, 10)
    chunks = [tuple(3 + (i * 7 + j) % 250 for j in range(300)) for i in range(4)]
    async with kv_store_service(tmp_path / "kv") as wire:
        async with serving(tmp_path / "model", NodeFilesClient(wire)) as served:
            stored = [c async for c in served.client.prefill(context(), chunks, prefix)]
            kv_bytes = 4 * 300 * (await served.client.describe(context())).kv_bytes_per_token
        assert [c.existed for c in stored] == [False] * 4
        files = [*(tmp_path / "kv" / "chunks").glob("*/*.arrow")]
        assert len(files) == 4
        assert sum(f.stat().st_size for f in files) > kv_bytes
        written, wire.num_bytes = wire.num_bytes, 0
        async with serving(tmp_path / "model", NodeFilesClient(wire)) as served:
            events = [
                e
                async for e in served.client.generate(
                    context(),
                    order_of(
                        chunks, [question], "reordered", sampling=SamplingParams(max_tokens=3), prefix=prefix
                    ),
                )
            ]
    assert isinstance(events[-1], DoneEvent)
    assert events[-1].usage.reused_tokens >= 1200
    tokens = [e for e in events if isinstance(e, TokenEvent)]
    ours = Generated(tuple(t.token_id for t in tokens), tuple(t.logprob for t in tokens))
    assert_same_generation(
        ours, ORACLES["reordered"](tiny_model("qwen2"), prefix, chunks, question, ours.token_ids), 1e-3
    )
    assert max(written, wire.num_bytes) < kv_bytes / 100
    assert set(wire.methods) == {"Open", "Stage", "Adopt"}
