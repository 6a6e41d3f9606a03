"""Tenants of one store: KV of another one is as if it were not there, whatever is asked and whoever asks; in
a scope KV is shared, and documents are not."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from services.kv_store.node.agent import Agent
from services.kv_store.node.cluster_store import ClusterStore
from shared.errors import FailedPrecondition, InvalidRequest, KvquiltError
from shared.identity import chunk_identity, kv_owner
from shared.kv_types import Manifest, ManifestChunk, Origin
from shared.principals.principal import Principal, Role
from shared.request import RequestContext
from tests.kv_chunks import chunk_bytes, chunk_id_of, origin_of
from tests.kv_stores import KnownNodes, agent_on, in_pieces
from tests.unit.kv_store.disks import QuickDisk

SCOPES = {"shared": ("acme", "partner")}
OWN = {name: chunk_id_of(5, kv_owner(name)) for name in ("other", "victim")}
THEIRS, ABSENT, SECOND = OWN["victim"], chunk_id_of(6, "victim"), chunk_id_of(7, "victim")
IDS, OF = (7, 8, 9), (kv_owner("acme", "shared"), "f" * 32, (1, 2))
A = chunk_identity(*OF, IDS)
B = chunk_identity(*OF, IDS, A)
CHUNKS = {A: ManifestChunk(A, IDS), B: ManifestChunk(B, IDS, parent_id=A)}


def by(tenant: str, *groups: str) -> RequestContext:
    """Whoever administrates a tenant; of no other's documents."""
    who = Principal("somebody", tenant, frozenset([Role.ADMIN]), frozenset(groups or ("*",)))
    return RequestContext.create(deadline_ms=36_000_000, principal=who)


def document(tenant: str, document_id: str, *chunk_ids: str) -> Manifest:
    scope = "shared" if tenant in SCOPES["shared"] else ""
    chunks = tuple(CHUNKS.get(chunk_id, ManifestChunk(chunk_id, (1,))) for chunk_id in chunk_ids)
    return Manifest(
        *(tenant, "books", document_id),
        model_fingerprint=OF[1],
        prefix_ids=OF[2],
        chunks=chunks,
        kv_scope=scope,
    )


def with_auxiliary(auxiliary_id: str) -> ManifestChunk:
    return ManifestChunk(OWN["other"], (1,), auxiliary_id=auxiliary_id)


async def put(store: ClusterStore, ctx: RequestContext, chunk_id: str) -> bool:
    data = chunk_bytes(chunk_id)
    origin = Origin(OF[2], CHUNKS[chunk_id].parent_id) if chunk_id in CHUNKS else origin_of(chunk_id)
    return await store.put(ctx, chunk_id, len(data), in_pieces(data), origin)


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    return agent_on(tmp_path / "home", "home", KnownNodes(), QuickDisk(), sharing_scopes=SCOPES)


@pytest.fixture
async def store(agent: Agent) -> ClusterStore:
    front = ClusterStore(KnownNodes({"home": agent}), "home")
    await put(front, by("victim"), THEIRS)
    await put(front, by("victim"), SECOND)
    await front.put_manifest(by("victim"), document("victim", "secret", THEIRS))
    return front


async def told(call: Awaitable[object], *names: str) -> str:
    """All that a caller is told, without the names that he asked by."""
    try:
        said = repr(await call)
    except KvquiltError as error:
        said = f"{type(error).__name__}: {error.detail}"
    for name in names:
        said = said.replace(name, "NAME")
    return re.sub(r"put-[0-9a-f]{32}", "STAGED", said)


async def whole(store: ClusterStore, ctx: RequestContext, chunk_id: str) -> bytes:
    return b"".join([piece async for piece in store.get(ctx, chunk_id)])


CALLS: dict[str, Callable[[ClusterStore, RequestContext, str], Awaitable[object]]] = {
    "stat": lambda store, ctx, i: store.stat(ctx, [i]),
    "get": whole,
    "readable": lambda store, ctx, i: store.readable(ctx, [i]),
    "put junk": lambda store, ctx, i: store.put(ctx, i, 9, in_pieces(b"x" * 9), origin_of(THEIRS)),
    "put a file": lambda store, ctx, i: store.put(
        ctx, i, len(chunk_bytes(i)), in_pieces(chunk_bytes(i)), origin_of(THEIRS)
    ),
    "refer to it": lambda store, ctx, i: store.put_manifest(ctx, document(ctx.tenant, "mine", i)),
    "refer to it as auxiliary": lambda store, ctx, i: store.put_manifest(
        ctx, replace(document(ctx.tenant, "mine", OWN["other"]), auxiliary="a", chunks=(with_auxiliary(i),))
    ),
}  # fmt: skip


@pytest.mark.parametrize("tenant", ["other", "acme"])
@pytest.mark.parametrize("call", CALLS)
async def test_a_chunk_of_another_tenant_is_told_like_one_that_is_not_there(
    store: ClusterStore, call: str, tenant: str
) -> None:
    await put(store, by("other"), OWN["other"])
    for ctx in (by(tenant), by(tenant, "staff")):
        answers = [await told(CALLS[call](store, ctx, i), i) for i in (THEIRS, ABSENT)]
        assert answers[0] == answers[1]


@pytest.mark.parametrize(
    "call",
    [
        lambda store, ctx, i: store.get_manifest(ctx, "books", i),
        lambda store, ctx, i: store.delete_manifest(ctx, "books", i),
        lambda store, ctx, i: store.pin(ctx, "books", i),
        lambda store, ctx, i: store.manifest_page(ctx, "books", start_after=i),
    ],
    ids=["get", "delete", "pin", "list"],
)  # fmt: skip
async def test_a_document_of_another_tenant_is_told_like_one_that_is_not_there(
    store: ClusterStore, call: Callable[[ClusterStore, RequestContext, str], Awaitable[object]]
) -> None:
    answers = [await told(call(store, by("other"), i), i) for i in ("secret", "absent")]
    assert answers[0] == answers[1]
    assert await store.get_manifest(by("victim"), "books", "secret")
    assert await store.count_documents(by("other")) == []
    assert await store.list_pins(by("other")) == []


async def test_a_node_that_does_not_answer_tells_of_no_tenants_chunks(tmp_path: Path) -> None:
    nodes = KnownNodes()
    home = agent_on(tmp_path / "first", "home", nodes, QuickDisk())
    agent_on(tmp_path / "second", "away", nodes, QuickDisk())
    front = ClusterStore(nodes, "home")
    await put(front, by("victim"), THEIRS)
    await front.put_manifest(by("victim"), document("victim", "secret", THEIRS))
    nodes.down.add("away")
    answers = [
        await told(home.put_manifest(by("other"), document("other", "m", i)), i) for i in (THEIRS, ABSENT)
    ]
    assert answers[0] == answers[1]
    assert answers[0].startswith("Unavailable")


async def test_what_stands_behind_another_tenants_chunk_is_not_told(store: ClusterStore) -> None:
    chunks = (ManifestChunk(THEIRS, (1,), text="secret"), ManifestChunk(SECOND, (2,), parent_id=THEIRS))
    await store.put_manifest(by("victim"), replace(document("victim", "chained"), chunks=chunks))
    assert (await store.chain(by("victim"), THEIRS)) is not None
    assert (await store.chain(by("other"), THEIRS)) is None
    await put(store, by("other"), OWN["other"])
    for parent_id in (THEIRS, ABSENT):
        mine = (ManifestChunk(OWN["other"], (1,), parent_id=parent_id),)
        with pytest.raises(InvalidRequest, match="a parent_id is neither a chunk's nor a header's"):
            await store.put_manifest(by("other"), replace(document("other", "mine"), chunks=mine))


async def test_in_a_scope_kv_is_stored_once_and_stays_until_nobody_needs_it(
    store: ClusterStore, agent: Agent
) -> None:
    acme, partner = by("acme"), by("partner")
    before = {c.chunk_id for c in (await agent.list_page(acme)).chunks}
    assert await put(store, acme, A) is False
    await put(store, acme, B)
    await store.put_manifest(acme, document("acme", "1", A, B))
    assert [s.exists for s in await store.stat(partner, [A])] == [False], "it has no such document yet"
    await store.put_manifest(partner, document("partner", "9", A))
    assert [s.exists for s in await store.stat(partner, [A, B])] == [True, False]
    assert {c.chunk_id for c in (await agent.list_page(acme)).chunks} - before == {A, B}
    kept = {t.tenant: t.num_bytes for t in (await store.stats(RequestContext.create(tenant="acme"))).tenants}
    assert (kept["acme"], kept["partner"]) == (2 * len(chunk_bytes(A)), len(chunk_bytes(A)))
    assert sorted(await store.delete_manifest(acme, "books", "1")) == sorted([A, B]), "as if it were alone"
    assert {c.chunk_id for c in (await agent.list_page(acme)).chunks} - before == {A}
    assert await whole(store, partner, A) == chunk_bytes(A)
    assert await store.delete_manifest(partner, "books", "9") == [A]
    assert {c.chunk_id for c in (await agent.list_page(acme)).chunks} == before
    agent.check_invariants()


async def test_in_a_scope_documents_are_each_tenants_own(store: ClusterStore) -> None:
    acme, partner = by("acme"), by("partner")
    await put(store, acme, A)
    await store.put_manifest(acme, document("acme", "1", A))
    for call in (
        lambda i: store.get_manifest(partner, "books", i),
        lambda i: store.delete_manifest(partner, "books", i),
        lambda i: store.pin(partner, "books", i),
    ):
        assert await told(call("1"), "1") == await told(call("2"), "2")
    assert (await store.manifest_page(partner, "books")).manifests == ()
    assert await store.readable(partner, [A]) == []
    assert await store.count_documents(partner) == []


async def test_in_a_scope_nobody_gets_at_text_by_naming_its_chunk(store: ClusterStore) -> None:
    acme, partner = by("acme"), by("partner")
    for chunk_id in (A, B):
        await put(store, acme, chunk_id)
    await store.put_manifest(acme, document("acme", "1", A, B))
    mine = document("partner", "9", A)
    for named in (
        lambda i: ManifestChunk(i, (7, 8)),
        lambda i: ManifestChunk(i, (7, 8), parent_id=A),
        lambda i: ManifestChunk(A, IDS, auxiliary_id=i),
    ):
        manifests = [replace(mine, chunks=(*mine.chunks, named(i))) for i in (B, "0" * 40)]
        with pytest.raises(FailedPrecondition, match="1 of 2 chunks of the document are not stored"):
            await store.put_manifest(partner, manifests[0])
        answers = [await told(store.put_manifest(partner, m)) for m in manifests]
        assert answers[0] == answers[1]
    await store.put_manifest(partner, document("partner", "9", A, B))  # who has its text, has its tokens
    assert await store.readable(partner, [A, B]) == [A, B]


async def test_a_scope_is_its_tenants_alone(store: ClusterStore) -> None:
    await put(store, by("acme"), A)
    with pytest.raises(InvalidRequest, match="is not the identity"):
        await put(store, by("other"), A)
    for tenant, scope in (("other", "shared"), ("acme", ""), ("acme", "else")):
        with pytest.raises(InvalidRequest, match=r"manifest\.kv_scope: "):
            await store.put_manifest(by(tenant), replace(document(tenant, "1"), kv_scope=scope))
