"""A Ray that runs what the chart renders, given to it as KubeRay does: by Ray's REST API."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cluster.local.launcher import free_port
from cluster.local.processes import end_session, session_members
from cluster.paths import PROJECT_ROOT
from tests.e2e.stack import wait_for
from tests.helm import only

MOUNTED = "/etc/kvquilt"
STATES_PAUSE_S = 1.0  # for each answer, the dashboard and Serve's controller are busy for 0.1 s and more
_END_S = 60.0


@dataclass(frozen=True)
class Cluster:
    """A Ray whose head is on this machine, with a dashboard; ``directory`` takes the place of the pods'
    volumes. Its nodes reach each other by ``host``."""

    host: str
    dashboard: str
    ports: dict[str, int]
    token: str
    directory: Path
    temporary: Path
    variables: dict[str, str]

    @property
    def log(self) -> Path:
        """Of the head."""
        return self.directory / "ray.log"

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.ports['grpc']}"

    def deploy(self, config: dict[str, Any]) -> None:
        text = (
            yaml.safe_dump(config)
            .replace("/data", f"{self.directory}/data")
            .replace("/index", f"{self.directory}/index")
            .replace(MOUNTED, str(self.directory / "secrets"))
        )
        adapted = yaml.safe_load(text)
        adapted["http_options"] = {"host": "127.0.0.1", "port": self.ports["http"]}
        adapted["grpc_options"]["port"] = self.ports["grpc"]
        self._call("PUT", adapted)
        running = {app["name"]: "RUNNING" for app in config["applications"]}
        wait_for(lambda: self.states() == running or None, "running applications", 480, STATES_PAUSE_S)

    def mount(self, objects: list[dict[str, Any]]) -> str:
        """Puts the release's secrets where pods find them, and returns the administrator's key."""
        keys, installation = (only(objects, "Secret", name)["data"] for name in ("-keys", "-installation"))
        for folder, secret, name in (("keys", keys, "keys.json"), ("installation", installation, "secret")):
            (self.directory / "secrets" / folder).mkdir(parents=True)
            (self.directory / "secrets" / folder / name).write_bytes(base64.b64decode(secret[name]))
        return base64.b64decode(keys["admin"]).decode()

    def states(self) -> dict[str, str]:
        applications = self._call("GET")["applications"]
        failed = {
            name: app["message"] for name, app in applications.items() if app["status"] == "DEPLOY_FAILED"
        }
        assert not failed, failed
        return {name: app["status"] for name, app in applications.items()}

    def replicas(self) -> dict[str, set[str]]:
        """Those of each application, also who is not there yet."""
        return {
            name: {replica["replica_id"] for d in app["deployments"].values() for replica in d["replicas"]}
            for name, app in self._call("GET")["applications"].items()
        }

    def nodes(self) -> dict[str, str]:
        """The state of each node, by its address."""
        summary = self._json("/nodes?view=summary")["data"]["summary"]
        return {node["ip"]: node["raylet"]["state"] for node in summary}

    def answers(self) -> bool:
        try:
            self._call("GET")
        except OSError:
            return False
        return True

    def _call(self, method: str, body: Any = None) -> Any:
        return self._json("/api/serve/applications/", method, body)

    def _json(self, path: str, method: str = "GET", body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.dashboard}{path}", data, method=method)
        request.add_header("Content-Type", "application/json")
        request.add_header("x-ray-authorization", f"Bearer {self.token}")  # KubeRay's way
        with urllib.request.urlopen(request, timeout=240) as answer:
            return json.loads(answer.read() or b"null")


@contextmanager
def running_cluster(
    rayservice: dict[str, Any],
    directory: Path,
    temporary: Path,
    resources: dict[str, int],
    host: str = "127.0.0.1",
) -> Iterator[Cluster]:
    """With the head of ``rayservice``, which is given the ``resources`` that workers' pods would offer.
    ``temporary``: sockets lie there, so its path must be short."""
    head = rayservice["spec"]["rayClusterConfig"]["headGroupSpec"]
    token = secrets.token_hex(32)
    ports = {name: free_port() for name in ("gcs", "dashboard", "agent", "grpc", "http")}
    given = {e["name"]: e["value"] for e in head["template"]["spec"]["containers"][0]["env"] if "value" in e}
    own = {"HOME": str(directory), "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    cluster = Cluster(
        host,
        f"http://127.0.0.1:{ports['dashboard']}",
        ports,
        token,
        directory,
        temporary,
        given | own,
    )
    options = head["rayStartParams"] | {
        "node-ip-address": host,
        "dashboard-host": "127.0.0.1",
        "port": ports["gcs"],
        "dashboard-port": ports["dashboard"],
        "dashboard-agent-listen-port": ports["agent"],
        "resources": json.dumps(resources),
        "temp-dir": temporary,
    }
    with ray_node(cluster, ["--head", *_flags(options)], cluster.log):
        wait_for(lambda: cluster.answers() or None, "dashboard", timeout_s=240)
        yield cluster


@contextmanager
def ray_node(
    cluster: Cluster, options: Sequence[str], log: Path, within: Sequence[str] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    """``ray start --block``; at the end none of its processes is left. ``within``: a command that runs it."""
    ray = str(Path(sys.executable).with_name("ray"))
    with open(log, "ab") as file:
        node = subprocess.Popen(
            [*within, ray, "start", "--block", *options],
            env=environment() | cluster.variables,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        yield node
    finally:
        node.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            node.wait(_END_S)
        end_session(node.pid)
        node.kill()
        node.wait()
    assert session_members(node.pid) == []


def _flags(options: dict[str, Any]) -> list[str]:
    return [f"--{name}" if value == "true" else f"--{name}={value}" for name, value in options.items()]


def environment() -> dict[str, str]:
    """Where the packages are, and no settings."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("KVQUILT_", "RAY_"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return ours | {"PATH": path, "PYTHONPATH": str(PROJECT_ROOT)}
