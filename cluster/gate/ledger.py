"""Keeps answers as they come, a line of JSON each, so that a run can end at any time and go on later."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shared.errors import InvalidRequest

FIRST_LAYER, LAST_LAYER = "first_layer", "last_layer"


@dataclass(frozen=True, slots=True)
class GradedAnswer:
    """
    kind: of the task (``tasks.TaskKind``), with ``_many`` behind it in contexts of many documents.
    mode: ``Arm.label``.
    correct: the value that was asked for stands in the text.
    num_tokens: of the chunks that were retrieved.
    selected: tokens of the context that were recomputed for this question.
    found: share of the answer's tokens in the context that are among them; None where the text does not show
    it in one piece.
    agreement: (KL divergence in nats, Jaccard index of best tokens) with the attention of the primary's last
    layer: by reading that of the auxiliary, and by ``FIRST_LAYER`` that of the primary's own first layer.
    """

    kind: str
    mode: str
    context: int
    question: int
    correct: bool
    text: str
    num_tokens: int
    selected: float
    found: float | None = None
    agreement: Mapping[str, tuple[float, float]] = field(default_factory=dict)


class Ledger:
    """A file with a line per kind, mode and context; None keeps answers in memory alone."""

    def __init__(self, path: Path | None, settings: Mapping[str, Any]) -> None:
        """
        Raises:
            InvalidRequest: the file holds answers that were made with other settings.
        """
        self.answers: list[GradedAnswer] = []
        self._held: set[tuple[str, str, int]] = set()
        self._path = path
        if path is None:
            return
        head = json.dumps(settings)
        # an unfinished line ends a killed run
        lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.is_file() else []
        if lines:
            _compare(path, json.loads(lines[0]), json.loads(head))
        for line in lines[1:]:
            self._keep([GradedAnswer(**answer) for answer in json.loads(line)])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join([head, *lines[1:], ""]), encoding="utf-8")

    def holds(self, kind: str, mode: str, context: int) -> bool:
        return (kind, mode, context) in self._held

    def add(self, answers: Sequence[GradedAnswer]) -> None:
        """All of one kind about one context in one mode."""
        self._keep(answers)
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps([dataclasses.asdict(answer) for answer in answers]) + "\n")

    def _keep(self, answers: Sequence[GradedAnswer]) -> None:
        self.answers += answers
        self._held |= {(answer.kind, answer.mode, answer.context) for answer in answers}


def _compare(path: Path, kept: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    for key in {**ours, **kept}:
        if ours.get(key) != kept.get(key):
            raise InvalidRequest(
                f"--answers: {path} holds answers with {key} {kept.get(key)!r}, not {ours.get(key)!r}; "
                "name another file"
            )
