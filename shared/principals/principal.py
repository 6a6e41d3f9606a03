"""Names who calls: for which tenant, in which roles, as a member of which groups."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Role(enum.StrEnum):
    """Each may do what those before it may.

    READER asks and searches, WRITER changes documents, ADMIN looks after the installation (statistics,
    verification, garbage, pins, archives), INTERNAL is what the services are to each other.
    """

    READER = "reader"
    WRITER = "writer"
    ADMIN = "admin"
    INTERNAL = "internal"

    def includes(self, other: Role) -> bool:
        return _ORDER[self] >= _ORDER[other]


_ORDER = {role: place for place, role in enumerate(Role)}
OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Principal:
    """
    name: as it stands in logs and in the audit; never a secret.
    tenant: whose documents it works with.
    groups: whose readers it is one of.
    """

    name: str
    tenant: str
    roles: frozenset[Role]
    groups: frozenset[str] = frozenset()

    @classmethod
    def operator(cls, tenant: str) -> Principal:
        """Whoever owns the installation, at work for ``tenant``: every role, no groups."""
        return cls(OPERATOR, tenant, frozenset(Role))

    def may(self, needed: Role) -> bool:
        return any(role.includes(needed) for role in self.roles)
