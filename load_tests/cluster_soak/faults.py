"""Has the faults that a soak lets happen to a local stack."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal

from load_tests.cluster_soak.clock_faults import clock_faults
from load_tests.cluster_soak.disk_faults import disk_faults, shared_memory_faults
from load_tests.cluster_soak.fault import DOWN_S, Fault, Strike, down
from load_tests.cluster_soak.index_faults import index_faults
from load_tests.cluster_soak.memory_faults import memory_faults
from load_tests.cluster_soak.object_faults import object_faults
from load_tests.cluster_soak.surroundings import Surroundings
from load_tests.servers.stack_processes import AGENT, PROXY, StackProcesses

_KILLED = ("generator", "gateway", "retrieval", "kv_store", "ingestion", "selector", AGENT, PROXY)


def faults_of(
    processes: StackProcesses, around: Surroundings, rng: random.Random, applications: frozenset[str]
) -> list[Fault]:
    """Those that can happen to a stack with these applications in these surroundings."""
    roles = [role for role in _KILLED if role in applications | {AGENT, PROXY}]

    async def several() -> None:
        await _kill(processes, rng.sample(roles, 3))

    found = [Fault(f"{role} killed", _killing(processes, role)) for role in roles]
    found.append(Fault("three at once killed", several))
    found += [
        Fault(f"{role} hangs for {DOWN_S:g} s", _hanging(processes, role)) for role in ("generator", AGENT)
    ]
    if around.store is not None:
        found += object_faults(around.store, rng)
        server, killing = around.store.server, _killing(processes, AGENT)
        found.append(Fault("object store down, agent killed", lambda: down(server, killing)))
    if around.index is not None:
        found += index_faults(around.index, _killing(processes, "retrieval"))
    if around.disk is not None:
        found += disk_faults(around.disk, _killing(processes, AGENT, "ingestion"))
    if around.shared_memory is not None:
        found += shared_memory_faults(around.shared_memory)
    if around.clock is not None:
        found += clock_faults(around.clock)
    if around.memory is not None:
        found += memory_faults(around.memory, processes)
    return found


def _killing(processes: StackProcesses, *roles: str) -> Strike:
    return lambda: _kill(processes, list(roles))


async def _kill(processes: StackProcesses, roles: list[str]) -> None:
    pids = [await asyncio.to_thread(processes.wait_for, role) for role in roles]
    for pid in pids:
        _signal(pid, signal.SIGKILL)


def _hanging(processes: StackProcesses, role: str) -> Strike:
    async def hang() -> None:
        pids = processes.of(role)
        try:
            for pid in pids:
                _signal(pid, signal.SIGSTOP)
            await asyncio.sleep(DOWN_S)
        finally:
            for pid in pids:
                _signal(pid, signal.SIGCONT)

    return hang


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
