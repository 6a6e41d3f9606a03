"""Measures the memory that a device has left, and decides what of it the pool of chunk segments may take."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Protocol

import torch

from shared.engine_config import GIB, EngineConfig
from shared.errors import Overloaded

_OF_A_GPU = 0.8  # of what is free once the weights are there; the rest is for steps
_OF_A_HOST, _MOST_OF_A_HOST = 0.5, 4 * GIB  # others live there, too


class Memory(Protocol):
    def free_bytes(self) -> int: ...

    def trim(self) -> None:
        """Returns what is freed, but still kept for later, to the device."""
        ...


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    device: torch.device

    def free_bytes(self) -> int:
        if self.device.type == "cuda":
            return int(torch.cuda.mem_get_info(self.device)[0])
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def trim(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def pool_bytes(config: EngineConfig, device: torch.device, memory: Memory) -> int:
    """Returns what the setting says or, unset, what is free, less the room for private KV."""
    if config.resident_bytes is not None:
        return config.resident_bytes
    free = memory.free_bytes()
    if device.type == "cpu":
        return max(1, min(_MOST_OF_A_HOST, int(_OF_A_HOST * free)))
    return max(1, int(_OF_A_GPU * free) - config.private_bytes)


def out_of_memory() -> Overloaded:
    return Overloaded(
        "the device ran out of memory on this request, with all unused KV given up; retry later, ask for "
        "less at once, or lower engine.max_step_tokens, engine.resident_bytes or engine.private_bytes"
    )
