"""Keeps answers as they come, and knows what has been asked."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shared.measuring.answer_file import AnswerFile

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
    kl: mean divergence of the first tokens' distributions from those of ``full`` over the whole blocks, in
    nats. alike: agreement with the reference's answer (``shared.measuring.agreement``). None: kept by a
    version that did not measure it.
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
    kl: float | None = None
    alike: float | None = None


class Ledger:
    """A line of an ``AnswerFile`` for each kind, mode and context."""

    def __init__(self, path: Path | None, settings: Mapping[str, Any]) -> None:
        """Raises as ``AnswerFile``."""
        self._file = AnswerFile(path, settings)
        self.answers: list[GradedAnswer] = []
        self._held: set[tuple[str, str, int]] = set()
        for line in self._file.lines:
            self._keep([GradedAnswer(**answer) for answer in line])

    def holds(self, kind: str, mode: str, context: int) -> bool:
        return (kind, mode, context) in self._held

    def add(self, answers: Sequence[GradedAnswer]) -> None:
        """All of one kind about one context in one mode."""
        self._keep(answers)
        self._file.add([dataclasses.asdict(answer) for answer in answers])

    def _keep(self, answers: Sequence[GradedAnswer]) -> None:
        self.answers += answers
        self._held |= {(answer.kind, answer.mode, answer.context) for answer in answers}
