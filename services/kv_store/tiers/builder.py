"""Builds the tiers that a node has of its own, from settings and from what is there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from services.kv_store.blobs.disk import Disk, VolatileDisk
from services.kv_store.config import KvStoreConfig
from services.kv_store.tiers.local import LocalTier
from services.kv_store.tiers.memory_directory import MemoryDirectory, modest_capacity
from shared.kv_format import SealKeys


class Claimed(Protocol):
    """A ``MemoryDirectory``."""

    path: Path

    def remove(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Machine:
    """Disks, memory and time that the tiers stand on: seams for disks that fill up or die, and for clocks."""

    disk: Disk = field(default_factory=Disk)
    memory_disk: Disk = field(default_factory=VolatileDisk)
    claim: Callable[[Path], Claimed | None] = MemoryDirectory.claim
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


class OwnTiers:
    """``objects``: whether there is an object store, so that primary copies on the disk only wait for it."""

    def __init__(
        self,
        directory: Path,
        config: KvStoreConfig,
        objects: bool,
        machine: Machine | None = None,
        keys: SealKeys | None = None,
    ) -> None:
        """Blocks: looks at every file.

        Raises:
            StorageFull, InternalError: the directory cannot be used.
        """
        machine = machine or Machine()
        self.disk = LocalTier(
            "disk",
            directory,
            disk=machine.disk,
            primary_name="pending" if objects else "",
            capacity_bytes=config.disk_capacity_bytes,
            lease_s=config.lease_s,
            clock=machine.clock,
            keys=keys,
            floor_share=config.resident_floor,
        )
        self.memory: LocalTier | None = None
        self._claimed: Claimed | None = None
        capacity = config.memory.capacity_bytes
        if capacity != 0:
            self._claimed = machine.claim(config.memory.path_for(directory))
        if self._claimed is not None:
            if capacity is None:
                capacity = modest_capacity(self._claimed.path)
            self.memory = LocalTier(
                "memory",
                self._claimed.path,
                disk=machine.memory_disk,
                capacity_bytes=capacity,
                lease_s=config.lease_s,
                clock=machine.clock,
                keys=keys,
                floor_share=config.resident_floor,
            )
            self._forget_strangers(self.memory)

    def remove_memory(self) -> None:
        """At the end of the agent: nothing of it stays in memory."""
        if self._claimed is not None:
            self._claimed.remove()
            self._claimed = None

    def _forget_strangers(self, memory: LocalTier) -> None:
        """Removes what a killed agent left in memory and the disk does not have: it may be another store's
        that had its data in the same place, or deleted ones."""
        for copy in memory.copies():
            if self.disk.find(copy.chunk_id) is None:
                memory.remove(copy.chunk_id)
