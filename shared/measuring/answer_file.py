"""Keeps what a long run was answered, a line of JSON at a time, so that it can end at any time and go on
later."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shared.errors import InvalidRequest, StorageFull


class AnswerFile:
    """The settings of a run, and what was added since it first began: ``lines``. ``path`` None: nothing is
    kept."""

    def __init__(self, path: Path | None, settings: Mapping[str, Any]) -> None:
        """
        Raises:
            InvalidRequest: the file holds answers that were made with other settings, or something else; or
            it cannot be used.
        """
        self.lines: list[Any] = []
        self._path = path
        if path is None:
            return
        try:
            self._open(path, json.dumps(settings))
        except OSError as error:
            raise InvalidRequest(
                f"--answers: {path} cannot be used: {error.strerror or error}; name another file"
            ) from error

    def add(self, line: Any) -> None:
        """Values of JSON.

        Raises:
            StorageFull: it cannot be written; what was added before is kept.
        """
        self.lines.append(line)
        if self._path is None:
            return
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise StorageFull(
                f"--answers: {self._path} cannot be written: {error.strerror or error}; make room, and the "
                "same command goes on from what is kept"
            ) from error

    def _open(self, path: Path, head: str) -> None:
        """What is kept stays where it is: whoever is killed here, too, loses nothing."""
        data = path.read_bytes() if path.is_file() else b""
        num_whole = data.rfind(b"\n") + 1  # an unfinished line ends a killed run
        try:
            lines = data[:num_whole].decode().split("\n")[:-1]
            if lines:
                _compare(path, json.loads(lines[0]), json.loads(head))
            elif not head.startswith(data.decode()):
                raise ValueError("somebody else's")
            self.lines = [json.loads(line) for line in lines[1:]]
        except (ValueError, TypeError, AttributeError):
            raise InvalidRequest(f"--answers: {path} is no file of answers; name another") from None
        if not lines:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(head + "\n", encoding="utf-8")
        elif num_whole < len(data):
            os.truncate(path, num_whole)


def _compare(path: Path, kept: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    for key in {**ours, **kept}:
        if ours.get(key) != kept.get(key):
            raise InvalidRequest(
                f"--answers: {path} holds answers with {key} {kept.get(key)!r}, not {ours.get(key)!r}; "
                "name another file"
            )
