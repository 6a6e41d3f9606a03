"""Checks the machine: memory, disk, who may use the data directory, ports, the clock."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path

from cluster.doctor.diagnosis import Examined, Outcome, ok
from cluster.local.launcher import check_ports
from shared.errors import Conflict

_GIB = 1 << 30
_LEAST_FREE_BYTES, _USUAL_FREE_BYTES = 64 << 20, 5 * _GIB
_USUAL_MEMORY_BYTES = 4 * _GIB
_MOST_SKEW_S = 5.0
_FIRST_YEAR = 2026


def check_memory(installation: Examined) -> tuple[Outcome, str, str]:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    told = f"{total / _GIB:.1f} GiB, {len(os.sched_getaffinity(0))} processors"
    if total < _USUAL_MEMORY_BYTES:
        return "warn", told, "serve a small model; generator.engine.resident_bytes bounds KV in memory"
    return ok(told)


def check_disk(installation: Examined) -> tuple[Outcome, str, str]:
    place = next(path for path in (installation.data_dir, *installation.data_dir.parents) if path.exists())
    free = shutil.disk_usage(place).free
    told = f"{free / _GIB:.1f} GiB free for {installation.data_dir}"
    if free < _LEAST_FREE_BYTES:
        return "fail", told, "delete documents, enlarge the volume, or choose another --data-dir"
    if free < _USUAL_FREE_BYTES:
        return "warn", told, "KV takes much more than its text; enlarge the volume, or name an object store"
    return ok(told)


def check_permissions(installation: Examined) -> tuple[Outcome, str, str]:
    """Of the data directory: its owner's alone, and writable."""
    root = installation.data_dir
    if not root.exists():
        parent = next(path for path in root.parents if path.exists())
        if not os.access(parent, os.W_OK | os.X_OK):
            return "fail", f"{root} cannot be made", "choose another --data-dir, or make it for this user"
        return ok(f"{root} is made by `kvquilt up`")
    status = root.stat()
    if status.st_uid != os.getuid():
        return "fail", f"{root} belongs to another user", "run as its owner, or choose another --data-dir"
    if not os.access(root, os.R_OK | os.W_OK | os.X_OK):
        return "fail", f"{root} cannot be read and written", f"chmod 700 {root}"
    shared = [path for path in (root, *root.iterdir()) if _usable_by_others(path)]
    if shared:
        names = ", ".join(path.name for path in shared[:3])
        return "warn", f"others may use {names}", f"chmod -R go= {root}"
    return ok(f"{root} is its owner's alone")


def check_free_ports(installation: Examined) -> tuple[Outcome, str, str]:
    config, state = installation.config, installation.state
    if state is not None:
        return ok(f"{state.target} and {state.http} are those of the running stack")
    try:
        check_ports(config)
    except Conflict as error:
        return "fail", error.detail, "`kvquilt up --grpc-port … --http-port …`, or end what listens there"
    return ok(f"{config.grpc_port} and {config.http_port} are free")


def check_doors(installation: Examined) -> tuple[Outcome, str, str]:
    """Checks who reaches them from elsewhere."""
    config = installation.config
    hosts = {"grpc_host": config.grpc_host, "http_host": config.http_host}
    open_to_others = [name for name, host in hosts.items() if not _is_loopback(host)]
    if open_to_others:
        told = f"{', '.join(open_to_others)} lets other machines in"
        return "warn", told, "see SECURITY.md for what has to stand in front of it"
    return ok("this machine alone")


def check_clock(installation: Examined) -> tuple[Outcome, str, str]:
    """Against that of the file system that keeps the data: another machine's, if it is mounted from one."""
    now = time.time()
    if time.gmtime(now).tm_year < _FIRST_YEAR:
        return (
            "fail",
            time.strftime("%Y-%m-%d", time.gmtime(now)),
            "set the clock; TLS and object stores need it",
        )
    place = installation.data_dir if installation.data_dir.is_dir() else Path(tempfile.gettempdir())
    with tempfile.NamedTemporaryFile(dir=place) as file:
        apart_s = abs(os.stat(file.name).st_mtime - time.time())
    if apart_s > _MOST_SKEW_S:
        return (
            "warn",
            f"{apart_s:.0f} s from that of the file system",
            "let both follow one time server (NTP)",
        )
    return ok(time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now)))


def _usable_by_others(path: Path) -> bool:
    return not path.is_symlink() and bool(path.stat().st_mode & 0o077)


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")
