"""Settings that every recipe of self-distillation shares."""

from __future__ import annotations

from dataclasses import dataclass

from services.training.loop_settings import LoopSettings
from shared.errors import ConfigError
from shared.generation.modes import GoesBy, ReuseMode


@dataclass(frozen=True, slots=True)
class DistillationSettings(LoopSettings):
    """
    reuse: the mode that places chunks.
    top_k: so many of the teacher's likeliest tokens are kept, and the rest as one; at least the whole
    vocabulary: all.
    answer_tokens: longest answer of the teacher; stop: text that ends one.

    Raises:
        ConfigError: names the setting.
    """

    reuse: ReuseMode = ReuseMode.REORDERED
    top_k: int = 128
    answer_tokens: int = 32
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.check_distillation()

    def check_distillation(self) -> None:
        self.check_loop()
        self.check_at_least_1("top_k", "answer_tokens")
        row = self.reuse.row
        if not row.stored or row.weighed or row.goes_by is not GoesBy.NOTHING:
            raise ConfigError(
                f"reuse: what reads stored chunks is trained under reordered or composite, not {self.reuse}"
            )
