"""Builds programs for tests and benchmarks once on a machine, and keeps them in ``kvquilt`` below
``$XDG_CACHE_HOME`` (default ``~/.cache``)."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_TIMEOUT_S = 1800.0


def cached(name: str) -> Path:
    """The folder of that name among what is kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvquilt" / name


def build_go_program(go: str, module: str, version: str) -> Path:
    """The program of ``module``, called like the last part of its path; the first call may take minutes, and
    others wait for it.

    Raises:
        RuntimeError: it cannot be built; says why.
    """
    name = module.rpartition("/")[2]
    folder = cached(f"{name}-{version}")
    program = folder / name
    with locked(folder):
        if not program.exists():
            building = folder / "building"
            run_once(
                [go, "install", f"{module}@{version}"],
                os.environ | {"GOBIN": str(building), "GOFLAGS": "", "CGO_ENABLED": "0"},
            )
            os.replace(building / name, program)
    return program


def run_once(command: list[str], environment: dict[str, str]) -> None:
    """
    Raises:
        RuntimeError: the command failed; with the end of what it said.
    """
    print(f"once on this machine: {' '.join(command)}", file=sys.stderr, flush=True)
    result = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )
    if result.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{result.stderr[-2000:]}")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process at a time; ``folder`` is made."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
