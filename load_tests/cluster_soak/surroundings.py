"""Makes what a soaked stack stands on, so that faults can strike it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar
from unittest import mock

from load_tests.cluster_soak import clock_faults, disk_faults, memory_faults
from load_tests.cluster_soak.object_faults import ObjectStore
from load_tests.servers.faulty_s3 import FaultyS3
from load_tests.servers.memory_limit import MemoryLimit, NoMemoryLimit
from load_tests.servers.milvus import MilvusServer
from load_tests.servers.s3 import S3Server
from load_tests.servers.small_disk import NoSmallDisk, SmallDisk
from load_tests.servers.stepped_clock import NoSteppedClock, SteppedClock

_RESIDENT_BYTES, _TIER_BYTES = 512 << 10, 128 << 10
"""Five chunks or so of the demo model with the engine, and one in each tier: of 18 that are asked about."""
_DISK_BYTES, _SHARED_MEMORY_BYTES = 512 << 20, 64 << 20
Wanted = Callable[[str], bool]
"""Whether a fault of this name shall strike."""


class _Closed(Protocol):
    def close(self) -> None: ...


PartT = TypeVar("PartT", bound=_Closed)


@dataclass(slots=True)
class Surroundings:
    """None: not wanted, or not to be had here; then ``missing`` says of its faults why. ``settings``: with
    which the stack stands on it."""

    store: ObjectStore | None = None
    index: MilvusServer | None = None
    disk: SmallDisk | None = None
    shared_memory: SmallDisk | None = None
    clock: SteppedClock | None = None
    memory: MemoryLimit | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


@contextmanager
def surroundings(scratch: Path, objects: bool, index: bool, wanted: Wanted) -> Iterator[Surroundings]:
    """Of a stack that is started within. ``scratch``: an empty directory. ``objects``: with an object
    store. ``index``: with a Milvus server."""
    around = Surroundings()
    with ExitStack() as running:

        def part(make: Callable[[], PartT], names: Iterable[str]) -> PartT | None:
            if not any(map(wanted, names)):
                return None
            try:
                made = make()
            except (NoSmallDisk, NoSteppedClock, NoMemoryLimit) as reason:
                around.missing |= dict.fromkeys(filter(wanted, names), str(reason))
                return None
            running.callback(made.close)
            return made

        if objects:
            around.store = running.enter_context(_object_store(scratch / "s3"))
        if index:
            around.index = MilvusServer(scratch / "milvus")
            running.callback(around.index.close)
        around.disk = part(lambda: SmallDisk(scratch / "disk", _DISK_BYTES), disk_faults.ON_DISK)
        around.shared_memory = part(
            lambda: SmallDisk(scratch / "memory", _SHARED_MEMORY_BYTES), disk_faults.IN_SHARED_MEMORY
        )
        around.clock = part(lambda: SteppedClock(scratch / "clock"), clock_faults.NAMES)
        around.memory = part(MemoryLimit, memory_faults.OUT_OF_MEMORY.values())
        around.settings = _settings_of(around)
        running.enter_context(mock.patch.dict(os.environ, around.clock.environment if around.clock else {}))
        yield around


@contextmanager
def _object_store(data: Path) -> Iterator[ObjectStore]:
    """A real S3 server behind a proxy; its keys are in the environment."""
    server = S3Server(data)
    try:
        with mock.patch.dict(os.environ, server.environment), FaultyS3(server.endpoint) as proxy:
            yield ObjectStore(server, proxy)
    finally:
        server.close()


def _settings_of(around: Surroundings) -> dict[str, Any]:
    """With an object store its nodes and generators keep little, so that most of what is read comes from
    there."""
    settings: dict[str, Any] = {}
    kv_store: dict[str, Any] = {}
    if around.disk is not None:
        settings["data_dir"] = str(around.disk.path / "data")
    if around.shared_memory is not None:
        kv_store["memory"] = {"directory": str(around.shared_memory.path / "tier")}
    if around.store is not None:
        kv_store["objects"] = {"endpoint": around.store.proxy.endpoint, "secure": False}
        kv_store["disk_capacity_bytes"] = _TIER_BYTES
        kv_store["memory"] = kv_store.get("memory", {}) | {"capacity_bytes": _TIER_BYTES}
        settings["generator"] = {"engine": {"resident_bytes": _RESIDENT_BYTES}}
    if around.index is not None:
        settings["retrieval"] = {"milvus_uri": around.index.uri}
    return settings | ({"kv_store": kv_store} if kv_store else {})
