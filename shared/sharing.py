"""Scopes of sharing: among which tenants an operator lets KV of equal chunks be the same."""

from __future__ import annotations

from dataclasses import dataclass, field

from shared.identity import kv_owner
from shared.principals.names import check_plain


@dataclass(frozen=True, slots=True)
class SharingScopes:
    """``sharing_scopes``: by the name of a scope its tenants; whoever is in none shares with nobody.

    Raises:
        ValueError: a name cannot be, or a tenant is there twice; names the setting.
    """

    sharing_scopes: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        found: dict[str, str] = {}
        for scope, tenants in self.sharing_scopes.items():
            check_plain("sharing_scopes", scope)
            for i, tenant in enumerate(tenants):
                setting = f"sharing_scopes.{scope}[{i}]"
                check_plain(setting, tenant)
                if tenant in found:
                    raise ValueError(
                        f"{setting}: tenant {tenant!r} is in {found[tenant]!r} already; name it once"
                    )
                found[tenant] = scope

    def of(self, tenant: str) -> str:
        """The tenant's scope; empty: none."""
        return next((name for name, tenants in self.sharing_scopes.items() if tenant in tenants), "")

    def owner(self, tenant: str) -> str:
        """Whose the KV of the tenant's chunks is (``shared.identity.kv_owner``)."""
        return kv_owner(tenant, self.of(tenant))
