"""Starts and stops the local stack from a shell: one detached supervisor per data directory."""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from cluster.local import listening
from cluster.local.authentication import guarded
from cluster.local.processes import end_orphans, end_session, has_ended
from cluster.local.state import RunDirectory, StackState
from cluster.paths import PROJECT_ROOT
from shared import slow_readers, steady_clock
from shared.config import to_dict
from shared.errors import Conflict, Unavailable
from shared.private_files import open_private

if TYPE_CHECKING:
    from cluster.config import QuiltConfig

POLL_S = 0.2
START_TIMEOUT_S = 1800.0  # a model may have to be downloaded first
STOP_TIMEOUT_S = 60.0
PROXY_CHECK_S = "2"  # Serve replaces a proxy that died after three looks at it: half a minute by its default
_EPHEMERAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")  # what outgoing connections are given
_FIRST_PORT = 20_000  # Ray's workers take ports below it


def start(config: QuiltConfig, on_progress: Callable[[StackState], None] = lambda state: None) -> StackState:
    """Returns when every service is ready. Whatever goes wrong, nothing is left running.

    Raises:
        Conflict: a stack runs already, or a port is taken.
        ConfigError: other machines could call, and nothing tells callers apart.
        Unavailable: a service failed to start; the detail has its reason.
    """
    run = RunDirectory(Path(config.data_dir))
    if run.is_locked():
        state = run.read()
        where = f" at {state.target} (pid {state.pid}, {state.phase})" if state else ""
        raise Conflict(
            f"kvquilt is running already{where} on {config.data_dir}; stop it with `kvquilt down`, or "
            "use another --data-dir"
        )
    _clear_dead(run)
    check_ports(config)
    config = guarded(config)
    process = _spawn(config, run)
    try:
        return _wait(process, run, on_progress)
    except BaseException:  # Ctrl-C too: a half-started stack is of no use
        stop(run.data_dir, process)
        raise


def stop(data_dir: Path, process: subprocess.Popen[bytes] | None = None) -> bool:
    """Ends the stack of ``data_dir`` (or the one just spawned) and waits until its last process is gone.
    False: there was none."""
    run = RunDirectory(data_dir)
    state = run.running()
    if process is None and state is None:
        _clear_dead(run)
        return False
    pid = process.pid if process else state.pid if state else 0
    _signal(pid, signal.SIGTERM)
    deadline_s = time.monotonic() + STOP_TIMEOUT_S + (state.drain_s if state else 0.0)
    while _alive(pid, process) and time.monotonic() < deadline_s:
        time.sleep(POLL_S)
    _signal(pid, signal.SIGKILL)
    end_session(pid)
    run.clear()
    return True


def check_ports(config: QuiltConfig) -> None:
    """
    Raises:
        Conflict: names the setting whose port is taken.
    """
    for setting, host, port in (
        ("grpc_port", config.grpc_host, config.grpc_port),
        ("http_port", config.http_host, config.http_port),
    ):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                raise Conflict(
                    f"{setting}: port {port} cannot be used ({error.strerror}); choose another with "
                    f"--{setting.replace('_', '-')}"
                ) from None


def free_port() -> int:
    """A port of 127.0.0.1 that nothing has now, and that no outgoing connection is given before it is used:
    one below the range from which the system takes their ports (Linux; elsewhere the system chooses)."""
    try:
        end = int(_EPHEMERAL_PORTS.read_text().split()[0])
    except OSError:
        end = 0
    candidates = range(_FIRST_PORT, end)
    for port in [*random.sample(candidates, min(len(candidates), 100)), 0]:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    raise Conflict("no port of 127.0.0.1 is free")


def _clear_dead(run: RunDirectory) -> None:
    """Removes what a supervisor that was killed could not take with it: some of Ray's processes, scratch
    files, the state."""
    state = run.read()
    if state is not None and not run.is_locked():
        end_orphans(state.pid, "ray::", state.ray_dir)
        run.clear()


def _spawn(config: QuiltConfig, run: RunDirectory) -> subprocess.Popen[bytes]:
    """The settings go through a pipe: there are secrets among them, which no file holds."""
    run.make()
    if run.log_path.exists():
        os.replace(run.log_path, run.log_path.with_suffix(".previous.log"))
    with open(run.log_path, "wb", opener=open_private) as log_file:
        process = subprocess.Popen(
            [sys.executable, "-m", "cluster.local.supervisor", config.data_dir],
            cwd="/",  # the stack outlives whatever directory it was started from
            env=_environment(os.environ.copy(), config),
            stdin=subprocess.PIPE,
            stdout=log_file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin as settings:  # the log says why it ended
        settings.write(json.dumps(to_dict(config)).encode())
    return process


def _environment(base: dict[str, str], config: QuiltConfig) -> dict[str, str]:
    """A private Ray that listens on this machine only, whose workers find our packages whatever their
    directory, and whose gRPC takes in no more than any request may have."""
    for name in [n for n in base if n.startswith("KVQUILT_") or n in ("RAY_ADDRESS", "RAY_AUTH_TOKEN_PATH")]:
        del base[name]
    ours = {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(PROJECT_ROOT), base.get("PYTHONPATH")))),
        "PYTHONUNBUFFERED": "1",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_SERVE_GRPC_MAX_MESSAGE_SIZE": str(config.limits.largest_bytes),
        # Serve kills a proxy that does not run within 5 s: on a busy machine, each of them
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
        "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": PROXY_CHECK_S,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DEDUP_LOGS": "0",
        "RAY_COLOR_PREFIX": "0",
        "TOKENIZERS_PARALLELISM": "false",
    }
    public = listening.environment(config.grpc_host, config.grpc_port, config.tls_cert, config.tls_key)
    ours |= slow_readers.environment(config.limits.stall_s) | steady_clock.environment()
    return base | public | ours


def _wait(
    process: subprocess.Popen[bytes], run: RunDirectory, on_progress: Callable[[StackState], None]
) -> StackState:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s:
        ended = process.poll() is not None
        state = run.read()
        if state and state.phase == "failed":
            raise Unavailable(f"{state.reason}\nThe whole log: {run.log_path}")
        if ended:
            raise Unavailable(f"the supervisor ended before the services were ready; its log: {run.log_path}")
        if state:
            on_progress(state)
            if state.phase == "ready":
                return state
        time.sleep(POLL_S)
    raise Unavailable(f"the services were not ready within {START_TIMEOUT_S:.0f} s; the log: {run.log_path}")


def _alive(pid: int, process: subprocess.Popen[bytes] | None) -> bool:
    return process.poll() is None if process is not None else not has_ended(pid)


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
