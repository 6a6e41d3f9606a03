"""Has the faults that a soak lets happen to a local stack."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from load_tests.servers.s3 import S3Server
from load_tests.servers.stack_processes import AGENT, PROXY, StackProcesses

DOWN_S = 6.0
"""How long an object store is away, and a process hangs."""
_KILLED = ("generator", "gateway", "retrieval", "kv_store", "ingestion", "selector", AGENT, PROXY)


@dataclass(frozen=True, slots=True)
class Fault:
    """``strike`` returns when nothing stands in the way of recovery any more."""

    name: str
    strike: Callable[[], Awaitable[None]]


def faults_of(
    processes: StackProcesses, server: S3Server | None, rng: random.Random, applications: frozenset[str]
) -> list[Fault]:
    """Those that can happen to a stack with these applications. ``server``: its object store, if it has
    one."""
    roles = [role for role in _KILLED if role in applications | {AGENT, PROXY}]

    async def several() -> None:
        await _kill(processes, rng.sample(roles, 3))

    found = [Fault(f"{role} killed", _killing(processes, role)) for role in roles]
    found.append(Fault("three at once killed", several))
    found += [
        Fault(f"{role} hangs for {DOWN_S:g} s", _hanging(processes, role)) for role in ("generator", AGENT)
    ]
    if server is not None:
        found.append(Fault(f"object store down for {DOWN_S:g} s", _down(server)))
        found.append(Fault("object store down, agent killed", _down(server, processes)))
    return found


def _killing(processes: StackProcesses, role: str) -> Callable[[], Awaitable[None]]:
    return lambda: _kill(processes, [role])


async def _kill(processes: StackProcesses, roles: list[str]) -> None:
    pids = [await asyncio.to_thread(processes.wait_for, role) for role in roles]
    for pid in pids:
        _signal(pid, signal.SIGKILL)


def _hanging(processes: StackProcesses, role: str) -> Callable[[], Awaitable[None]]:
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


def _down(server: S3Server, processes: StackProcesses | None = None) -> Callable[[], Awaitable[None]]:
    async def down() -> None:
        await asyncio.to_thread(server.stop)
        try:
            if processes is not None:
                await _kill(processes, [AGENT])
            await asyncio.sleep(DOWN_S)
        finally:
            await asyncio.to_thread(server.start)

    return down


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
