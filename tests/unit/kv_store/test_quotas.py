"""What tenants' documents may keep, and how it is counted."""

from __future__ import annotations

import pytest

from services.kv_store.documents.catalog import Document
from services.kv_store.documents.quotas import (
    QuotaConfig,
    Quotas,
    TenantUsage,
    after_replacing,
    storer_of,
)
from shared.admission.settings import OwnAllowance, PrincipalLimits
from shared.errors import StorageFull
from shared.kv_reports import PrincipalStats, TenantStats
from shared.kv_types import ChunkStat, Manifest, ManifestChunk
from shared.principals.principal import Principal

DOCUMENTS = [
    Document("acme", "books", "1", ("a", "b")),
    Document("acme", "books", "2", ("b", "c")),
    Document("beta", "books", "1", ("a",)),
]


def stats(**sizes: int) -> list[ChunkStat]:
    return [ChunkStat(name, size > 0, size) for name, size in sizes.items()]


def test_usage_counts_each_chunk_once_per_tenant() -> None:
    usage = TenantUsage()
    assert usage.unknown(["a", "b"]) == ["a", "b"]
    usage.learn(stats(a=5, b=7, c=0))
    assert usage.unknown(["a", "b", "c"]) == ["c"]
    quotas = Quotas(QuotaConfig(0, {"acme": 100, "gamma": 9}))
    told = usage.tenants(DOCUMENTS, quotas, {"acme": (3, 40), "delta": (1, 2)})
    assert told == (
        TenantStats("acme", 2, 12, 100, num_items=3, item_bytes=40),
        TenantStats("beta", 1, 5, 0),
        TenantStats("delta", 0, 0, 0, num_items=1, item_bytes=2),
        TenantStats("gamma", 0, 0, 9),
    )


def test_sizes_follow_a_change_of_encoding_and_are_forgotten_with_the_chunks() -> None:
    usage = TenantUsage()
    usage.learn(stats(a=5, b=7))
    usage.learn(stats(a=3))
    assert usage.bytes_of({"a", "b"}) == 10
    usage.forget_all_but({"b"})
    assert usage.bytes_of({"a", "b"}) == 7


def test_more_than_the_quota_is_refused_with_tenant_quota_and_remedy() -> None:
    quotas = QuotaConfig(100, {"acme": 10})
    quotas.check("acme", 0, 10)
    quotas.check("beta", 0, 100)
    with pytest.raises(
        StorageFull, match=r"'acme' would have 11 bytes.*quota of 10; delete documents"
    ) as refused:
        quotas.check("acme", 0, 11)
    assert refused.value.code == "STORAGE_FULL"
    with pytest.raises(StorageFull, match="'beta'"):
        quotas.check("beta", 99, 101)


def test_what_makes_documents_smaller_is_allowed_even_above_the_quota() -> None:
    QuotaConfig(10).check("acme", 30, 20)
    QuotaConfig(10).check("acme", 30, 30)
    with pytest.raises(StorageFull):
        QuotaConfig(10).check("acme", 30, 31)


def test_no_quota_is_no_limit() -> None:
    QuotaConfig().check("acme", 0, 10**18)
    QuotaConfig(5, {"acme": 0}).check("acme", 0, 10**18)


def test_a_document_that_replaces_another_counts_instead_of_it() -> None:
    def new(collection: str, document_id: str) -> Manifest:
        return Manifest(
            "acme", collection, document_id, chunks=(ManifestChunk("b", ()), ManifestChunk("d", ()))
        )

    assert after_replacing(DOCUMENTS, new("books", "1")) == ({"a", "b", "c"}, {"b", "c", "d"})
    assert after_replacing(DOCUMENTS, new("films", "1")) == ({"a", "b", "c"}, {"a", "b", "c", "d"})
    encoded = Manifest("acme", "books", "1", chunks=(ManifestChunk("b", (), auxiliary_id="x"),))
    assert after_replacing(DOCUMENTS, encoded) == ({"a", "b", "c"}, {"b", "c", "x"})


# ---- of principals


ANNA, BERT = "key/anna", "key/bert"
OWN = [
    Document("acme", "books", "1", ("a", "b"), source="s1", stored_by=ANNA),
    Document("acme", "books", "2", ("b", "c"), source="s2", stored_by=BERT),
    Document("acme", "books", "3", ("d",), source="s3"),  # of an earlier version
    Document("beta", "books", "1", ("e",), source="s1", stored_by=ANNA),
]


def new(document_id: str, *chunk_ids: str, source: str = "") -> Manifest:
    chunks = tuple(ManifestChunk(chunk_id, ()) for chunk_id in chunk_ids)
    return Manifest("acme", "books", document_id, source_hash=f"{source}-settings.text", chunks=chunks)


def test_a_principals_documents_are_those_that_it_stored_for_this_tenant() -> None:
    assert after_replacing(OWN, new("9", "b", "z"), ANNA) == ({"a", "b"}, {"a", "b", "z"})
    assert after_replacing(OWN, new("1", "z"), ANNA) == ({"a", "b"}, {"z"})
    assert after_replacing(OWN, new("2", "z"), ANNA) == ({"a", "b"}, {"a", "b", "z"}), "it was another's"
    assert after_replacing(OWN, new("9", "z"), "key/carl") == (set(), {"z"})


def test_usage_tells_what_each_principal_stored_and_may_store() -> None:
    usage = TenantUsage()
    usage.learn(stats(a=5, b=7, c=11, d=13, e=17))
    own = {"acme": OwnAllowance(stored_bytes=20), f"acme/{ANNA}": OwnAllowance(stored_bytes=10)}
    again = Document("acme", "books", "4", ("a",), stored_by=ANNA)
    acme, beta = usage.tenants([*OWN, again], Quotas(principals=PrincipalLimits(of=own)), {})
    assert acme.principals == (PrincipalStats(ANNA, 2, 12, 10), PrincipalStats(BERT, 1, 18, 20))
    assert beta.principals == (PrincipalStats(ANNA, 1, 17),)


def test_a_document_is_whose_source_it_is_whoever_makes_it_anew() -> None:
    bert = Principal(BERT, "acme", frozenset())
    assert storer_of(None, new("9"), bert) == BERT
    assert storer_of(OWN[0], new("1", source="other"), bert) == BERT
    assert storer_of(OWN[0], new("1", source="s1"), bert) == ANNA
    assert storer_of(OWN[2], new("3", source="s3"), bert) == "", "nobody knows whose it was"
    unknown = Document("acme", "books", "4", (), stored_by=ANNA)
    assert storer_of(unknown, Manifest("acme", "books", "4"), bert) == BERT


def test_more_than_a_principal_may_have_is_refused_with_what_it_has_the_limit_and_a_remedy() -> None:
    own = {"acme": OwnAllowance(stored_bytes=20), f"acme/{ANNA}": OwnAllowance(stored_bytes=10)}
    quotas = Quotas(principals=PrincipalLimits(stored_bytes=30, of=own))
    assert [quotas.of_principal("acme", name) for name in (ANNA, BERT, "")] == [10, 20, 0]
    assert quotas.of_principal("beta", ANNA) == 30
    quotas.check_principal("acme", ANNA, 0, 10)
    quotas.check_principal("acme", ANNA, 30, 30)
    quotas.check_principal("acme", "", 0, 10**18)
    with pytest.raises(StorageFull) as refused:
        quotas.check_principal("acme", ANNA, 9, 11)
    said = refused.value.detail
    for part in (ANNA, "'acme'", "have 9 bytes", "would have 11", "the 10 that", "delete documents"):
        assert part in said
    assert "limits.per_principal.stored_bytes" in said


def test_without_a_limit_a_principal_may_store_whatever_its_tenant_may() -> None:
    Quotas().check_principal("acme", ANNA, 0, 10**18)


def test_a_quota_may_be_filled_to_its_last_byte() -> None:
    for after_bytes in (1, int("1000000")):
        QuotaConfig(10**6).check("acme", 0, after_bytes)
