"""Runs a server in a process of its own that is gone with its starter."""

from __future__ import annotations

import os
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from cluster.paths import PROJECT_ROOT

_START_TIMEOUT_S = 60.0
# Ends the server when the starter ends, even by SIGKILL: then nobody holds the other end of the pipe any
# more.
_GUARD = '"$@" </dev/null & server=$!; trap "kill -9 $server" EXIT; cat >/dev/null'


class GuardedServer(ABC):
    """Runs between ``start`` and ``stop``, as often as one likes. ``origin``: which server it is, for
    errors."""

    def __init__(self, origin: str, log: Path) -> None:
        self.origin = origin
        self._log = log
        self._guard: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def _command(self) -> Sequence[str]: ...

    @abstractmethod
    def _answers(self) -> bool:
        """Whether it does its work by now."""

    def _variables(self) -> dict[str, str]:
        """Of its environment, beside the starter's."""
        return {}

    def start(self) -> None:
        """Returns when it answers.

        Raises:
            RuntimeError: it did not.
        """
        with open(self._log, "ab") as log_file:
            self._guard = subprocess.Popen(
                ["sh", "-c", _GUARD, "sh", *self._command()],
                cwd=PROJECT_ROOT,
                stdin=subprocess.PIPE,
                stdout=log_file,
                stderr=log_file,
                env=os.environ | self._variables(),
                start_new_session=True,  # Ctrl-C is for the tests; the guard ends the server after them
            )
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """At once, in the middle of whatever it does."""
        if self._guard is not None:
            self._guard.communicate()  # closes its end of the pipe
            self._guard = None

    def close(self) -> None:
        """For good."""
        self.stop()

    @property
    def _session(self) -> int:
        """The id of its processes' session, and group."""
        assert self._guard is not None
        return self._guard.pid

    def _wait(self) -> None:
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        while not self._answers():
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"{self.origin} did not start:\n{self._log.read_text()[-2000:]}")
            time.sleep(0.05)
