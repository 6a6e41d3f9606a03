"""Keeps what a running local stack leaves in its data directory for others to find.

``run/lock`` is held (flock) by the supervisor as long as it lives, so a crash can never leave a stale one;
``run/state.json`` says how far it is. The lock decides whether a stack runs, the file only describes it.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal

from shared.errors import Conflict
from shared.private_files import DIRECTORY_MODE, make_private_directory, open_private

RAY_DIR_PREFIX = "kvquilt-"
Phase = Literal["starting", "ready", "stopping", "failed"]


@dataclass(frozen=True, slots=True)
class StackState:
    """``services``: application to its state in words. ``reason``: why a stack failed. ``ray_dir``: Ray's
    scratch space. ``drain_s``: how long it may take, once told to stop, to finish what was asked.
    ``addresses``: of the applications that another cluster serves. ``secret_file``: by which its owner calls
    it; ``keys_file``: of those that others call it by. ``certificate``: the file of the one that it shows,
    for ``server_name``, where callers are answered by TLS."""

    pid: int
    phase: Phase
    target: str
    http: str
    log_path: str
    model: str
    ray_dir: str
    services: dict[str, str] = field(default_factory=dict)
    reason: str = ""
    drain_s: float = 0.0
    addresses: dict[str, str] = field(default_factory=dict)
    secret_file: str = ""
    keys_file: str = ""
    certificate: str = ""
    server_name: str = ""


@dataclass(frozen=True, slots=True)
class RunDirectory:
    data_dir: Path

    @property
    def path(self) -> Path:
        return self.data_dir / "run"

    @property
    def log_path(self) -> Path:
        return self.data_dir / "logs" / "kvquilt.log"

    @property
    def _state_path(self) -> Path:
        return self.path / "state.json"

    @property
    def _lock_path(self) -> Path:
        return self.path / "lock"

    def make(self) -> None:
        """The directories, for nobody but their owner. A data directory that is there already stays as it
        is."""
        self.data_dir.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
        for directory in (self.path, self.log_path.parent):
            make_private_directory(directory)
        # where earlier versions left the settings, a token among them
        (self.path / "config.json").unlink(missing_ok=True)

    def lock(self) -> IO[str]:
        """Held until the file is closed or the process ends.

        Raises:
            Conflict: a stack runs on this data directory.
        """
        self.make()
        file = open(self._lock_path, "a+", opener=open_private)  # noqa: SIM115  (held open on purpose)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise Conflict(f"another kvquilt uses {self.data_dir}") from None
        return file

    def is_locked(self) -> bool:
        if not self._lock_path.exists():
            return False
        try:
            self.lock().close()
        except Conflict:
            return True
        return False

    def read(self) -> StackState | None:
        try:
            return StackState(**json.loads(self._state_path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def running(self) -> StackState | None:
        """The state of a stack that lives; what a dead one left behind does not count."""
        return self.read() if self.is_locked() else None

    def write(self, state: StackState) -> None:
        temporary = self._state_path.with_suffix(".tmp")
        with open(temporary, "w", encoding="utf-8", opener=open_private) as file:
            json.dump(dataclasses.asdict(state), file, indent=1)
        os.replace(temporary, self._state_path)

    def clear(self) -> None:
        """Removes what a stack that has ended, or was killed, left behind."""
        state = self.read()
        if state and Path(state.ray_dir).name.startswith(RAY_DIR_PREFIX):
            shutil.rmtree(state.ray_dir, ignore_errors=True)
        self._state_path.unlink(missing_ok=True)
