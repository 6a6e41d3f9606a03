"""Bounds the KV that questions leave behind: of documents that they brought along, or of lists of chunks of
their own. No document of the store has it, so no quota of documents counts it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from services.kv_store.documents.quotas import Quotas
from shared.errors import StorageFull


@dataclass(frozen=True, slots=True)
class _Left:
    tenant: str
    asked_by: str
    num_bytes: int
    gone_s: float


class Leftovers:
    """Counts what a node was given since it started, until garbage collection may have removed it. A tenant,
    and a principal, may leave behind as many bytes as its documents may have. For one thread at a time."""

    def __init__(self, quotas: Quotas, kept_s: float, clock: Callable[[], float]) -> None:
        """``kept_s``: the age at which garbage collection removes what no document has."""
        self._quotas, self._kept_s, self._clock = quotas, kept_s, clock
        self._left: dict[str, _Left] = {}  # by chunk, the oldest first
        self._num_bytes: Counter[tuple[str, str]] = Counter()  # by tenant and principal

    def limit(self, tenant: str, asked_by: str) -> bool:
        """Whether there is one for this tenant or principal."""
        return bool(self._quotas.tenants.of(tenant) or self._quotas.of_principal(tenant, asked_by))

    def add(self, chunk_id: str, tenant: str, asked_by: str, num_bytes: int) -> None:
        """Counts a chunk once, however often it comes.

        Raises:
            StorageFull: it is not counted: there would be more than there may.
        """
        self._forget()
        if chunk_id in self._left:
            return
        of_tenant = sum(n for (name, _), n in self._num_bytes.items() if name == tenant)
        _check(f"tenant {tenant!r}", of_tenant + num_bytes, self._quotas.tenants.of(tenant))
        of_principal = self._num_bytes[tenant, asked_by] if asked_by else 0
        most = self._quotas.of_principal(tenant, asked_by)
        _check(f"{asked_by} of tenant {tenant!r}", of_principal + num_bytes, most)
        self._left[chunk_id] = _Left(tenant, asked_by, num_bytes, self._clock() + self._kept_s)
        self._num_bytes[tenant, asked_by] += num_bytes

    def _forget(self) -> None:
        now_s = self._clock()
        while self._left:
            chunk_id, left = next(iter(self._left.items()))
            if left.gone_s > now_s:
                return
            del self._left[chunk_id]
            self._num_bytes[left.tenant, left.asked_by] -= left.num_bytes
            self._num_bytes += Counter()  # without those that have nothing


def _check(whose: str, num_bytes: int, most: int) -> None:
    if most and num_bytes > most:
        raise StorageFull(
            f"KV that questions of {whose} left behind here would have {num_bytes} bytes, more than the "
            f"{most} that its quota allows; it is computed whenever it is asked for. Ingest the documents "
            "that questions bring along, or have the quota raised"
        )
