"""Settings that every recipe of training shares: equal ones, over equal lessons, give equal weights."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from shared.errors import ConfigError


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """A recipe's own settings extend these, and check theirs behind ``check_loop``.

    seed: draws what is held out, and the contexts of every update.
    updates: of the weights; their rate rises over the first ``warmup`` and falls in a line to the last.
    contexts_per_update: whose questions make one update.
    contexts_per_pass: most that are computed at once; 0: all of an update. Halved when memory runs out.
    lr, weight_decay: highest rate of AdamW, and its decay.
    held_out: share of the contexts that are evaluated on and never trained on, at least one.
    evaluate_every, checkpoint_every: updates.

    Raises:
        ConfigError: names the setting.
    """

    seed: int = 0
    updates: int = 200
    warmup: int = 10
    contexts_per_update: int = 4
    contexts_per_pass: int = 0
    lr: float = 1e-3
    weight_decay: float = 0.0
    held_out: float = 0.1
    evaluate_every: int = 20
    checkpoint_every: int = 20

    def __post_init__(self) -> None:
        self.check_loop()

    def check_loop(self) -> None:
        self.check_at_least_1("updates", "contexts_per_update", "evaluate_every", "checkpoint_every")
        self.check_above_0("lr")
        for name in ("warmup", "contexts_per_pass", "weight_decay"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{name}: must be at least 0, got {getattr(self, name)}")
        if not 0 <= self.held_out < 1:
            raise ConfigError(f"held_out: must be at least 0 and below 1, got {self.held_out}")

    def check_at_least_1(self, *names: str) -> None:
        for name in names:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: must be at least 1, got {getattr(self, name)}")

    def check_above_0(self, *names: str) -> None:
        for name in names:
            if not getattr(self, name) > 0:  # also for NaN
                raise ConfigError(f"{name}: must be above 0, got {getattr(self, name)}")

    def rate(self, update: int) -> float:
        return self.lr * min(1.0, (update + 1) / max(1, self.warmup), (self.updates - update) / self.updates)

    def told(self) -> dict[str, str]:
        """Every setting, a recipe's own among them, as text."""
        return {name: _told(value) for name, value in asdict(self).items()}


def _told(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)
