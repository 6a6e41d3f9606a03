"""Muon for matrices, AdamW for embeddings, norms and biases; one learning rate schedule for both."""

from __future__ import annotations

from typing import Any

import torch


class Optimizers:
    """Linear warm-up, constant rate, linear decay over the last ``decay`` of ``num_steps``."""

    def __init__(
        self, model: torch.nn.Module, lr: float, num_steps: int, warmup: int = 50, decay: float = 0.5
    ) -> None:
        parameters = dict(model.named_parameters())
        matrices = [p for name, p in parameters.items() if p.ndim == 2 and "embed" not in name]
        others = [p for name, p in parameters.items() if p.ndim != 2 or "embed" in name]
        self._optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Muon(matrices, lr=lr, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, lr=lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
        ]
        self._lr, self._num_steps, self._warmup, self._decay = lr, num_steps, warmup, decay

    def rate(self, step: int) -> float:
        remaining = (self._num_steps - step) / (self._num_steps * self._decay)
        return self._lr * max(0.01, min(1.0, (step + 1) / self._warmup, remaining))

    def step(self, step: int) -> None:
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.rate(step)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def state_dict(self) -> list[dict[str, Any]]:
        return [optimizer.state_dict() for optimizer in self._optimizers]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        for optimizer, state in zip(self._optimizers, states, strict=True):
            optimizer.load_state_dict(state)
