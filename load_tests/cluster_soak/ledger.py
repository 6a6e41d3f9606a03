"""Keeps account of what callers were told while faults struck, and how long it took until all was well."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from load_tests.benchmark import Violation
from load_tests.cluster_soak.fault import Told
from shared.errors import KvquiltError


@dataclass(slots=True)
class Struck:
    """One fault. ``failed``: calls that failed from when it struck until the next one did, by worker's kind
    and error code; ``recovery_s``: by kind, from the strike until every worker of that kind had an answer to
    a call that began after it; ``told``: of ``Fault``."""

    fault: str
    since_s: float
    told: Told = frozenset()
    failed: Counter[tuple[str, str]] = field(default_factory=Counter)
    recovery_s: dict[str, float] = field(default_factory=dict)


class FaultLedger:
    """``workers``: how many there are of each kind. ``clock``: seconds."""

    def __init__(self, workers: dict[str, int], clock: Callable[[], float] = time.monotonic) -> None:
        self._workers, self._clock = workers, clock
        self._well: defaultdict[str, set[int]] = defaultdict(set)  # since the last strike
        self.succeeded = Counter[str]()
        self.struck: list[Struck] = []

    def strike(self, fault: str, told: Told = frozenset()) -> Struck:
        self.struck.append(Struck(fault, self._clock(), told))
        self._well.clear()
        return self.struck[-1]

    def success(self, kind: str, worker: int, began_s: float) -> None:
        self.succeeded[kind] += 1
        if not self.struck or began_s < self.struck[-1].since_s:
            return
        self._well[kind].add(worker)
        if len(self._well[kind]) == self._workers[kind]:
            now = self.struck[-1]
            now.recovery_s.setdefault(kind, self._clock() - now.since_s)

    def failure(self, kind: str, error: KvquiltError) -> None:
        """
        Raises:
            Violation: it is none that a caller may see in this fault: it does not say that the same call may
            work later, or it came before any fault.
        """
        if not error.retryable and not (self.struck and (kind, error.code) in self.struck[-1].told):
            raise Violation(f"{kind}: {error.code}, which is not retryable: {error.detail}")
        if not self.struck:
            raise Violation(f"{kind}: {error.code} before any fault: {error.detail}")
        self.struck[-1].failed[kind, error.code] += 1

    @property
    def recovered(self) -> bool:
        """Whether every worker is well again."""
        return not self.struck or self.struck[-1].recovery_s.keys() == self._workers.keys()

    def now(self) -> float:
        return self._clock()

    def rows(self) -> list[tuple[str, ...]]:
        """Of a table for people: of every fault its name, how often it struck, and of every kind what failed
        and the longest recovery."""
        by_fault: defaultdict[str, list[Struck]] = defaultdict(list)
        for struck in self.struck:
            by_fault[struck.fault].append(struck)
        return [
            (name, str(len(times)), *(cell for kind in self._workers for cell in _cells(kind, times)))
            for name, times in sorted(by_fault.items())
        ]


def _cells(kind: str, times: list[Struck]) -> tuple[str, str]:
    failed = Counter[str]()
    for struck in times:
        failed.update({code: n for (of, code), n in struck.failed.items() if of == kind})
    told = ", ".join(f"{n} {code}" for code, n in sorted(failed.items()))
    recovered = [struck.recovery_s[kind] for struck in times if kind in struck.recovery_s]
    return told or "none", f"{max(recovered):.1f} s" if recovered else "not seen"
