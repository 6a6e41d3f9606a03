"""Quotas: how many bytes of KV the documents of a tenant may keep.

What counts is the file size of the distinct chunks that the tenant's documents refer to: each once, in
whatever encoding it is stored, however many copies the tiers hold.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from services.kv_store.documents.catalog import Document
from shared.errors import StorageFull
from shared.kv_reports import TenantStats
from shared.kv_types import ChunkStat, Manifest


@dataclass(frozen=True, slots=True)
class QuotaConfig:
    """Bytes of KV that the documents of a tenant may refer to; 0: no limit. ``tenants`` overrides
    ``default_bytes``."""

    default_bytes: int = 0
    tenants: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in {
            "default_bytes": self.default_bytes,
            **{f"tenants.{t}": b for t, b in self.tenants.items()},
        }.items():
            if value < 0:
                raise ValueError(f"{name}: must not be negative, got {value}")

    def of(self, tenant: str) -> int:
        return self.tenants.get(tenant, self.default_bytes)

    def check(self, tenant: str, before_bytes: int, after_bytes: int) -> None:
        """Refuses documents beyond the quota; what makes a tenant's documents smaller is always allowed.

        Raises:
            StorageFull: the tenant's documents would have more KV than they may.
        """
        quota = self.of(tenant)
        if quota and after_bytes > quota and after_bytes > before_bytes:
            raise StorageFull(
                f"the documents of tenant {tenant!r} would have {after_bytes} bytes of KV, more than "
                f"its quota of {quota}; "
                "delete documents, store KV in a smaller encoding (kvquilt store migrate --encoding "
                "int8), or have the quota raised"
            )


class TenantUsage:
    """Sizes of chunks as they were last seen, and what they make of the tenants' documents. For one thread at
    a time."""

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}

    def learn(self, stats: Iterable[ChunkStat]) -> None:
        self._sizes.update((s.chunk_id, s.size_bytes) for s in stats if s.exists)

    def unknown(self, chunk_ids: Iterable[str]) -> list[str]:
        """Those whose size must be asked for."""
        return [c for c in chunk_ids if c not in self._sizes]

    def forget_all_but(self, chunk_ids: Collection[str]) -> None:
        self._sizes = {c: size for c, size in self._sizes.items() if c in chunk_ids}

    def bytes_of(self, chunk_ids: Iterable[str]) -> int:
        """Of distinct chunks. One that is nowhere has none."""
        return sum(self._sizes.get(c, 0) for c in chunk_ids)

    def tenants(self, documents: Iterable[Document], quotas: QuotaConfig) -> tuple[TenantStats, ...]:
        """Every tenant that has documents or a quota of its own."""
        counts: Counter[str] = Counter()
        chunks: defaultdict[str, set[str]] = defaultdict(set)
        for document in documents:
            counts[document.tenant] += 1
            chunks[document.tenant].update(document.chunk_ids)
        return tuple(
            TenantStats(t, counts[t], self.bytes_of(chunks[t]), quotas.of(t))
            for t in sorted(counts.keys() | quotas.tenants.keys())
        )


def after_replacing(documents: Iterable[Document], new: Manifest) -> tuple[set[str], set[str]]:
    """The distinct chunks of a tenant's documents before and after ``new`` takes the place of the document of
    its name."""
    others: set[str] = set()
    replaced: set[str] = set()
    for document in documents:
        if document.tenant == new.tenant:
            is_it = (document.collection, document.document_id) == (new.collection, new.document_id)
            (replaced if is_it else others).update(document.chunk_ids)
    return others | replaced, others | set(new.kv_ids)
