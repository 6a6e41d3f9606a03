"""Chunks that are named by what they stand behind."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from services.generator.identified import Identified, Identities
from services.generator.prompts import Prompts
from services.generator.readable import ReadableParents
from shared.errors import NotFound
from shared.generation.pieces import Conditioned, Piece
from shared.principals.principal import Principal, Role
from shared.request import RequestContext

SEEN, HIDDEN = "ab" * 20, "cd" * 20


class Store:
    """Somebody else's documents have all chunks but ``SEEN``'s."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def readable(self, ctx: RequestContext, chunk_ids: Sequence[str]) -> list[str]:
        self.asked += chunk_ids
        return [chunk_id for chunk_id in chunk_ids if chunk_id == SEEN]


def by(*groups: str) -> RequestContext:
    who = Principal("somebody", "tenant", frozenset([Role.READER]), frozenset(groups))
    return RequestContext.create(principal=who)


def asked(*pieces: Piece, chained: bool = False) -> Identified:
    return Identities(Prompts(None, 300), "model").of("tenant", (1,), pieces, chained)


async def test_a_chunk_behind_what_one_may_not_read_is_refused_by_its_place() -> None:
    parents = ReadableParents(Store())
    await parents.check(by(), asked((5,), Conditioned((6,), parent_id=SEEN)))
    with pytest.raises(NotFound, match=r"chunks\[1\]\.parent_id: no document .*as its context"):
        await parents.check(by(), asked((5,), Conditioned((6,), parent_id=HIDDEN)))


async def test_what_is_behind_a_refused_chunk_is_refused_too() -> None:
    first = asked(Conditioned((6,), parent_id=HIDDEN)).chunks[0]
    with pytest.raises(NotFound, match=r"chunks\[0\]"):
        await ReadableParents(Store()).check(
            by(), asked(Conditioned((6,), parent_id=HIDDEN), Conditioned((7,), parent_id=first.chunk_id))
        )


async def test_what_comes_with_the_request_is_the_caller_s_own() -> None:
    store = Store()
    first = asked((5,)).chunks[0]
    for pieces in (
        asked((5,), Conditioned((6,), ((7,), (8,)))),
        asked((5,), (6,), (7,), chained=True),
        asked((5,), Conditioned((6,), parent_id=first.chunk_id)),
    ):
        await ReadableParents(store).check(by(), pieces)
    assert not store.asked


async def test_the_operator_costs_no_call() -> None:
    store = Store()
    await ReadableParents(store).check(RequestContext.create(), asked(Conditioned((6,), parent_id=HIDDEN)))
    assert await ReadableParents(store).told(RequestContext.create(), [HIDDEN]) == {HIDDEN}
    assert not store.asked


async def test_who_reads_every_document_of_his_tenant_reads_no_other_tenants() -> None:
    with pytest.raises(NotFound, match=r"chunks\[0\]\.parent_id"):
        await ReadableParents(Store()).check(by("*"), asked(Conditioned((6,), parent_id=HIDDEN)))
    await ReadableParents(Store()).check(by("*"), asked(Conditioned((6,), parent_id=SEEN)))


async def test_without_a_store_nothing_is_known_of_any_document() -> None:
    await ReadableParents(None).check(by(), asked(Conditioned((6,), parent_id=HIDDEN)))


async def test_of_the_kv_of_others_one_is_not_told() -> None:
    assert await ReadableParents(Store()).told(by(), [SEEN, HIDDEN]) == {SEEN}
