"""Lets disks and shared memory be full."""

from __future__ import annotations

import asyncio

from load_tests.cluster_soak.fault import DOWN_S, WRITES, Fault, Strike
from load_tests.servers.small_disk import SmallDisk
from shared.errors import StorageFull

DISK_FULL, DISK_FULL_KILLED = f"disk full for {DOWN_S:g} s", "disk full, agent and ingestion killed"
MEMORY_FULL = f"shared memory full for {DOWN_S:g} s"
ON_DISK, IN_SHARED_MEMORY = (DISK_FULL, DISK_FULL_KILLED), (MEMORY_FULL,)
_TAKEN_AGAIN_S = 0.05


def disk_faults(disk: SmallDisk, killing: Strike) -> list[Fault]:
    """``disk``: of the stack's data directory. Who writes may be told that it is full, which nobody calls
    retryable: somebody has to make room."""
    told = frozenset({(WRITES, StorageFull.code)})
    return [
        Fault(DISK_FULL, lambda: full(disk), told),
        Fault(DISK_FULL_KILLED, lambda: full(disk, killing), told),
    ]


def shared_memory_faults(shared_memory: SmallDisk) -> list[Fault]:
    """``shared_memory``: of the memory tier, which has copies only: nobody may be told of it."""
    return [Fault(MEMORY_FULL, lambda: full(shared_memory))]


async def full(disk: SmallDisk, meanwhile: Strike | None = None) -> None:
    """What the stack itself gives free meanwhile is taken, too."""

    async def keep_full() -> None:
        while True:
            await asyncio.to_thread(disk.fill)
            await asyncio.sleep(_TAKEN_AGAIN_S)

    await asyncio.to_thread(disk.fill)
    filling = asyncio.create_task(keep_full())
    try:
        if meanwhile is not None:
            await meanwhile()
        await asyncio.sleep(DOWN_S)
    finally:
        filling.cancel()
        await asyncio.gather(filling, return_exceptions=True)
        disk.free()
