"""Documents with readers in the store: what is not for the caller is as if it were not there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from services.kv_store.documents.documents import Documents
from services.kv_store.documents.manifest_json import decode, encode
from services.kv_store.documents.sealed_json import unseal
from services.kv_store.node.cluster_store import ClusterStore
from shared.errors import DocumentTaken, FailedPrecondition, InvalidRequest, NotFound
from shared.identity import chunk_identity
from shared.kv_types import Manifest, ManifestChunk
from shared.principals.principal import Principal, Role
from shared.readers import SectionReaders
from shared.request import RequestContext
from tests.kv_chunks import chunk_bytes, chunk_id_of, origin_of
from tests.kv_stores import KnownNodes, agent_on, in_pieces
from tests.unit.kv_store.disks import QuickDisk

A, B, C, D = (chunk_id_of(n, "acme") for n in range(4))
SECTIONS = (SectionReaders("Salaries", ("hr",)),)
SECRET = Manifest("acme", "books", "secret", chunks=(ManifestChunk(A, (1,)),), readers=("hr",))
PART = Manifest(
    *("acme", "books", "part"),
    chunks=(ManifestChunk(B, (1,)), ManifestChunk(C, (1,), heading="Book > Salaries", parent_id=B)),
    sections=SECTIONS,
)
OPEN = Manifest("acme", "books", "open", chunks=(ManifestChunk(B, (1,)),))


def by(*groups: str, tenant: str = "acme") -> RequestContext:
    who = Principal("somebody", tenant, frozenset([Role.ADMIN]), frozenset(groups))
    return RequestContext.create(deadline_ms=36_000_000, principal=who)


OPERATOR = RequestContext.create(tenant="acme", deadline_ms=36_000_000)


@pytest.fixture
async def store(tmp_path: Path) -> ClusterStore:
    nodes = KnownNodes()
    agents = {name: agent_on(tmp_path / name, name, nodes, QuickDisk()) for name in ("home", "near")}
    nodes.stores = dict(agents)  # type: ignore[arg-type]
    front = ClusterStore(nodes, "home")
    for chunk_id in (A, B, C, D):
        await front.put(OPERATOR, chunk_id, len(chunk_bytes(chunk_id)), in_pieces(chunk_bytes(chunk_id)))
    for manifest in (SECRET, PART, OPEN):
        await front.put_manifest(OPERATOR, manifest)
    return front


def test_readers_are_written_in_a_form_that_earlier_versions_refuse_to_open() -> None:
    for manifest in (SECRET, PART):
        assert unseal(encode(manifest), unsealed_key="manifest")["version"] == 5
        assert decode(encode(manifest)) == manifest
    assert unseal(encode(OPEN), unsealed_key="manifest")["version"] == 2


async def test_a_document_that_one_may_not_read_is_not_there(store: ClusterStore) -> None:
    stranger = by("staff")
    with pytest.raises(NotFound) as hidden:
        await store.get_manifest(stranger, "books", "secret")
    with pytest.raises(NotFound) as absent:
        await store.get_manifest(stranger, "books", "absent")
    assert hidden.value.detail.replace("secret", "absent") == absent.value.detail
    with pytest.raises(NotFound):
        await store.delete_manifest(stranger, "books", "secret")
    with pytest.raises(NotFound):
        await store.pin(stranger, "books", "secret")
    assert (await store.get_manifest(by("hr"), "books", "secret")) == SECRET
    assert (await store.get_manifest(by("*"), "books", "secret")) == SECRET


async def test_of_a_document_with_sections_everybody_is_given_his_part(store: ClusterStore) -> None:
    readable = await store.get_manifest(by(), "books", "part")
    assert readable == replace(PART, chunks=PART.chunks[:1], sections=())
    assert await store.get_manifest(by("hr"), "books", "part") == PART


async def test_lists_and_counts_are_of_what_one_may_read(store: ClusterStore) -> None:
    for ctx, names in ((by(), ["open", "part"]), (by("hr"), ["open", "part", "secret"])):
        page = await store.manifest_page(ctx, "books", limit=len(names))
        assert [m.document_id for m in page.manifests] == names
        assert not page.truncated
        assert sum(alike.num_documents for alike in await store.count_documents(ctx)) == len(names)
        (tenant,) = (await store.stats(ctx)).tenants
        assert tenant.num_documents == len(names)
    assert (await store.manifest_page(by(), "books", limit=1)).truncated


async def test_who_stored_what_one_may_not_read_is_not_told(store: ClusterStore) -> None:
    writer = Principal("key/hr-connector", "acme", frozenset([Role.WRITER]), frozenset("*"))
    new = replace(SECRET, document_id="payroll")
    await store.put_manifest(RequestContext.create(deadline_ms=36_000_000, principal=writer), new)
    for ctx, names in ((by("staff"), ["operator"]), (by("hr"), ["key/hr-connector", "operator"])):
        (tenant,) = (await store.stats(ctx)).tenants
        assert [one.principal for one in tenant.principals] == names
    (secret, _) = tenant.principals
    assert (secret.num_documents, secret.num_bytes) == (1, len(chunk_bytes(A)))


async def test_pins_of_documents_that_one_may_not_read_are_not_listed(store: ClusterStore) -> None:
    for document_id in ("secret", "open"):
        await store.pin(OPERATOR, "books", document_id)
    assert [pin.document_id for pin in await store.list_pins(by())] == ["open"]
    assert [pin.document_id for pin in await store.list_pins(by("hr"))] == ["open", "secret"]


@pytest.mark.parametrize("change", ["put", "check", "delete"])
@pytest.mark.parametrize("document_id", ["secret", "part"])
async def test_what_one_may_not_read_whole_he_does_not_change(
    store: ClusterStore, document_id: str, change: str
) -> None:
    stranger = by("staff")
    new = Manifest("acme", "books", document_id, chunks=(ManifestChunk(D, (1,)),))
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "put": lambda: store.put_manifest(stranger, new),
        "check": lambda: store.check_quota(stranger, new, 1),
        "delete": lambda: store.delete_manifest(stranger, "books", document_id),
    }
    expected = NotFound if (document_id, change) == ("secret", "delete") else DocumentTaken
    with pytest.raises(expected, match=document_id):
        await calls[change]()
    assert await store.get_manifest(OPERATOR, "books", document_id) in (SECRET, PART)
    await store.put_manifest(by("hr"), new)


async def test_chunks_are_told_of_as_far_as_a_document_that_one_may_read_has_them(
    store: ClusterStore,
) -> None:
    asked = [A, B, C, D]
    assert await store.readable(by(), asked) == [B]
    assert await store.readable(by("hr"), asked) == [A, B, C]
    assert await store.readable(by("hr", tenant="other"), asked) == []
    assert await store.readable(OPERATOR, [*asked, A]) == [A, B, C]
    assert [stat.exists for stat in await store.stat(by(), asked)] == [False, True, False, False]
    assert [stat.exists for stat in await store.stat(OPERATOR, asked)] == [True] * 4
    with pytest.raises(NotFound):
        _ = [piece async for piece in store.get(by(), A)]
    size = len(chunk_bytes(A))
    for ctx, existed in ((by(), False), (by("hr"), True)):
        assert await store.put(ctx, A, size, in_pieces(chunk_bytes(A)), origin_of(A)) == existed


async def test_every_node_answers_what_may_be_read(tmp_path: Path) -> None:
    nodes = KnownNodes()
    agents = {name: agent_on(tmp_path / name, name, nodes, QuickDisk()) for name in ("home", "near")}
    nodes.stores = dict(agents)  # type: ignore[arg-type]
    await agents["home"].put(OPERATOR, A, len(chunk_bytes(A)), in_pieces(chunk_bytes(A)))
    await agents["home"].put_manifest(OPERATOR, SECRET)
    for agent in agents.values():
        assert await agent.readable(by("hr"), [A]) == [A]
        assert await agent.readable(by(), [A]) == []


async def test_readers_that_cannot_be_are_refused(store: ClusterStore) -> None:
    for manifest, message in (
        (replace(SECRET, readers=("a b",)), r"manifest\.readers\[0\]"),
        (replace(PART, readers=("staff",)), r"manifest\.sections\[0\]\.readers: 'hr'"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            await store.put_manifest(OPERATOR, manifest)


def test_the_chunks_of_documents_are_found_whatever_comes_and_goes(tmp_path: Path) -> None:
    documents = Documents(tmp_path, QuickDisk())
    who = by().principal
    for manifest in (SECRET, PART, OPEN):
        documents.put(manifest)
    documents.check_invariants()
    assert documents.readable(who, [A, B, C]) == [B]
    documents.put(replace(SECRET, readers=()))
    assert documents.readable(who, [A, B, C]) == [A, B]
    documents.remove("acme", "books", "open")
    documents.remove("acme", "books", "secret")
    documents.check_invariants()
    assert documents.readable(who, [A, B, C]) == [B]
    assert Documents(tmp_path, QuickDisk()).readable(by("hr").principal, [A, B, C]) == [B, C]


def test_the_same_chunk_in_an_open_document_is_for_everybody(tmp_path: Path) -> None:
    documents = Documents(tmp_path, QuickDisk())
    documents.put(SECRET)
    documents.put(replace(OPEN, chunks=SECRET.chunks))
    assert documents.readable(by().principal, [A]) == [A]


DERIVED = chunk_identity("acme", "f", (), (1, 2))
PAY = ManifestChunk(DERIVED, (1, 2), text="Ann earns 12.", auxiliary_id=D)


def mine(chunk: ManifestChunk) -> Manifest:
    return Manifest("acme", "books", "mine", model_fingerprint="f", chunks=(chunk,))


async def keep_pay(store: ClusterStore) -> None:
    await store.put(OPERATOR, DERIVED, len(chunk_bytes(DERIVED)), in_pieces(chunk_bytes(DERIVED)))
    await store.put_manifest(OPERATOR, replace(mine(PAY), document_id="pay", readers=("hr",)))


@pytest.mark.parametrize(
    ("naming", "hidden"),
    [
        pytest.param(lambda i: ManifestChunk(i, (1,)), A, id="a document's"),
        pytest.param(lambda i: ManifestChunk(i, (1,)), C, id="a section's"),
        pytest.param(lambda i: replace(PAY, auxiliary_id=i, text="Ann earns 13."), D, id="for a guess"),
        pytest.param(lambda i: replace(PAY, auxiliary_id=i, text=""), D, id="for no text"),
        pytest.param(lambda i: replace(PAY, chunk_id=i, auxiliary_id=""), D, id="as another kind"),
        pytest.param(lambda i: ManifestChunk(B, (1,), auxiliary_id=i), A, id="as an auxiliary's"),
    ],
)
async def test_no_document_names_kv_of_those_that_its_author_may_not_read(
    store: ClusterStore, naming: Callable[[str], ManifestChunk], hidden: str
) -> None:
    await keep_pay(store)
    stranger, said = by("staff"), []
    for chunk_id in (hidden, "0" * 40):
        with pytest.raises(FailedPrecondition) as refused:
            await store.put_manifest(stranger, mine(naming(chunk_id)))
        said.append(refused.value.detail)
    assert said[0] == said[1]
    assert await store.readable(stranger, [hidden]) == []
    await store.put_manifest(by("hr"), mine(naming(hidden)))


async def test_kv_that_follows_from_what_a_document_says_is_its_own_whoever_has_it_too(
    store: ClusterStore,
) -> None:
    await keep_pay(store)
    await store.put_manifest(by("staff"), mine(PAY))
    assert await store.readable(by("staff"), [DERIVED, D]) == [DERIVED, D]


async def test_kv_that_no_document_has_is_named_by_the_first_that_comes(store: ClusterStore) -> None:
    await store.put_manifest(by("staff"), mine(ManifestChunk(D, (1,))))
    assert await store.readable(by("staff"), [D]) == [D]
