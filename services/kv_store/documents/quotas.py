"""Quotas: how many bytes of KV the documents of a tenant may keep, and those of one principal of it, with the
items that are kept beside documents.

What counts is the file size of the distinct chunks that the tenant's documents refer to, or those of them
that the principal stored: each once, in whatever encoding it is stored, however many copies the tiers hold.
Sums are never stored: they follow from the manifests.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from services.kv_store.documents.catalog import Document
from shared.admission.settings import PrincipalLimits
from shared.errors import StorageFull
from shared.kv_reports import PrincipalStats, TenantStats
from shared.kv_types import ChunkStat, Manifest
from shared.principals.principal import Principal

_REMEDY = (
    "delete documents or files, store KV in a smaller encoding (kvquilt store migrate --encoding int8), or "
    "have the quota raised"
)


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
                f"documents and files of tenant {tenant!r} would have {after_bytes} bytes of KV and content, "
                f"more than its quota of {quota}; {_REMEDY}"
            )


@dataclass(frozen=True, slots=True)
class Quotas:
    """Of tenants, and of their principals, by name."""

    tenants: QuotaConfig = field(default_factory=QuotaConfig)
    principals: PrincipalLimits = field(default_factory=PrincipalLimits)

    def of_principal(self, tenant: str, name: str) -> int:
        """Bytes; 0: no limit, as for documents of which nobody knows who stored them (``name`` empty)."""
        return self.principals.allowance(Principal(name, tenant, frozenset())).stored_bytes if name else 0

    def check_principal(self, tenant: str, name: str, before_bytes: int, after_bytes: int) -> None:
        """As ``QuotaConfig.check``, of the documents that a principal stored."""
        most = self.of_principal(tenant, name)
        if most and after_bytes > most and after_bytes > before_bytes:
            raise StorageFull(
                f"documents and files that {name} of tenant {tenant!r} stored have {before_bytes} bytes of "
                f"KV and content and would have {after_bytes}, more than the {most} that "
                f"limits.per_principal.stored_bytes allows; {_REMEDY}"
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

    def tenants(
        self, documents: Iterable[Document], quotas: Quotas, items: Mapping[str, tuple[int, int]]
    ) -> tuple[TenantStats, ...]:
        """Every tenant that has documents, items or a quota of its own, with its principals that have
        documents. ``items``: number and bytes by tenant."""
        own: defaultdict[str, list[Document]] = defaultdict(list)
        for document in documents:
            own[document.tenant].append(document)
        return tuple(
            TenantStats(
                t,
                *self._kept(own[t]),
                quotas.tenants.of(t),
                self._principals(t, own[t], quotas),
                *items.get(t, (0, 0)),
            )
            for t in sorted(own.keys() | quotas.tenants.tenants.keys() | items.keys())
        )

    def _principals(
        self, tenant: str, documents: Iterable[Document], quotas: Quotas
    ) -> tuple[PrincipalStats, ...]:
        stored: defaultdict[str, list[Document]] = defaultdict(list)
        for document in documents:
            stored[document.stored_by].append(document)
        return tuple(
            PrincipalStats(name, *self._kept(stored[name]), quotas.of_principal(tenant, name))
            for name in sorted(stored.keys() - {""})
        )

    def _kept(self, documents: Collection[Document]) -> tuple[int, int]:
        """Counts them and their bytes."""
        return len(documents), self.bytes_of({c for d in documents for c in d.chunk_ids})


def storer_of(known: Document | None, new: Manifest, who: Principal) -> str:
    """The name of the principal whose document ``new`` is when ``who`` stores it in the place of ``known``:
    whoever brought its source. What is made of that anew, for another model or other readers, stays his."""
    if known is not None and known.source and known.source == new.source:
        return known.stored_by
    return who.name


def after_replacing(
    documents: Iterable[Document], new: Manifest, stored_by: str | None = None
) -> tuple[set[str], set[str]]:
    """The distinct chunks of a tenant's documents (``stored_by`` not None: of those of this principal) before
    and after ``new``, which is one of them, takes the place of the document of its name."""
    others: set[str] = set()
    replaced: set[str] = set()
    for document in documents:
        if document.tenant == new.tenant and stored_by in (None, document.stored_by):
            is_it = (document.collection, document.document_id) == (new.collection, new.document_id)
            (replaced if is_it else others).update(document.chunk_ids)
    return others | replaced, others | set(new.kv_ids)
