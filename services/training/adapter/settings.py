"""Settings of training an adapter: equal ones, over equal contexts, give equal weights."""

from __future__ import annotations

from dataclasses import dataclass

from shared.errors import ConfigError
from shared.generation.modes import GoesBy, ReuseMode


@dataclass(frozen=True, slots=True)
class AdapterSettings:
    """
    updates: of the weights; their rate rises over the first ``warmup`` and falls in a line to the last.
    contexts_per_update: whose questions make one update.
    rank, alpha: of the adapter, which adds ``alpha / rank · B·A·x``.
    targets: linear layers that it changes, by their last names (``q_proj``); none: all in attention and MLP.
    lr: highest rate of AdamW.
    reuse: the mode that places chunks.
    top_k: so many of the teacher's likeliest tokens are kept, and the rest as one; at least the whole
    vocabulary: all.
    answer_tokens: longest answer of the teacher; stop: text that ends one.
    held_out: share of the contexts that are evaluated on and never trained on, at least one.
    evaluate_every, checkpoint_every: updates.

    Raises:
        ConfigError: names the setting.
    """

    seed: int = 0
    updates: int = 200
    warmup: int = 10
    contexts_per_update: int = 4
    rank: int = 16
    alpha: float = 32.0
    targets: tuple[str, ...] = ()
    lr: float = 1e-3
    reuse: ReuseMode = ReuseMode.REORDERED
    top_k: int = 128
    answer_tokens: int = 32
    stop: tuple[str, ...] = ()
    held_out: float = 0.1
    evaluate_every: int = 20
    checkpoint_every: int = 20

    def __post_init__(self) -> None:
        counts = ("updates", "contexts_per_update", "rank", "top_k", "answer_tokens")
        for name in (*counts, "evaluate_every", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: must be at least 1, got {getattr(self, name)}")
        for name in ("alpha", "lr"):
            if not getattr(self, name) > 0:  # also for NaN
                raise ConfigError(f"{name}: must be above 0, got {getattr(self, name)}")
        if self.warmup < 0:
            raise ConfigError(f"warmup: must be at least 0, got {self.warmup}")
        if not 0 <= self.held_out < 1:
            raise ConfigError(f"held_out: must be at least 0 and below 1, got {self.held_out}")
        row = self.reuse.row
        if not row.stored or row.weighed or row.goes_by is not GoesBy.NOTHING:
            raise ConfigError(f"reuse: an adapter is trained under reordered or composite, not {self.reuse}")

    def rate(self, update: int) -> float:
        return self.lr * min(1.0, (update + 1) / max(1, self.warmup), (self.updates - update) / self.updates)
