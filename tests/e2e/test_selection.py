"""The selector in a running stack: documents come with its KV, and a selection needs nothing else."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from shared.clients import kv_store, selection
from shared.clients.generation import APPLICATION, SERVICE, GenerationClient
from shared.clients.grpc_transport import GrpcTransport
from shared.clients.kv_store import KvStoreClient
from shared.clients.selection import SelectionClient
from shared.generation.selection import SelectionChunk, SelectionOrder
from shared.request import RequestContext
from tests.e2e.stack import Stack

pytestmark = pytest.mark.e2e


async def test_what_was_stored_at_ingestion_selects_tokens_later(stack: Stack, tmp_path: Path) -> None:
    """Of a document that no question of another test is about."""
    years = (f"In {year} the mill of Orsk ground {year - 1600} sacks of rye." for year in range(1700, 1740))
    (tmp_path / "orsk.txt").write_text("\n\n".join(years))
    ingested = stack.cli("ingest", str(tmp_path / "orsk.txt"), "-c", "mills")
    assert ingested.returncode == 0, ingested.stdout + ingested.stderr
    ctx = RequestContext.create()
    async with grpc.aio.insecure_channel(stack.target) as channel:
        store = KvStoreClient(GrpcTransport(channel, kv_store.SERVICE, kv_store.APPLICATION))
        selector = SelectionClient(GrpcTransport(channel, selection.SERVICE, selection.APPLICATION))
        model = await GenerationClient(GrpcTransport(channel, SERVICE, APPLICATION)).describe(ctx)
        described = await selector.describe(ctx)
        manifest = (await store.manifest_page(ctx, "mills")).manifests[0]
        assert manifest.auxiliary == described.identity
        assert described.primary_tokenizer_hash == model.tokenizer_hash
        chunks = [
            SelectionChunk(
                model.chunk_template.replace("{text}", c.text), c.token_ids, c.chunk_id, c.parent_id
            )
            for c in manifest.chunks
        ]
        before = (await selector.health(ctx)).facts
        (selected,) = await selector.select(
            ctx, SelectionOrder(tuple(chunks), ("How much rye was ground in 1723?",), 0.2)
        )
        after = (await selector.health(ctx)).facts
    num_tokens = sum(len(chunk.token_ids) for chunk in chunks)
    assert len(selected.scores) == num_tokens
    assert 0.2 * num_tokens - 1 < len(selected.tokens) < 0.2 * num_tokens + 10
    assert (after["encoded_chunks"], selected.timings.encode_s) == (before["encoded_chunks"], 0.0)
    newly = int(after["loaded_chunks"]) - int(before["loaded_chunks"])
    assert newly == int(after["resident_chunks"]) - int(before["resident_chunks"]) == len(chunks)
    assert any(chunk.parent_id for chunk in chunks)
    assert selected.num_isolated == 0
