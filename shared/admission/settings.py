"""Settings of what one principal may take of a service."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from shared.config import check_above_zero, check_least
from shared.principals.principal import Principal


@dataclass(frozen=True, slots=True)
class Allowance:
    """
    requests_per_s: calls from outside, of every kind; 0: no limit.
    tokens_per_s: of prompts, answers and documents, counted when they are known; 0: no limit.
    burst_s: a principal that kept quiet may take what it is due in so many seconds at once.
    concurrent: calls under way, waiting ones included.
    stored_bytes: of the KV of the documents that it stored, each chunk once, in the whole store; 0: no limit.
    weight: of a tenant among those that wait: 2 gets twice as many places as 1.
    """

    requests_per_s: float = 0.0
    tokens_per_s: float = 0.0
    burst_s: float = 10.0
    concurrent: int = 256
    stored_bytes: int = 0
    weight: float = 1.0

    def __post_init__(self) -> None:
        check_least(self, 0, "requests_per_s", "tokens_per_s", "stored_bytes")
        check_least(self, 1, "concurrent")
        check_above_zero(self, "burst_s", "weight")


@dataclass(frozen=True, slots=True)
class OwnAllowance:
    """Limits in which a tenant or one of its principals differs from the rule. None: it does not."""

    requests_per_s: float | None = None
    tokens_per_s: float | None = None
    burst_s: float | None = None
    concurrent: int | None = None
    stored_bytes: int | None = None
    weight: float | None = None


@dataclass(frozen=True, slots=True)
class PrincipalLimits(Allowance):
    """Of every principal, and ``of`` some: a tenant's name, or `TENANT/NAME` of one of its principals, which
    is stronger; `NAME` as in the audit: `key/anna`, `certificate/search`, `token/SUBJECT`, `operator`. Every
    replica counts for itself, but for stored bytes."""

    of: dict[str, OwnAllowance] = field(default_factory=dict)

    def __post_init__(self) -> None:
        Allowance.__post_init__(self)
        for name, own in self.of.items():
            try:
                _under(self._rule, own)
            except ValueError as error:
                raise ValueError(f"of.{name}.{error}") from None

    def allowance(self, principal: Principal) -> Allowance:
        allowed = self._rule
        for name in (principal.tenant, f"{principal.tenant}/{principal.name}"):
            if name in self.of:
                allowed = _under(allowed, self.of[name])
        return allowed

    @property
    def _rule(self) -> Allowance:
        return Allowance(*(getattr(self, one.name) for one in dataclasses.fields(Allowance)))


def _under(rule: Allowance, own: OwnAllowance) -> Allowance:
    given = {one.name: getattr(own, one.name) for one in dataclasses.fields(own)}
    return dataclasses.replace(rule, **{name: value for name, value in given.items() if value is not None})
