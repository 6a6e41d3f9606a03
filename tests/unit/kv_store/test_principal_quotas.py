"""What one principal's documents may keep, through agents: each of several that write for one tenant has its
own limit, and every sum follows from the manifests."""

from __future__ import annotations

import tarfile
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from services.kv_store.documents.documents import Documents
from services.kv_store.node.agent import Agent
from shared.admission.settings import OwnAllowance, PrincipalLimits
from shared.errors import StorageFull
from shared.kv_format import SealKey, SealKeys
from shared.kv_types import Manifest, ManifestChunk
from shared.limits import RequestLimits
from shared.principals.principal import Principal, Role
from shared.request import RequestContext
from tests.dict_blobs import DictBlobs
from tests.kv_chunks import chunk_bytes, chunk_id_of
from tests.kv_stores import KnownNodes, agent_on, in_pieces

IDS = [chunk_id_of(n) for n in range(8)]
A, B, C, D, E, F, G, H = IDS
SIZE = len(chunk_bytes(A))
WRITTEN = Path(__file__).parents[2] / "fixtures" / "706fea9"
Make = Callable[..., Agent]


def by(name: str, tenant: str = "acme", role: Role = Role.WRITER) -> RequestContext:
    principal = Principal(name, tenant, frozenset({role}), frozenset("*"))
    return RequestContext.create(principal=principal, deadline_ms=36_000_000)


ANNA, BERT, ADMIN = by("key/anna"), by("key/bert"), by("key/root", role=Role.ADMIN)


def document(document_id: str, *chunk_ids: str, source: str = "", tenant: str = "acme") -> Manifest:
    chunks = tuple(ManifestChunk(c, (1, 2, 3)) for c in chunk_ids)
    source_hash = f"{source or document_id}-settings.text"
    return Manifest(tenant, "books", document_id, source_hash=source_hash, chunks=chunks)


@pytest.fixture(params=[None, DictBlobs], ids=["disk only", "object store"])
async def make(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Make]:
    """Agents of one node, each in the place of the one before."""
    agents: list[Agent] = []
    objects = request.param and request.param()

    def made(stored_chunks: int = 3, place: str = "home", **of: int) -> Agent:
        own = {f"acme/key/{name}": OwnAllowance(stored_bytes=n * SIZE) for name, n in of.items()}
        limits = RequestLimits(per_principal=PrincipalLimits(stored_bytes=stored_chunks * SIZE, of=own))
        agents.append(agent_on(tmp_path / place, "home", KnownNodes(), objects=objects, limits=limits))
        return agents[-1]

    yield made
    agents[-1].check_invariants()
    for agent in agents:
        await agent.close()


async def put(agent: Agent, *chunk_ids: str) -> None:
    for chunk_id in chunk_ids:
        await agent.put(ANNA, chunk_id, SIZE, in_pieces(chunk_bytes(chunk_id)))


async def test_a_principal_beyond_its_limit_is_refused_and_others_of_its_tenant_are_not(make: Make) -> None:
    agent = make()
    await put(agent, *IDS)
    await agent.put_manifest(ANNA, document("1", A, B))
    with pytest.raises(StorageFull, match=rf"key/anna .*have {2 * SIZE} .*would have {4 * SIZE}"):
        await agent.put_manifest(ANNA, document("2", C, D))
    await agent.put_manifest(ANNA, document("2", B, C))  # B is hers already
    await agent.put_manifest(BERT, document("3", A, B, C))
    await agent.put_manifest(by("key/anna", "other"), document("1", E, F, G, tenant="other"))


async def test_deleting_frees_and_replacing_counts_the_difference(make: Make) -> None:
    agent = make()
    await put(agent, *IDS)
    await agent.put_manifest(ANNA, document("1", A, B, C))
    with pytest.raises(StorageFull):
        await agent.put_manifest(ANNA, document("2", D))
    await agent.put_manifest(ANNA, document("1", D, E, F, source="new"))
    with pytest.raises(StorageFull):
        await agent.put_manifest(ANNA, document("1", D, E, F, G, source="newer"))
    await agent.delete_manifest(ANNA, "books", "1")
    await put(agent, A, B)
    await agent.put_manifest(ANNA, document("2", A, B, H))


async def test_who_replaces_a_document_by_his_own_has_it_from_then_on(make: Make) -> None:
    agent = make()
    await put(agent, *IDS)
    await agent.put_manifest(ANNA, document("1", A, B, C))
    await agent.put_manifest(BERT, document("1", D, E, source="bert's"))
    await put(agent, A, B, C)
    await agent.put_manifest(ANNA, document("2", A, B, C))
    with pytest.raises(StorageFull, match="key/bert"):
        await agent.put_manifest(BERT, document("3", F, G))


async def test_what_is_made_anew_of_a_document_stays_its_principals(make: Make) -> None:
    """An administrator's migration must not empty everybody's account."""
    agent = make(root=1)
    await put(agent, *IDS)
    await agent.put_manifest(ANNA, document("1", A, B))
    await agent.put_manifest(ADMIN, replace(document("1", C, D), readers=("hr",)))
    with pytest.raises(StorageFull, match="key/anna"):
        await agent.put_manifest(ANNA, document("2", E, F))


async def test_sums_are_the_same_after_a_restart_and_on_a_new_machine(make: Make) -> None:
    first = make()
    await put(first, *IDS)
    await first.put_manifest(ANNA, document("1", A, B))
    await first.put_manifest(BERT, document("2", C))
    await first.close()
    again = make()
    with pytest.raises(StorageFull, match=f"have {2 * SIZE} "):
        await again.put_manifest(ANNA, document("3", D, E))
    if again._tiers.objects is not None:
        moved = make(place="new")
        with pytest.raises(StorageFull, match=f"have {2 * SIZE} "):
            await moved.put_manifest(ANNA, document("3", D, E))
        await moved.put_manifest(BERT, document("3", D, E))


async def test_a_refused_document_leaves_the_sum_as_it_was(make: Make) -> None:
    agent = make()
    await put(agent, *IDS)
    await agent.put_manifest(ANNA, document("1", A, B))
    for _ in range(3):
        with pytest.raises(StorageFull, match=f"have {2 * SIZE} "):
            await agent.put_manifest(ANNA, document("2", C, D))
    await agent.put_manifest(ANNA, document("2", C))


async def test_before_its_kv_is_computed_a_document_counts_with_what_it_takes_at_least(make: Make) -> None:
    agent = make()
    await put(agent, A, B, C)
    await agent.put_manifest(ANNA, document("1", A, B))
    per_token = SIZE // 3
    await agent.check_quota(ANNA, document("2", H), per_token)
    await agent.check_quota(ANNA, document("2", A, B, C), per_token)
    with pytest.raises(StorageFull, match="key/anna"):
        await agent.check_quota(ANNA, document("2", C, H), per_token)
    await agent.check_quota(ANNA, document("2", C, H), 0)
    await agent.check_quota(BERT, document("2", C, H), per_token)
    await agent.put_manifest(ANNA, document("2", C))
    with pytest.raises(StorageFull, match="key/anna"):
        await agent.check_quota(ANNA, document("3", H), 1)


def test_sealing_anew_keeps_who_stored_it(tmp_path: Path) -> None:
    old, new = SealKey(b"o" * 32), SealKey(b"n" * 32)
    Documents(tmp_path, keys=SealKeys([old])).put(document("1", A), "key/anna")
    documents = Documents(tmp_path, keys=SealKeys([new, old]))
    assert documents.seal(change=True) == (0, 1)
    (sealed,) = Documents(tmp_path, keys=SealKeys([new])).documents()
    assert sealed.stored_by == "key/anna"
    documents.check_invariants()


def test_what_an_earlier_version_stored_is_nobodys_and_its_tenants(tmp_path: Path) -> None:
    with tarfile.open(WRITTEN / "directory.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    documents = Documents(tmp_path / "directory" / "kv")
    found = documents.documents()
    assert {d.document_id for d in found} == {"almwick.pdf", "rudeley.html", "tambach.md"}
    assert {d.stored_by for d in found} == {""}
    assert all(d.source for d in found)
    documents.check_invariants()
