"""Settings of training the auxiliary model: equal ones, over equal contexts, give equal weights."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from services.training.loop_settings import LoopSettings
from shared.errors import ConfigError


class Target(enum.StrEnum):
    """``gain``: what computing a window anew is worth to the answer; ``attention``: what the primary
    itself attends to."""

    GAIN = "gain"
    ATTENTION = "attention"


@dataclass(frozen=True, slots=True)
class AuxiliarySettings(LoopSettings):
    """
    target: what scores shall be.
    pair_windows: so many windows of a question are also tried two by two; below 2: none.
    answer_tokens: longest answer of the reference; stop: text that ends one.
    rows_per_pass: of the primary, while labels are made.

    Raises:
        ConfigError: names the setting.
    """

    updates: int = 400
    target: Target = Target.GAIN
    pair_windows: int = 8
    answer_tokens: int = 32
    stop: tuple[str, ...] = ()
    rows_per_pass: int = 4096

    def __post_init__(self) -> None:
        self.check_loop()
        self.check_at_least_1("answer_tokens", "rows_per_pass")
        if self.pair_windows < 0:
            raise ConfigError(f"pair_windows: must be at least 0, got {self.pair_windows}")
