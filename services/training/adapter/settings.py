"""Settings of training an adapter: equal ones, over equal contexts, give equal weights."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from services.training.distillation.settings import DistillationSettings


class AdapterTarget(enum.StrEnum):
    """``teacher``: what the model itself says that reads whole blocks; ``answers``: labelled ones."""

    TEACHER = "teacher"
    ANSWERS = "answers"


@dataclass(frozen=True, slots=True)
class AdapterSettings(DistillationSettings):
    """
    target: what it learns to say. With ``answers`` there is no teacher: ``top_k``, ``answer_tokens`` and
    ``stop`` are not used.
    rank, alpha: of the adapter, which adds ``alpha / rank · B·A·x``.
    targets: linear layers that it changes, by their last names (``q_proj``); none: all in attention and MLP.

    Raises:
        ConfigError: names the setting.
    """

    target: AdapterTarget = AdapterTarget.TEACHER
    rank: int = 16
    alpha: float = 32.0
    targets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.check_distillation()
        self.check_at_least_1("rank")
        self.check_above_0("alpha")
