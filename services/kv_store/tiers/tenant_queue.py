"""Chooses the copies that go when a tenant needs room: by S3-FIFO (``eviction``), and so that the others keep
their floors (``shared.floors``).

A copy is that of the tenant who used it last. What nobody has used since the agent started is nobody's, and
has no floor. Of the others' copies those are kept that they used last, as far as they fit into the floor: so
whoever has less than his floor loses nothing to others, and all floors together leave half of the capacity.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from services.kv_store.tiers.eviction import S3Fifo
from shared.floors import Floors


class TenantQueue:
    """Names, sizes and tenants only; not thread-safe. ``floor_share``: see ``Floors``."""

    def __init__(self, floor_share: float = 0.0) -> None:
        self._queue, self._floors = S3Fifo(), Floors(floor_share)
        self._tenants: dict[str, str] = {}
        self._used: dict[str, OrderedDict[str, int]] = {}
        """Of every tenant: names with their sizes, in order of last use."""

    def __contains__(self, name: str) -> bool:
        return name in self._queue

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def num_bytes(self) -> int:
        return self._queue.num_bytes

    def admit(self, name: str, size_bytes: int) -> None:
        """A copy that is there now. One of the same name is replaced, and keeps its rank and its tenant."""
        self._queue.admit(name, size_bytes)
        if name in self._tenants:
            of_tenant = self._used[self._tenants[name]]
            self._floors.count(self._tenants[name], size_bytes - of_tenant[name])
            of_tenant[name] = size_bytes

    def assign(self, name: str, tenant: str) -> None:
        """``tenant`` had it brought, or used it (empty: nobody knows whose it is)."""
        if name not in self._queue or not tenant:
            return
        self._disown(name)
        size_bytes = self._queue.size_of(name)
        self._tenants[name] = tenant
        self._used.setdefault(tenant, OrderedDict())[name] = size_bytes
        self._floors.count(tenant, size_bytes)

    def touch(self, name: str, tenant: str = "") -> None:
        """It was used."""
        self._queue.touch(name)
        self.assign(name, tenant)

    def remove(self, name: str) -> None:
        """It is gone for another reason than want of room."""
        self._queue.remove(name)
        self._disown(name)

    def victims(
        self, num_bytes: int, keep: Callable[[str], bool], tenant: str = "", capacity_bytes: int = 0
    ) -> list[str]:
        """Names that free at least ``num_bytes`` for ``tenant``, removed from here; none of them is one to
        ``keep``. Empty if there are not enough. ``capacity_bytes``: of which floors are a share; 0: there are
        none."""
        kept = self._kept_from(tenant, self._floors.floor_bytes(capacity_bytes))
        chosen = self._queue.victims(num_bytes, lambda name: keep(name) or kept(name))
        for name in chosen:
            self._disown(name)
        return chosen

    def check_invariants(self) -> None:
        self._queue.check_invariants()
        assert all(name in self._queue for name in self._tenants)
        assert {n: t for t, names in self._used.items() for n in names} == self._tenants
        sizes = {name: size for names in self._used.values() for name, size in names.items()}
        assert sizes == {name: self._queue.size_of(name) for name in self._tenants}
        self._floors.check_invariants({tenant: sum(names.values()) for tenant, names in self._used.items()})

    def _kept_from(self, tenant: str, floor_bytes: float) -> Callable[[str], bool]:
        """Whether a copy is in the floor of another than ``tenant``; those of a tenant are chosen when the
        first is asked for."""
        floors: dict[str, set[str]] = {}

        def kept(name: str) -> bool:
            owner = self._tenants.get(name, tenant)
            if owner == tenant:
                return False
            if owner not in floors:
                floors[owner] = self._floor_of(owner, floor_bytes)
            return name in floors[owner]

        return kept

    def _floor_of(self, tenant: str, floor_bytes: float) -> set[str]:
        chosen: set[str] = set()
        for name, size_bytes in reversed(self._used[tenant].items()):
            floor_bytes -= size_bytes
            if floor_bytes < 0:
                break
            chosen.add(name)
        return chosen

    def _disown(self, name: str) -> None:
        tenant = self._tenants.pop(name, "")
        if tenant:
            self._floors.count(tenant, -self._used[tenant].pop(name))
            if not self._used[tenant]:
                del self._used[tenant]
