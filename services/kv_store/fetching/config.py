"""Settings of bringing chunks to a node."""

from __future__ import annotations

from dataclasses import dataclass

from shared.config import check_above_zero, check_least


@dataclass(frozen=True, slots=True)
class FetchConfig:
    """``concurrency``: ranged reads at a time, of all chunks together. ``part_bytes``: of one of them, but no
    less than a layer; a layer can be used as soon as its last byte is there, so large parts keep nobody
    waiting, and fewer requests cost less. ``timeout_s``: the longest that a reader waits for a chunk's frame,
    and for more bytes while parts are being read; after that the chunk counts as absent. ``copy_from_miss``:
    which miss of a chunk brings a copy to this node's disk; at the ones before, whoever needs the chunk
    receives it from the object store into its own memory, which takes less time and writes nothing."""

    concurrency: int = 8
    part_bytes: int = 32 << 20
    timeout_s: float = 10.0
    copy_from_miss: int = 2

    def __post_init__(self) -> None:
        check_least(self, 1, "concurrency", "part_bytes", "copy_from_miss")
        check_above_zero(self, "timeout_s")
