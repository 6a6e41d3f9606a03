"""Builds the tiers that a node has of its own, from settings and from what is there."""

from __future__ import annotations

import logging
from pathlib import Path

from services.kv_store.blobs.disk import VolatileDisk
from services.kv_store.config import KvStoreConfig
from services.kv_store.tiers.local import LocalTier
from services.kv_store.tiers.memory_directory import MemoryDirectory, modest_capacity

log = logging.getLogger(__name__)


class OwnTiers:
    """``objects``: whether there is an object store, so that what is kept on the disk only waits for it."""

    def __init__(self, directory: Path, config: KvStoreConfig, objects: bool) -> None:
        """Blocks: looks at every file.

        Raises:
            StorageFull, InternalError: the directory cannot be used.
        """
        self.disk = LocalTier(
            "disk",
            directory,
            keeps=True,
            kept_name="pending" if objects else "",
            capacity_bytes=config.disk_capacity_bytes,
            lease_s=config.lease_s,
        )
        self.memory: LocalTier | None = None
        self._claimed = self._claim(directory, config)
        if self._claimed is not None:
            capacity = config.memory.capacity_bytes
            if capacity is None:
                capacity = modest_capacity(self._claimed.path)
            self.memory = LocalTier(
                "memory",
                self._claimed.path,
                disk=VolatileDisk(),
                capacity_bytes=capacity,
                lease_s=config.lease_s,
            )

    def remove_memory(self) -> None:
        """At the end of the agent: nothing of it stays in memory."""
        if self._claimed is not None:
            self._claimed.remove()
            self._claimed = None

    def _claim(self, directory: Path, config: KvStoreConfig) -> MemoryDirectory | None:
        if config.memory.capacity_bytes == 0:
            return None
        return MemoryDirectory.claim(config.memory.path_for(directory))
