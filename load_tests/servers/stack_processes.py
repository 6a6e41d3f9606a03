"""Finds the processes of a running local stack, to kill them and to see what they hold."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cluster.local.processes import session_members

AGENT, PROXY = "agent", "proxy"
_TITLES = {AGENT: "ray::AgentActor", PROXY: "ray::ProxyActor"}
_STARTED_S = 60.0
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """What one process holds. ``memory_bytes``: resident."""

    title: str
    threads: int
    files: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class StackProcesses:
    """``session_id``: the supervisor's pid. A role is an application's name, or ``AGENT`` or ``PROXY``."""

    session_id: int

    def of(self, role: str) -> list[int]:
        """The processes that serve it now."""
        title = _TITLES.get(role, f"ray::ServeReplica:{role}:")
        return [pid for pid in session_members(self.session_id) if _title(pid).startswith(title)]

    def wait_for(self, role: str) -> int:
        """One of them, as soon as there is one.

        Raises:
            TimeoutError: there is none within a minute.
        """
        deadline_s = time.monotonic() + _STARTED_S
        while time.monotonic() < deadline_s:
            if found := self.of(role):
                return found[0]
            time.sleep(_POLL_S)
        raise TimeoutError(f"no process serves {role} within {_STARTED_S:g} s")

    def held(self) -> dict[int, ProcessUse]:
        """By pid, of all that live, the supervisor too."""
        found = {}
        for pid in [self.session_id, *session_members(self.session_id)]:
            with contextlib.suppress(OSError, ValueError):  # it has just ended
                found[pid] = _held(pid)
        return found


def grown(
    before: Mapping[int, ProcessUse], after: Mapping[int, ProcessUse], of: Callable[[ProcessUse], int]
) -> tuple[int, int]:
    """The sums before and after, of the processes that lived all the time."""
    both = [pid for pid, held in before.items() if pid in after and after[pid].title == held.title]
    return sum(of(before[pid]) for pid in both), sum(of(after[pid]) for pid in both)


def _held(pid: int) -> ProcessUse:
    process = Path(f"/proc/{pid}")
    status = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines())
    return ProcessUse(
        _title(pid).partition(" ")[0],
        int(status["Threads"]),
        sum(1 for _ in (process / "fd").iterdir()),
        int(status.get("VmRSS", "0 kB").split()[0]) << 10,
    )


def _title(pid: int) -> str:
    """Empty where it has ended."""
    with contextlib.suppress(OSError):
        command = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace")
        return command.replace("\0", " ").strip()
    return ""
