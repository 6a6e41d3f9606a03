"""Keeps a peer in a process of its own, in an environment of its own, and asks it by lines of JSON."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from cluster.paths import PROJECT_ROOT
from shared.errors import ConfigError, InternalError

_ERROR_CHARS = 2000


class PeerProcess(AbstractContextManager["PeerProcess"]):
    """``command``: answers lines (``answering``).

    Raises:
        InternalError: it ended; with the end of what it said.
    """

    def __init__(self, command: Sequence[str | Path]) -> None:
        self._said = TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            cwd=PROJECT_ROOT,
        )
        try:
            self.version = str(self._answer())
        except BaseException:
            self.__exit__()
            raise

    @classmethod
    def in_tools(cls, tools: Path, module: str, *args: object) -> PeerProcess:
        """``tools``: the directory of the environment that the module runs in.

        Raises:
            ConfigError: there is none.
        """
        python = tools / "bin" / "python"
        if not python.exists():
            raise ConfigError(f"--tools: there is no {python}; run `make peers`")
        return cls([python, "-m", module, *map(str, args)])

    def ask(self, do: str, **arguments: Any) -> Any:
        """
        Raises:
            InternalError: it could not, or ended.
        """
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # why, it said
            self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self._process.stdin.flush()
        return self._answer()

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._said.close()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._said.seek(0)
            said = self._said.read().decode(errors="replace").strip()[-_ERROR_CHARS:]
            raise InternalError(f"the peer ended with {self._process.returncode}: {said}")
        answer = json.loads(line)
        if "error" in answer:
            raise InternalError(f"the peer: {answer['error']}")
        return answer["value"]
