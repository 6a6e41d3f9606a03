"""Has a clock of the day that can be set, for the processes that are started with it: they see another time
than the rest of the machine (``stepped_clock.c``, compiled once on a machine)."""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import sys
from pathlib import Path

from load_tests.servers.programs import cached, locked, run_once

_SOURCE = Path(__file__).with_suffix(".c")
_NS = 10**9


class NoSteppedClock(Exception):
    """None can be had here; says why."""


class SteppedClock:
    """``environment``: of the processes that shall go by it; theirs inherit it. ``set`` moves all of them at
    once, those that run already too."""

    def __init__(self, path: Path) -> None:
        """``path``: where what is added to the time is written.

        Raises:
            NoSteppedClock: says why.
        """
        self._path = path
        self.set(0.0)
        preloaded = [str(_library()), *filter(None, [os.environ.get("LD_PRELOAD")])]
        self.environment = {"LD_PRELOAD": ":".join(preloaded), "STEPPED_CLOCK_FILE": str(path)}

    def set(self, ahead_s: float) -> None:
        """How far it is ahead of the machine's, or behind it. In one step: eight bytes of a page that they
        all map."""
        with open(self._path, "r+b" if self._path.exists() else "wb", buffering=0) as file:
            file.write(struct.pack("=q", round(ahead_s * _NS)))

    def close(self) -> None:
        """Sets it right."""
        self.set(0.0)


def _library() -> Path:
    compiler = shutil.which("cc")
    if sys.platform != "linux" or compiler is None:
        raise NoSteppedClock("a clock that can be set needs Linux and a C compiler")
    folder = cached(f"stepped-clock-{hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:12]}")
    library = folder / "stepped_clock.so"
    with locked(folder):
        if not library.exists():
            built = folder / "building.so"
            options = ["-O2", "-shared", "-fPIC", "-ldl", "-lpthread"]
            try:
                run_once([compiler, str(_SOURCE), "-o", str(built), *options], dict(os.environ))
            except RuntimeError as error:
                raise NoSteppedClock(f"a clock that can be set cannot be compiled: {error}") from error
            os.replace(built, library)
    return library
