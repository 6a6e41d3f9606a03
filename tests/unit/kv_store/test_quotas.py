"""What tenants' documents may keep, and how it is counted."""

from __future__ import annotations

import pytest

from services.kv_store.documents.catalog import Document
from services.kv_store.documents.quotas import QuotaConfig, TenantUsage, after_replacing
from shared.errors import StorageFull
from shared.kv_reports import TenantStats
from shared.kv_types import ChunkStat, Manifest, ManifestChunk

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
    told = usage.tenants(DOCUMENTS, QuotaConfig(0, {"acme": 100, "gamma": 9}))
    assert told == (
        TenantStats("acme", 2, 12, 100),
        TenantStats("beta", 1, 5, 0),
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
