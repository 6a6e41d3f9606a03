"""Pieces of a request become chunks with identities, and what they are computed behind."""

from __future__ import annotations

import pytest

from services.generator.identified import Identities
from services.generator.prompts import Prompts
from shared.errors import InvalidRequest
from shared.generation.asked import Chunk, chain_of
from shared.generation.pieces import Conditioned
from shared.identity import chunk_identity
from shared.sharing import SharingScopes

PREFIX = (1, 2)
OF = ("tenant", "model", PREFIX)


@pytest.fixture
def identities() -> Identities:
    return Identities(Prompts(None, 300), "model")


def test_a_piece_alone_is_isolated(identities: Identities) -> None:
    (chunk,), links = identities.of("tenant", PREFIX, [(5, 6)])
    assert chunk == Chunk(chunk_identity(*OF, (5, 6)), (5, 6))
    assert links == ()


def test_tenants_of_one_scope_have_the_same_chunks_and_others_have_not() -> None:
    scopes = SharingScopes({"shared": ("acme", "partner"), "alone": ("other",)})
    identities = Identities(Prompts(None, 300), "model", scopes)
    pieces = [(5, 6), Conditioned((5,), ((7,), (8, 9)))]
    acme, partner, other, shared = (
        identities.of(tenant, PREFIX, pieces) for tenant in ("acme", "partner", "other", "shared")
    )
    assert acme == partner
    every = [{c.chunk_id for c in (*one.chunks, *one.links)} for one in (acme, other, shared)]
    assert len(set.union(*every)) == sum(map(len, every))


def test_a_context_is_a_chain(identities: Identities) -> None:
    (chunk,), links = identities.of("tenant", PREFIX, [Conditioned((5,), ((7,), (8, 9)))])
    first = chunk_identity(*OF, (7,))
    second = chunk_identity(*OF, (8, 9), first)
    assert [link.chunk_id for link in links] == [first, second]
    assert chunk.parent_id == second
    assert chunk.chunk_id == chunk_identity(*OF, (5,), second)
    assert chunk.isolated_id == chunk_identity(*OF, (5,))
    assert chain_of(chunk, links) == links


def test_a_parent_is_taken_as_it_is_named_and_the_identity_derived(identities: Identities) -> None:
    (chunk,), links = identities.of("tenant", PREFIX, [Conditioned((5,), parent_id="ab" * 20)])
    assert chunk.chunk_id == chunk_identity(*OF, (5,), "ab" * 20)
    assert links == ()


def test_chained_pieces_stand_behind_each_other(identities: Identities) -> None:
    chunks, links = identities.of("tenant", PREFIX, [Conditioned((5,), ((7,),)), (6,), (8,)], chained=True)
    assert [chunk.parent_id for chunk in chunks[1:]] == [chunk.chunk_id for chunk in chunks[:-1]]
    assert chain_of(chunks[2], (*links, *chunks)) == (*links, *chunks[:2])
    context = identities.of("tenant", PREFIX, [Conditioned((8,), ((7,), (5,), (6,)))])
    assert context.chunks[0].chunk_id == chunks[2].chunk_id  # however it is said


def test_a_piece_cannot_be_chained_and_have_a_context(identities: Identities) -> None:
    with pytest.raises(InvalidRequest, match=r"chunks\[1\].*context"):
        identities.of("tenant", PREFIX, [(5,), Conditioned((6,), ((7,),))], chained=True)


def test_ids_of_a_context_are_checked(identities: Identities) -> None:
    with pytest.raises(InvalidRequest, match=r"chunks\[0\]\.context\[1\]\.token_ids\[0\]"):
        identities.of("tenant", PREFIX, [Conditioned((5,), ((7,), (301,)))])
    with pytest.raises(InvalidRequest, match=r"chunks\[0\]\.context\[0\]: is empty"):
        identities.of("tenant", PREFIX, [Conditioned((5,), ((),))])


def test_context_and_parent_are_one_too_many() -> None:
    with pytest.raises(InvalidRequest, match="parent_id"):
        Conditioned((5,), ((7,),), "ab" * 20)
