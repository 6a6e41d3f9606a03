"""Finds and ends processes of one session (``setsid``) by the kernel's own book-keeping: Linux's /proc."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

GRACE_S = 5.0


def session_members(session_id: int) -> list[int]:
    """Living processes of the session but its leader. Empty where there is no /proc."""
    members = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # After the command's closing parenthesis: state, ppid, pgrp, session.
            state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(session) == session_id and int(entry.name) != session_id and state != "Z":
                members.append(int(entry.name))
    return members


def end_session(session_id: int) -> None:
    """Ends what is left of the session: asks first, kills after ``GRACE_S``, and waits until it is gone."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline_s = time.monotonic() + GRACE_S
        _signal_all(session_id, number)
        while session_members(session_id) and time.monotonic() < deadline_s:
            time.sleep(0.1)


def end_orphans(session_id: int, *marks: str) -> None:
    """Ends processes whose command holds one of ``marks``, of a session whose leader was killed. While
    members live, the kernel gives the leader's number to nobody else."""
    if not has_ended(session_id):
        return
    for pid in session_members(session_id):
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace")
            if any(mark in command for mark in marks):
                os.kill(pid, signal.SIGKILL)


def has_ended(pid: int) -> bool:
    """Also when whoever started it has not waited for it yet."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except ProcessLookupError:
        return True
    except OSError:  # somebody else's, or there is no /proc
        return False


def _signal_all(session_id: int, number: signal.Signals) -> None:
    for pid in session_members(session_id):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
