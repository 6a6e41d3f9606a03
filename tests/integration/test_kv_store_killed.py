from __future__ import annotations

import asyncio
import random
import signal
import sys
from asyncio.subprocess import PIPE, Process, create_subprocess_exec
from contextlib import suppress
from pathlib import Path

import grpc
import pytest

from services.kv_store.documents.documents import Documents
from shared.clients.kv_node import AgentClient
from shared.errors import KvquiltError
from shared.kv_format import verify_chunk
from shared.kv_types import Manifest, ManifestChunk
from shared.request import RequestContext
from tests.integration.kv_agent_process import objects_in
from tests.kv_chunks import chunk_bytes, chunk_id_of, origin_of
from tests.kv_stores import in_pieces, tiers_in

NUM_ROUNDS = 4
NUM_WRITERS = 6


class Acknowledged:
    """What the store said that it had made durable."""

    def __init__(self) -> None:
        self.chunks: set[str] = set()
        self.documents: dict[str, str] = {}
        self.deleted_documents: set[str] = set()
        self.count = 0


@pytest.mark.parametrize("with_objects", [False, True], ids=["disk only", "object store"])
async def test_an_agent_killed_in_the_middle_of_writing_keeps_what_it_acknowledged_and_tears_nothing(
    tmp_path: Path, with_objects: bool
) -> None:
    acknowledged = Acknowledged()
    directory, objects = tmp_path / "node", tmp_path / "objects" if with_objects else None
    for round in range(NUM_ROUNDS):
        await _write_until_killed(
            directory, objects, acknowledged, kill_after=random.Random(round).randint(1, 25), round=round
        )

        for path in tmp_path.rglob("*.arrow"):
            assert verify_chunk(path).header.chunk_id == path.stem  # nothing torn, in any tier
        blobs = objects_in(objects) if objects else None
        tiers, documents = tiers_in(directory, None, blobs), Documents(directory, None, blobs)
        tiers.check_invariants()
        documents.sync()
        documents.check_invariants()
        assert acknowledged.chunks <= set(await tiers.stored(sorted(acknowledged.chunks)))
        for document_id, chunk_id in acknowledged.documents.items():
            assert documents.get("default", "books", document_id).chunks[0].chunk_id == chunk_id
        found = {m.document_id for m in documents.page("default", "books", "", 1000, True).manifests}
        assert not found & acknowledged.deleted_documents
        await tiers.close()
    assert acknowledged.count >= NUM_ROUNDS


async def test_what_waited_for_the_object_store_when_the_agent_was_killed_gets_there_in_its_next_life(
    tmp_path: Path,
) -> None:
    acknowledged = Acknowledged()
    directory, objects = tmp_path / "node", tmp_path / "objects"
    await _write_until_killed(directory, objects, acknowledged, kill_after=20, round=0)
    tiers = tiers_in(directory, None, objects_in(objects))
    tiers.upload_pending()
    await tiers.uploaded()
    pending = next(s for s in tiers.stats()[0] if s.tier == "pending")
    assert pending.num_chunks == 0
    stored = {p.stem for p in (objects / "bucket").rglob("*.arrow")}
    assert acknowledged.chunks <= stored
    await tiers.close()


async def _write_until_killed(
    directory: Path, objects: Path | None, acknowledged: Acknowledged, kill_after: int, round: int
) -> None:
    process, address = await _start(directory, objects)
    async with grpc.aio.insecure_channel(address) as channel:
        client = AgentClient.of(channel)
        writers = [
            asyncio.create_task(_write(client, acknowledged, round * NUM_WRITERS + w))
            for w in range(NUM_WRITERS)
        ]
        already = acknowledged.count
        while acknowledged.count < already + kill_after:
            await asyncio.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        await process.wait()
        await asyncio.gather(*writers)


async def _write(client: AgentClient, acknowledged: Acknowledged, writer: int) -> None:
    """Chunks, written through or back, documents over them, and now and then the end of a document, until the
    agent is gone."""
    ctx = RequestContext.create(deadline_ms=30_000)
    with suppress(KvquiltError):
        for n in range(10_000):
            chunk_id, document_id = chunk_id_of(writer * 10_000 + n, ctx.tenant), f"{writer}-{n}"
            data = chunk_bytes(chunk_id)
            if n % 2:
                await client.put(ctx, chunk_id, len(data), in_pieces(data, 300), origin_of(chunk_id))
            else:
                path = Path(await client.stage(ctx)) / document_id
                path.write_bytes(data)
                origin = origin_of(chunk_id)
                await client.adopt(ctx, chunk_id, "", str(path), write_back=True, origin=origin)
            acknowledged.chunks.add(chunk_id)
            acknowledged.count += 1
            await client.put_manifest(
                ctx, Manifest("default", "books", document_id, chunks=(ManifestChunk(chunk_id, (1,)),))
            )
            acknowledged.documents[document_id] = chunk_id
            if n % 3 == 2:
                acknowledged.chunks.discard(chunk_id)
                del acknowledged.documents[document_id]
                await client.delete_manifest(ctx, "books", document_id)
                acknowledged.deleted_documents.add(document_id)


async def _start(directory: Path, objects: Path | None) -> tuple[Process, str]:
    process = await create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.integration.kv_agent_process",
        *(str(d) for d in (directory, objects) if d is not None),
        stdout=PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout is not None
    return process, (await process.stdout.readline()).decode().strip()
