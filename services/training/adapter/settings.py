"""Settings of training an adapter: equal ones, over equal contexts, give equal weights."""

from __future__ import annotations

from dataclasses import dataclass

from services.training.distillation.settings import DistillationSettings


@dataclass(frozen=True, slots=True)
class AdapterSettings(DistillationSettings):
    """
    rank, alpha: of the adapter, which adds ``alpha / rank · B·A·x``.
    targets: linear layers that it changes, by their last names (``q_proj``); none: all in attention and MLP.

    Raises:
        ConfigError: names the setting.
    """

    rank: int = 16
    alpha: float = 32.0
    targets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.check_distillation()
        self.check_at_least_1("rank")
        self.check_above_0("alpha")
