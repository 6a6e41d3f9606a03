"""Says what a check found, and runs checks so that none ends the others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cluster.config import QuiltConfig
from cluster.local.state import StackState
from shared.clients.health import ServiceHealth
from shared.errors import KvquiltError

log = logging.getLogger(__name__)
Outcome = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """``warn``: it serves, but not as it could. ``remedy``: what to do; of one that is ok empty."""

    check: str
    outcome: Outcome
    detail: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Examined:
    """Things that are looked at. ``state``: of the stack that runs on the data directory; None: none does.
    ``status``: asks its services how they are."""

    config: QuiltConfig
    environ: Mapping[str, str]
    state: StackState | None = None
    status: Callable[[], list[ServiceHealth]] = list

    @property
    def data_dir(self) -> Path:
        return Path(self.config.data_dir)


Check = Callable[[Examined], tuple[Outcome, str, str]]
"""Outcome, detail and remedy."""


def ok(detail: str) -> tuple[Outcome, str, str]:
    return "ok", detail, ""


def run_checks(checks: Mapping[str, Check], installation: Examined) -> Iterator[Diagnosis]:
    """In their order. One that breaks has failed, and says how."""
    for name, check in checks.items():
        try:
            yield Diagnosis(name, *check(installation))
        except KvquiltError as error:
            yield Diagnosis(name, "fail", error.detail, "the detail names what to change")
        except Exception as error:
            log.debug("the check %s broke", name, exc_info=True)
            yield Diagnosis(name, "fail", f"the check itself failed: {type(error).__name__}", "report this")


def worst(findings: Sequence[Diagnosis]) -> Outcome:
    outcomes = {finding.outcome for finding in findings}
    return "fail" if "fail" in outcomes else "warn" if "warn" in outcomes else "ok"
