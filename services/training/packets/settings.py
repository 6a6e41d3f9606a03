"""Settings of training packets: equal ones, over equal contexts, give equal vectors."""

from __future__ import annotations

from dataclasses import dataclass

from services.training.distillation.settings import DistillationSettings
from shared.errors import ConfigError


@dataclass(frozen=True, slots=True)
class PacketSettings(DistillationSettings):
    """
    num_header, num_trailer: vectors in front of and behind every chunk.
    begin_with: text whose tokens' embeddings the vectors begin as, over and over; an end of line disturbs
    least. Empty: embeddings of any tokens, drawn by ``seed``.

    Raises:
        ConfigError: names the setting.
    """

    updates: int = 160
    contexts_per_update: int = 16
    warmup: int = 0
    lr: float = 5e-3
    num_header: int = 8
    num_trailer: int = 8
    begin_with: str = "\n"

    def __post_init__(self) -> None:
        self.check_distillation()
        for name in ("num_header", "num_trailer"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name}: must be at least 0, got {getattr(self, name)}")
        if not self.num_header + self.num_trailer:
            raise ConfigError("num_header: there must be a vector in front of chunks or behind them")
