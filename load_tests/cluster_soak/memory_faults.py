"""Lets processes run out of memory."""

from __future__ import annotations

import asyncio

from cluster.local.processes import has_ended
from load_tests.benchmark import Violation
from load_tests.cluster_soak.fault import Fault, Strike
from load_tests.servers.memory_limit import MemoryLimit
from load_tests.servers.stack_processes import AGENT, StackProcesses

OUT_OF_MEMORY = {role: f"{role} out of memory" for role in ("generator", "ingestion", AGENT)}
_KILLED_WITHIN_S = 90.0


def memory_faults(limit: MemoryLimit, processes: StackProcesses) -> list[Fault]:
    """The kernel's OOM killer ends one of each of these services."""
    return [Fault(name, _starving(limit, processes, role)) for role, name in OUT_OF_MEMORY.items()]


def _starving(limit: MemoryLimit, processes: StackProcesses, role: str) -> Strike:
    async def strike() -> None:
        """
        Raises:
            Violation: it was not killed for want of memory.
        """
        num_killed = limit.num_killed
        pid = await asyncio.to_thread(processes.wait_for, role)
        limit.put(pid)
        try:
            async with asyncio.timeout(_KILLED_WITHIN_S):
                while not has_ended(pid):
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise Violation(f"{role} lives on with {_KILLED_WITHIN_S:g} s of no memory") from None
        if limit.num_killed == num_killed:
            raise Violation(f"{role} ended, though not for want of memory")

    return strike
