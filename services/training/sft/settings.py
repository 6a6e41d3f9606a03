"""Settings of fine-tuning: equal ones, over equal samples, give equal weights."""

from __future__ import annotations

from dataclasses import dataclass

from services.training.loop_settings import LoopSettings
from shared.errors import ConfigError
from shared.generation.modes import GoesBy, ReuseMode


@dataclass(frozen=True, slots=True)
class SftSettings(LoopSettings):
    """The defaults of rate, samples per update and optimizer are TurboRAG's. A "context" is a sample: a
    context with its questions, or a conversation.

    reuse: the mode that places chunks; ``full`` makes the naive twin.
    rank: of a LoRA on all rows, merged into the weights; 0: the whole model is trained.
    alpha, targets: of the LoRA, see ``AdapterSettings``.
    recompute_activations: computes a layer again for its gradients, instead of keeping what it needs.

    Raises:
        ConfigError: names the setting.
    """

    contexts_per_update: int = 256
    contexts_per_pass: int = 4
    lr: float = 1e-5
    weight_decay: float = 0.01
    held_out: float = 0.02
    reuse: ReuseMode = ReuseMode.REORDERED
    rank: int = 0
    alpha: float = 32.0
    targets: tuple[str, ...] = ()
    recompute_activations: bool = False

    def __post_init__(self) -> None:
        self.check_loop()
        self.check_above_0("alpha")
        if self.rank < 0:
            raise ConfigError(f"rank: must be at least 0, which trains the whole model, got {self.rank}")
        row = self.reuse.row
        if row.stored and (row.weighed or row.goes_by is not GoesBy.NOTHING):
            raise ConfigError(
                f"reuse: a model is trained under reordered, composite or full, not {self.reuse}"
            )
