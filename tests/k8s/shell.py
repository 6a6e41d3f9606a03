"""Commands that the cluster tests run, what they said when they failed, and what is told meanwhile."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from typing import TypeVar

ResultT = TypeVar("ResultT")


class CommandFailed(AssertionError):
    """With everything that the command said."""


def tell(text: str) -> None:
    """Progress for whoever waits: these tests take minutes."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def run(*command: str, stdin: str = "", timeout_s: float = 120.0) -> str:
    """What it printed.

    Raises:
        CommandFailed: its exit code is not 0.
    """
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    if done.returncode:
        raise CommandFailed(
            f"`{' '.join(command)}` ended with {done.returncode}:\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
        )
    return done.stdout


def works(*command: str) -> bool:
    """Whether there is such a command and it ends well."""
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0


def wait_for(
    probe: Callable[[], ResultT | None], what: str, timeout_s: float, period_s: float = 1.0
) -> ResultT:
    """The first answer of ``probe`` that is not None; what it is waited for is told every half minute."""
    began_s = told_s = time.monotonic()
    while (found := probe()) is None:
        now_s = time.monotonic()
        if now_s - began_s > timeout_s:
            raise AssertionError(f"no {what} within {timeout_s:g} s")
        if now_s - told_s > 30:
            told_s = now_s
            tell(f"still waiting for {what} ({now_s - began_s:.0f} s)")
        time.sleep(period_s)
    return found
