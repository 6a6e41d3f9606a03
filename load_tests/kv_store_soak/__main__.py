"""Soaks kv_store: clients put, get, open, replace and delete chunks and documents while the service is
killed at random.

    python -m load_tests.kv_store_soak --seconds 300 --clients 8            local tiers
    python -m load_tests.kv_store_soak --seconds 300 --clients 8 --objects  with a real S3 server behind them

Tiers are small, so that copies are evicted all the time. At the end every acknowledged chunk must be readable
and correct, every acknowledged document there, a scrub must find nothing, and ``check_invariants()`` of the
whole agent must hold. Exit code 0 then.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process, create_subprocess_exec
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import grpc

from load_tests.benchmark import Violation, new_parser, option
from load_tests.kv_store_soak.agent import node_in
from load_tests.kv_store_soak.clients import SoakClient
from load_tests.servers.s3 import S3Server
from shared.clients.grpc_transport import CHANNEL_OPTIONS
from shared.clients.kv_node import AgentClient
from shared.errors import KvquiltError
from shared.request import RequestContext

DISK_BYTES, MEMORY_BYTES = 6 << 20, 2 << 20
_START_TIMEOUT_S = 60.0
_SETTLE_S = 30.0


@dataclass(slots=True)
class Service:
    """The agent's process. ``client`` reaches whichever runs last."""

    directory: Path
    memory: Path
    disk_bytes: int
    endpoint: str = ""
    keys: dict[str, str] = field(default_factory=dict)
    client: AgentClient = field(init=False)
    _process: Process | None = None
    _channel: grpc.aio.Channel | None = None

    @property
    def log_path(self) -> Path:
        return self.directory.with_name("service.log")

    async def start(self) -> None:
        with open(self.log_path, "ab") as log:
            self._process = await create_subprocess_exec(
                sys.executable,
                "-m",
                "load_tests.kv_store_soak.agent",
                f"--memory={self.memory}",
                f"--memory-bytes={MEMORY_BYTES}",
                f"--disk-bytes={self.disk_bytes}",
                f"--endpoint={self.endpoint}",
                str(self.directory),
                stdout=PIPE,
                stderr=log,
                env=os.environ | self.keys,
            )
        assert self._process.stdout is not None
        address = (await asyncio.wait_for(self._process.stdout.readline(), _START_TIMEOUT_S)).decode().strip()
        if not address:
            raise Violation("the service did not start again")
        old, self._channel = self._channel, grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        self.client = AgentClient.of(self._channel)
        if old is not None:
            await old.close()

    async def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)
            await self._process.wait()

    async def close(self) -> None:
        await self.kill()
        if self._channel is not None:
            await self._channel.close()


async def soak(
    root: Path, seconds: float, num_clients: int, server: S3Server | None, seed: int
) -> Counter[str]:
    """Counts of what was done.

    Raises:
        Violation: the store broke a promise.
        AssertionError: its invariants do not hold at the end.
    """
    rng, counts = random.Random(seed), Counter[str]()
    # Without an object store the disk holds the only copy of everything, which is never evicted, so it has no
    # limit there.
    service = Service(root / "kv", root / "memory", DISK_BYTES if server else 0)
    if server is not None:
        service.endpoint, service.keys = server.endpoint, server.environment
    scratch = root / "scratch"
    scratch.mkdir()
    ends_s = time.monotonic() + seconds
    clients = [
        SoakClient(n, lambda: service.client, scratch, counts, random.Random(rng.random()))
        for n in range(num_clients)
    ]
    await service.start()
    try:
        async with asyncio.TaskGroup() as group:
            for client in clients:
                group.create_task(client.run(lambda: time.monotonic() > ends_s))
            group.create_task(_kill_now_and_then(service, rng, ends_s, counts))
        await _check(service, clients, counts)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    finally:
        await service.close()
    await _check_invariants(service, counts)
    return counts


async def _kill_now_and_then(
    service: Service, rng: random.Random, ends_s: float, counts: Counter[str]
) -> None:
    while (pause_s := rng.uniform(0.5, 4.0)) < ends_s - time.monotonic():
        await asyncio.sleep(pause_s)
        with suppress(KvquiltError):  # too busy to say
            counts["evicted"] += await _evictions(service)
        await service.kill()
        counts["kills"] += 1
        await service.start()


async def _evictions(service: Service) -> int:
    stats = await service.client.stats(RequestContext.create())
    return sum(node.counters.get("evictions", 0) for node in stats.nodes)


async def _check(service: Service, clients: list[SoakClient], counts: Counter[str]) -> None:
    """Once more after a last kill, against a store that has just come up."""
    counts["evicted"] += await _evictions(service)
    await service.kill()
    await service.start()
    await _settled(service)
    for client in clients:
        num_chunks, num_documents = await client.check_everything()
        counts["chunks acknowledged at the end"] += num_chunks
        counts["documents acknowledged at the end"] += num_documents
    async for progress in service.client.verify(RequestContext.create(deadline_ms=120_000)):
        if progress.damaged or progress.missing_chunk_ids:
            raise Violation(f"the scrub found damage: {progress}")
        counts["copies verified at the end"] = progress.num_copies


async def _settled(service: Service) -> None:
    """Returns once nothing waits for the object store."""
    deadline_s = time.monotonic() + _SETTLE_S
    while time.monotonic() < deadline_s:
        stats = await service.client.stats(RequestContext.create())
        if stats.objects is None or not any(
            t.num_chunks for n in stats.nodes for t in n.tiers if t.tier == "pending"
        ):
            return
        await asyncio.sleep(0.2)
    raise Violation("chunks still wait for the object store")


async def _check_invariants(service: Service, counts: Counter[str]) -> None:
    """Of an agent over what the last one left."""
    with mock.patch.dict(os.environ, service.keys):
        node = node_in(service.directory, service.memory, service.disk_bytes, MEMORY_BYTES, service.endpoint)
        try:
            await asyncio.to_thread(node.documents.sync)
            await node.agent.recover(RequestContext.create())
            node.agent.check_invariants()
        finally:
            await node.close()
    counts["check_invariants() held"] = 1


def main() -> int:
    parser = new_parser("load_tests.kv_store_soak", __doc__)
    option(parser, "--seconds", 300.0, "how long")
    option(parser, "--clients", 8, "that work at once")
    parser.add_argument(
        "--objects", action="store_true", help="with a real S3 server, which is started for it"
    )
    option(parser, "--seed", 0, "of what clients do and when the service is killed")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvquilt-soak-") as root:
        server = S3Server(Path(root) / "s3") if args.objects else None
        try:
            counts = asyncio.run(soak(Path(root), args.seconds, args.clients, server, args.seed))
        except AssertionError as error:
            said = (Path(root) / "service.log").read_text()[-4000:]
            reason = error or "check_invariants() does not hold"
            print(f"FAILED: {reason}; the service said last:\n{said}", file=sys.stderr)
            return 1
        finally:
            if server is not None:
                server.close()
    print(f"{args.seconds:g} s, {args.clients} clients" + (f", {server.program.origin}" if server else ""))
    for name, count in sorted(counts.items()):
        print(f"{count:8}  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
