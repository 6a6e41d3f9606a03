"""Owns, as a process, a local stack: a private Ray, Ray Serve, the applications; started and stopped by
``launcher``.

``python -m cluster.local.supervisor DATA_DIR`` reads the settings from its standard input, reports in
``run/state.json`` there, and lives until SIGTERM. If it is killed, Ray's head processes die with it
(PDEATHSIG) and workers when they lose the raylet; two of Ray's agents stay behind until the next ``up`` or
``down``.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster import applications
from cluster.compose import deployed, serve_config
from cluster.config import QuiltConfig
from cluster.local.authentication import operator_credentials
from cluster.local.certificate import server_name
from cluster.local.listening import LOOPBACK, address, reachable
from cluster.local.lossy_output import keep_writing
from cluster.local.processes import end_session
from cluster.local.state import RAY_DIR_PREFIX, RunDirectory, StackState
from services.kv_store.tiers.memory_directory import remove_what_was_left
from shared import log as logs
from shared.clients.channels import TLS
from shared.clients.doors import rag_client
from shared.config import load, to_dict
from shared.errors import ConfigError, KvquiltError, Unavailable
from shared.principals.credentials import Credentials
from shared.private_files import keep_private
from shared.request import RequestContext

if TYPE_CHECKING:
    from ray.serve._private.common import StatusOverview

log = logging.getLogger(__name__)

OBJECT_STORE_BYTES = 100 * 2**20  # KV never travels through it
POLL_S = 0.3
DRAIN_MARGIN_S = 5.0  # until Serve has noticed
DRAIN_POLL_S = 0.5  # also for how long an idle replica still takes what was on its way to it
USERS_FIRST = ({"gateway", "ingestion"}, {"generator", "selector"}, {"retrieval", "kv_store"})
HEALTH_TIMEOUT_S = 40.0  # models are loaded by then; what is wrong now stays wrong


def main() -> int:
    keep_private()
    run = RunDirectory(Path(sys.argv[1]))
    config = load(QuiltConfig, json.load(sys.stdin))
    keep_writing()
    logs.configure("supervisor", config.log)
    with run.lock():
        return Supervisor(config, run, threading.Event()).run()


class Supervisor:
    def __init__(self, config: QuiltConfig, run: RunDirectory, stop: threading.Event) -> None:
        self._config = config
        self._run = run
        self._stop = stop
        self._operator = operator_credentials(config.auth.secret_file)
        self._state = StackState(
            pid=os.getpid(),
            phase="starting",
            target=(TLS if config.tls_cert else "") + address(reachable(config.grpc_host), config.grpc_port),
            http=("https://" if config.tls_cert else "http://")
            + address(reachable(config.http_host), config.http_port),
            log_path=str(run.log_path),
            model=config.model,
            # Ray's sockets live here; their paths must stay below 108 characters, so the data directory will
            # not do.
            ray_dir=tempfile.mkdtemp(prefix=RAY_DIR_PREFIX),
            drain_s=sum(limit_s + DRAIN_MARGIN_S for _, limit_s in drain_steps(config)),
            addresses=config.addresses,
            secret_file=config.auth.secret_file,
            keys_file=config.auth.keys_file,
            certificate=config.tls_cert,
            server_name=server_name(config.tls_cert) if config.tls_cert else "",
        )

    def run(self) -> int:
        self._report(services=dict.fromkeys(deployed(self._config), "waiting"))
        try:
            self._listen_for_signals()
            start_ray(Path(self._state.ray_dir))
            self._listen_for_signals()  # ray.init puts its own handlers in place
            check_gpus(self._config, gpus_here())
            deploy(self._config)
            self._wait_until_ready()
            self._report(phase="ready")
            self._stop.wait()
            self._describe(phase="stopping")
            drain(self._config)
            return 0
        except KvquiltError as error:
            return self._failed(error.detail)
        except Exception as error:
            log.exception("the stack failed")
            return self._failed(f"{type(error).__name__}: {error}")
        finally:
            take_down()
            if os.getsid(0) == os.getpid():  # never anybody else's processes
                end_session(os.getpid())
            shutil.rmtree(self._state.ray_dir, ignore_errors=True)
            store = self._config.kv_store
            remove_what_was_left(store.memory.path_for(Path(store.directory)))
            if self._state.phase != "failed":
                self._run.clear()

    def _listen_for_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stop.set())

    def _wait_until_ready(self) -> None:
        """
        Raises:
            Unavailable: an application could not be started; says which and why.
        """
        while not self._stop.wait(POLL_S):
            services = application_states(self._config)
            self._report(services=services)
            if all(state == "running" for state in services.values()):
                break
        deadline_s = time.monotonic() + HEALTH_TIMEOUT_S
        while not self._stop.wait(POLL_S):
            unhealthy = asyncio.run(unready_services(self._state, self._operator))
            names = (*deployed(self._config), *self._config.addresses)
            self._report(services={name: unhealthy.get(name, "ready") for name in names})
            if not unhealthy:
                return
            if time.monotonic() > deadline_s:
                raise Unavailable("; ".join(f"{name}: {detail}" for name, detail in unhealthy.items()))

    def _failed(self, reason: str) -> int:
        self._describe(phase="failed", reason=reason)
        return 1

    def _describe(self, **changes: Any) -> None:
        """Reports what nobody waits for: a full disk must not keep what was asked from being answered."""
        try:
            self._report(**changes)
        except OSError as error:
            log.error("run/state.json cannot be written: %s", error.strerror or error)

    def _report(self, **changes: Any) -> None:
        self._state = dataclasses.replace(self._state, **changes)
        self._run.write(self._state)


def start_ray(ray_dir: Path) -> None:
    """``ray_dir``: of its owner alone. Ray lets everybody into the directory that it is given: the one below
    it."""
    import ray

    ray.init(
        address="local",
        namespace="kvquilt",
        include_dashboard=False,
        object_store_memory=OBJECT_STORE_BYTES,
        _temp_dir=str(ray_dir / "ray"),
        _node_ip_address=LOOPBACK,
    )


def gpus_here() -> float:
    import ray

    return float(ray.cluster_resources().get("GPU", 0))


def check_gpus(config: QuiltConfig, available: float) -> None:
    """Ray would wait for them for ever.

    Raises:
        ConfigError: the generator's replicas need more than there are.
    """
    deployment = config.generator.deployment
    needed = deployment.num_gpus * deployment.num_replicas
    if "generator" in deployed(config) and needed > available:
        raise ConfigError(
            f"generator.engine.device: {config.generator.engine.device} needs {needed:g} GPUs "
            f"(generator.deployment.num_gpus × num_replicas), this machine has {available:g}; set it to "
            "cpu, or reserve less"
        )


def deploy(config: QuiltConfig) -> None:
    """Does what ``serve deploy`` does with the composed config, through the API that needs no dashboard."""
    from ray import serve
    from ray.serve.config import HTTPOptions, gRPCOptions

    values = {name: value for name, value in to_dict(config).items() if name not in config.addresses}
    composed = serve_config(values, config)
    serve.start(
        proxy_location=composed["proxy_location"],
        http_options=HTTPOptions(
            **composed["http_options"],
            ssl_certfile=config.tls_cert or None,
            ssl_keyfile=config.tls_key or None,
        ),
        grpc_options=gRPCOptions(**composed["grpc_options"]),
        logging_config=composed["logging_config"],
    )
    # Built here, not in a process per application; with the whole section, which says what `deployments`
    # says.
    targets = [
        serve.RunTarget(
            applications.build(app["name"], values, graceful_shutdown_wait_loop_s=DRAIN_POLL_S),
            name=app["name"],
            route_prefix=app["route_prefix"],
        )
        for app in composed["applications"]
    ]
    serve.run_many(targets, wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)


def application_states(config: QuiltConfig) -> dict[str, str]:
    """
    Raises:
        Unavailable: an application failed to start for good.
    """
    found = serve_statuses()
    for name, overview in found.items():
        messages = [overview.app_status.message, *(d.message for d in overview.deployment_statuses)]
        if overview.app_status.status.value == "DEPLOY_FAILED":
            raise Unavailable(f"{name}: {root_cause(messages)}")
    return {
        name: found[name].app_status.status.value.lower() if name in found else "waiting"
        for name in deployed(config)
    }


def serve_statuses() -> dict[str, StatusOverview]:
    """What Ray Serve says of each application. ``serve.status()`` says the same, but on every call pickles
    every deployment's request router by value: asked three times a second, that is two thirds of what a
    start takes in this process."""
    from ray.serve.context import _get_global_client

    return {overview.name: overview for overview in _get_global_client().list_serve_statuses()}


def root_cause(messages: list[str]) -> str:
    """The last exception line of a replica's traceback, without module path."""
    lines = [
        line.strip() for message in messages for line in re.sub(r"\x1b\[[0-9;]*m", "", message).splitlines()
    ]
    kinds = "Error|Exception|Unsupported|Mismatch|Found|Unavailable|Request"
    causes = [line for line in lines if re.match(rf"[\w.]+({kinds})\b.*:", line)]
    ours = [line for line in causes if line.startswith("shared.errors.")]
    chosen = (ours or causes or [line for line in lines if line] or ["failed to start"])[-1]
    return chosen.removeprefix("shared.errors.").partition(": ")[2] if ours else chosen


async def unready_services(state: StackState, credentials: Credentials) -> dict[str, str]:
    """Application → why it is not ready, asked through the port that users use."""
    async with rag_client(state.target, credentials, state.certificate, state.server_name) as client:
        try:
            services = await client.status(RequestContext.create(deadline_ms=5_000))
        except KvquiltError as error:
            return {"gateway": error.detail}
    return {s.service: s.detail or "not ready" for s in services if not s.ready}


def drain(config: QuiltConfig) -> None:
    """Lets what has been asked be answered, and nothing new be asked: applications end before those that they
    use, each within its ``drain_s``. Ray Serve, shut down as a whole, ends its proxies first, and with them
    every answer that is on its way."""
    from ray import serve

    for names, limit_s in drain_steps(config):
        for name in names:
            serve.delete(name, _blocking=False)
        deadline_s = time.monotonic() + limit_s + DRAIN_MARGIN_S
        while names & serve_statuses().keys() and time.monotonic() < deadline_s:
            time.sleep(POLL_S)


def drain_steps(config: QuiltConfig) -> list[tuple[set[str], float]]:
    """Applications that end together, and how long they may take."""
    present = set(deployed(config))
    return [
        (present & names, max(getattr(config, name).deployment.drain_s for name in present & names))
        for names in USERS_FIRST
        if present & names
    ]


def take_down() -> None:
    """Ends Serve and Ray; never raises, since it runs on the way out."""
    import ray
    from ray import serve

    try:
        if ray.is_initialized():
            serve.shutdown()
    except Exception:
        log.exception("Ray Serve did not shut down cleanly")
    finally:
        ray.shutdown()


if __name__ == "__main__":
    exit_code = main()
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    # Everything is down. On a busy machine Ray's libraries, left to end by themselves, hang on the way out.
    os._exit(exit_code)
