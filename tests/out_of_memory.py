"""A model whose passes do not fit into memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from shared.engine.model.model import LoadedModel

CPU_IS_FULL = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
    "allocate 400000000000000 bytes. Error code 12 (Cannot allocate memory)"
)
"""As torch says it, in a ``RuntimeError``."""


class Scarce:
    """Its passes run out of memory when ``too_much`` says so, of their rows. ``error``: what they raise."""

    def __init__(
        self,
        model: LoadedModel,
        too_much: Callable[[int], bool],
        error: Callable[[], Exception] = lambda: torch.OutOfMemoryError("no room"),
    ) -> None:
        self._model = model
        self._too_much, self._error = too_much, error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, plan: Any) -> torch.Tensor:
        if self._too_much(len(plan.token_ids)):
            raise self._error()
        return self._model.forward(plan)
