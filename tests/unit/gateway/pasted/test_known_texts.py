"""The hashes of a circle of readers: looked through again, bounded, and apart from other circles."""

from __future__ import annotations

import pytest

from services.gateway.pasted.known_texts import KnownTexts
from shared.request import RequestContext
from tests.unit.gateway.pasted.documents import FakeDocuments, document

TEXTS = [
    f"{i} bridges of Tambach were counted by Orla Venn, and {i + 1} of them were found to be safe."
    for i in range(6)
]


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def known_texts(documents: FakeDocuments, clock: Clock, most_bytes: int = 1 << 20) -> KnownTexts:
    return KnownTexts(documents, most_bytes, refresh_s=30, wait_s=5, clock=clock)


async def read(known: KnownTexts, tenant: str = "default") -> set[str]:
    """Names of the documents, as the next question finds them."""
    ctx = RequestContext.create(tenant=tenant)
    await known.of(ctx)
    for circle in known._circles.values():
        if circle.reading is not None:
            await circle.reading
    known.check_invariants()
    return {name.document_id for name in (await known.of(ctx)).names}


async def test_only_what_changed_is_fetched_and_what_is_gone_is_forgotten() -> None:
    clock = Clock()
    documents = FakeDocuments([document("a", TEXTS[:2]), document("b", TEXTS[2:4])])
    known = known_texts(documents, clock)
    assert await read(known) == {"a", "b"}
    assert (documents.listed, documents.read) == ([False], [])
    documents.manifests = [documents.manifests[1], document("c", TEXTS[4:])]
    assert await read(known) == {"a", "b"}
    clock.now_s = 31
    assert await read(known) == {"b", "c"}
    assert (documents.listed, documents.read) == ([False, True], ["c"])
    documents.manifests[0] = document("b", TEXTS[:1])
    clock.now_s = 62
    await read(known)
    index = await known.of(RequestContext.create())
    assert [one.alike for one in index.chunks.find(TEXTS[0])]
    assert not index.chunks.find(TEXTS[2])


async def test_while_the_store_is_away_what_is_known_stays_known() -> None:
    clock = Clock()
    documents = FakeDocuments([document("a", TEXTS[:2])])
    known = known_texts(documents, clock)
    assert await read(known) == {"a"}
    documents.away, clock.now_s = True, 31
    assert await read(known) == {"a"}
    documents.away, clock.now_s = False, 62
    documents.manifests.append(document("b", TEXTS[2:]))
    assert await read(known) == {"a", "b"}


@pytest.mark.parametrize("most_bytes", [0, 3000, 6000, 1 << 20])
async def test_of_many_tenants_those_that_asked_last_are_kept_within_the_bytes(most_bytes: int) -> None:
    tenants = [f"t{i}" for i in range(12)]
    manifests = [document(t, TEXTS, tenant=t) for t in tenants]
    known = known_texts(FakeDocuments(manifests), Clock(), most_bytes)
    for tenant in tenants:
        assert await read(known, tenant) <= {tenant}
    assert known.num_bytes <= max(most_bytes, 2000)
    if most_bytes:
        assert await read(known, tenants[-1]) == {tenants[-1]}
