"""What questions leave behind has a bound of its own, by tenant and by principal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from services.kv_store.documents.leftovers import Leftovers
from services.kv_store.documents.quotas import QuotaConfig, Quotas
from services.kv_store.node.agent import Agent
from shared.admission.settings import OwnAllowance, PrincipalLimits
from shared.errors import StorageFull
from shared.kv_types import Manifest, ManifestChunk
from shared.principals.principal import Principal, Role
from shared.request import RequestContext
from tests.kv_chunks import chunk_bytes, chunk_id_of, origin_of
from tests.kv_stores import KnownNodes, agent_on, in_pieces

A, B, C, D = (chunk_id_of(n) for n in range(4))
SIZE = len(chunk_bytes(A))
GENERATOR = RequestContext.create(
    principal=Principal("service/generator", "acme", frozenset({Role.INTERNAL}), frozenset("*"))
)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def leftovers(clock: Clock, tenant: int = 0, **principals: int) -> Leftovers:
    own = {f"acme/{name}": OwnAllowance(stored_bytes=most) for name, most in principals.items()}
    return Leftovers(Quotas(QuotaConfig(tenant), PrincipalLimits(of=own)), 100, clock)


def test_a_principal_leaves_behind_as_much_as_it_may_store() -> None:
    left = leftovers(Clock(), anna=10)
    assert (left.limit("acme", "anna"), left.limit("acme", "bert")) == (True, False)
    left.add("a", "acme", "anna", 6)
    left.add("a", "acme", "anna", 6)  # the same
    with pytest.raises(StorageFull, match=r"anna of tenant 'acme' .*12 bytes, more than the 10"):
        left.add("b", "acme", "anna", 6)
    left.add("c", "acme", "anna", 4)
    left.add("d", "acme", "bert", 600)
    left.add("e", "other", "anna", 600)


def test_a_tenant_leaves_behind_as_much_as_it_may_store_whoever_asks() -> None:
    left = leftovers(Clock(), tenant=10)
    left.add("a", "acme", "anna", 6)
    with pytest.raises(StorageFull, match="tenant 'acme' left behind here would have 11 bytes"):
        left.add("b", "acme", "", 5)
    left.add("b", "acme", "bert", 4)
    left.add("c", "other", "anna", 10)


def test_what_garbage_collection_removes_counts_no_more() -> None:
    clock = Clock()
    left = leftovers(clock, anna=10)
    left.add("a", "acme", "anna", 6)
    clock.now += 60
    left.add("b", "acme", "anna", 4)
    clock.now += 39
    with pytest.raises(StorageFull):
        left.add("c", "acme", "anna", 1)
    clock.now += 1
    left.add("c", "acme", "anna", 6)
    with pytest.raises(StorageFull):
        left.add("d", "acme", "anna", 1)


async def ask(agent: Agent, chunk_id: str, asked_by: str = "key/anna", **how: Any) -> bool:
    path = Path(await agent.stage(GENERATOR)) / chunk_id
    path.write_bytes(chunk_bytes(chunk_id))
    origin = replace(origin_of(chunk_id), asked_by=asked_by)
    how = {"write_back": True, **how}
    return await agent.adopt(GENERATOR, chunk_id, "", str(path), **how, origin=origin)


async def is_stored(agent: Agent, chunk_id: str) -> bool:
    return (await agent.open(GENERATOR, [chunk_id]))[0].exists


async def test_kv_that_no_document_has_is_not_stored_beyond_the_quota(tmp_path: Path) -> None:
    agent = agent_on(tmp_path, "home", KnownNodes(), quotas=QuotaConfig(2 * SIZE))
    await ask(agent, A)
    await ask(agent, A)
    await ask(agent, B, asked_by="")
    with pytest.raises(StorageFull, match="Ingest the documents that questions bring along"):
        await ask(agent, C)
    assert [await is_stored(agent, c) for c in (A, B, C)] == [True, True, False]
    await ask(agent, C, write_back=False)  # of an ingestion, whose quota is that of documents
    assert await is_stored(agent, C)
    await agent.close()


async def test_a_lost_chunk_of_a_document_is_no_leftover(tmp_path: Path) -> None:
    agent = agent_on(tmp_path, "home", KnownNodes(), quotas=QuotaConfig(SIZE))
    await agent.put(GENERATOR, A, SIZE, in_pieces(chunk_bytes(A)))
    await agent.put_manifest(GENERATOR, Manifest("acme", "books", "1", chunks=(ManifestChunk(A, (1, 2, 3)),)))
    await ask(agent, B)
    await agent.delete(GENERATOR, [A])
    await ask(agent, A)
    assert await is_stored(agent, A)
    with pytest.raises(StorageFull):
        await ask(agent, D)
    await agent.close()
