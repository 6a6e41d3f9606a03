"""A snapshot of an engine, for its owner."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot. ``resident_chunk_ids``: least recently used first."""

    resident_chunk_ids: tuple[str, ...] = ()
    resident_bytes: int = 0
    private_bytes: int = 0
    running: int = 0
    paused: int = 0
    waiting: int = 0
    num_steps: int = 0
