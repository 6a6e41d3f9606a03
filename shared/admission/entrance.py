"""Stands where calls enter a service: counts what each principal has under way, how often it calls and what
it has spent, and how much memory all of them take.

What comes over one of our own handles was counted where it entered the installation: of that only the memory
is counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from shared.admission.bucket import Bucket
from shared.admission.memory import MemoryBudget
from shared.admission.settings import Allowance, PrincipalLimits
from shared.errors import Overloaded
from shared.principals.principal import Principal

_REMEMBERED = 4096
_SOON_S = 1.0


@dataclass(slots=True)
class _Account:
    """Of one principal. A bucket is None where nothing is metered."""

    allowed: Allowance
    requests: Bucket | None
    tokens: Bucket | None
    under_way: int = 0

    def idle(self, now_s: float) -> bool:
        """Holds nothing that a new one would not."""
        buckets = (self.requests, self.tokens)
        return not self.under_way and all(one is None or one.full(now_s) for one in buckets)


class Entrance:
    """Of one replica. For one event loop.

    ``clock``: monotonic seconds.
    """

    def __init__(
        self,
        limits: PrincipalLimits | None = None,
        memory: MemoryBudget | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits = limits or PrincipalLimits()
        self._memory = memory or MemoryBudget()
        self._clock = clock
        self._accounts: dict[tuple[str, str], _Account] = {}

    @contextmanager
    def entered(self, principal: Principal, num_bytes: int, counted: bool = True) -> Iterator[None]:
        """Lets a call in, as long as the context is open. ``num_bytes``: of its request; ``counted``: it came
        from outside.

        Raises:
            Overloaded: names the limit, and when to come again.
        """
        with self._memory.held(num_bytes):
            if not counted:
                yield
                return
            account = self._account(principal)
            self._check(principal, account)
            account.under_way += 1
            try:
                yield
            finally:
                account.under_way -= 1

    def spend(self, principal: Principal, tokens: int) -> None:
        """Charges what a call of this principal turned out to cost: later ones wait until it is paid for."""
        account = self._account(principal)
        if account.tokens is not None:
            account.tokens.take(self._clock(), tokens)

    def weight(self, principal: Principal) -> float:
        """Among those that wait for their turn."""
        return self._limits.allowance(principal).weight

    def check_invariants(self) -> None:
        self._memory.check_invariants()
        assert all(account.under_way >= 0 for account in self._accounts.values())

    def _check(self, principal: Principal, account: _Account) -> None:
        now_s, allowed = self._clock(), account.allowed
        who = f"{principal.name} of tenant {principal.tenant}"
        if account.under_way >= allowed.concurrent:
            raise _refused(
                f"{who} has {account.under_way} calls under way, as many as limits.per_principal.concurrent "
                "allows",
                _SOON_S,
            )
        if account.tokens is not None and (wait_s := account.tokens.wait_s(now_s)):
            raise _refused(
                f"{who} used more than the {allowed.tokens_per_s:g} tokens per second that "
                "limits.per_principal.tokens_per_s allows",
                wait_s,
            )
        if account.requests is not None:
            if wait_s := account.requests.wait_s(now_s):
                raise _refused(
                    f"{who} calls more often than the {allowed.requests_per_s:g} times per second that "
                    "limits.per_principal.requests_per_s allows",
                    wait_s,
                )
            account.requests.take(now_s)

    def _account(self, principal: Principal) -> _Account:
        key = (principal.tenant, principal.name)
        if (account := self._accounts.get(key)) is None:
            now_s, allowed = self._clock(), self._limits.allowance(principal)
            if len(self._accounts) >= _REMEMBERED:
                self._accounts = {k: one for k, one in self._accounts.items() if not one.idle(now_s)}
            account = self._accounts[key] = _Account(
                allowed,
                _bucket(allowed.requests_per_s, allowed, now_s),
                _bucket(allowed.tokens_per_s, allowed, now_s),
            )
        return account


def _bucket(rate: float, allowed: Allowance, now_s: float) -> Bucket | None:
    return Bucket(rate, allowed.burst_s, now_s) if rate else None


def _refused(why: str, wait_s: float) -> Overloaded:
    return Overloaded(f"{why}; retry in {wait_s:.1f} s", retry_after_s=wait_s)
