"""Keeps what a long run was answered, a line of JSON at a time, so that it can end at any time and go on
later."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shared.errors import InvalidRequest


class AnswerFile:
    """The settings of a run, and what was added since it first began: ``lines``. ``path`` None: nothing is
    kept."""

    def __init__(self, path: Path | None, settings: Mapping[str, Any]) -> None:
        """
        Raises:
            InvalidRequest: the file holds answers that were made with other settings, or something else.
        """
        self.lines: list[Any] = []
        self._path = path
        if path is None:
            return
        head = json.dumps(settings)
        try:
            # an unfinished line ends a killed run
            lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.is_file() else []
            if lines:
                _compare(path, json.loads(lines[0]), json.loads(head))
            self.lines = [json.loads(line) for line in lines[1:]]
        except (ValueError, TypeError, AttributeError):
            raise InvalidRequest(f"--answers: {path} is no file of answers; name another") from None
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join([head, *lines[1:], ""]), encoding="utf-8")

    def add(self, line: Any) -> None:
        """Values of JSON."""
        self.lines.append(line)
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


def _compare(path: Path, kept: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    for key in {**ours, **kept}:
        if ours.get(key) != kept.get(key):
            raise InvalidRequest(
                f"--answers: {path} holds answers with {key} {kept.get(key)!r}, not {ours.get(key)!r}; "
                "name another file"
            )
