"""The Serve configuration that the chart renders, on a Ray of this machine, given to it as KubeRay does: by
Ray's REST API."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import secrets
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.local.launcher import free_port
from cluster.local.processes import end_session, session_members
from cluster.paths import DEMO_ASSETS, PROJECT_ROOT
from load_tests.servers.s3 import S3Server
from shared.clients.doors import rag_client
from shared.config import API_KEY
from shared.errors import Unauthenticated
from shared.request import RequestContext
from tests.e2e.stack import wait_for
from tests.helm import CHART, Helm, only, profile, serve_config_of
from tests.minio_server import new_bucket

pytestmark = pytest.mark.e2e
NUM_GENERATOR_PODS = 2
MOUNTED = "/etc/kvquilt"


@dataclass(frozen=True)
class Cluster:
    """A Ray with a dashboard; ``directory`` takes the place of the pods' volumes."""

    pid: int
    dashboard: str
    ports: dict[str, int]
    token: str
    directory: Path
    log: Path

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
        wait_for(lambda: self.states() == running or None, "running applications", timeout_s=480)

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
        """The actors that serve each application."""
        return {
            name: {replica["actor_id"] for d in app["deployments"].values() for replica in d["replicas"]}
            for name, app in self._call("GET")["applications"].items()
        }

    def _call(self, method: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.dashboard}/api/serve/applications/", data, method=method)
        request.add_header("Content-Type", "application/json")
        request.add_header("x-ray-authorization", f"Bearer {self.token}")  # KubeRay's way
        with urllib.request.urlopen(request, timeout=240) as answer:
            return json.loads(answer.read() or b"null")


@pytest.fixture
def cluster(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, s3_server: S3Server, helm: Helm
) -> Iterator[Cluster]:
    head = only(helm.render(profile("dev-cpu")), "RayService")["spec"]["rayClusterConfig"]["headGroupSpec"]
    ports = {name: free_port() for name in ("gcs", "dashboard", "agent", "grpc", "http")}
    command = [
        str(Path(sys.executable).with_name("ray")),
        "start",
        "--head",
        "--block",
        *start_options(head, ports),
    ]
    # sockets lie there, so its path must be short
    command.append(f"--temp-dir={tmp_path_factory.mktemp('r')}")
    token = secrets.token_hex(32)
    variables = {
        e["name"]: e["value"] for e in head["template"]["spec"]["containers"][0]["env"] if "value" in e
    }
    variables |= {"HOME": str(tmp_path), "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    log = tmp_path / "ray.log"
    with open(log, "wb") as file:
        ray = subprocess.Popen(
            command, env=environment() | variables, stdout=file, stderr=file, start_new_session=True
        )
    try:
        running = Cluster(ray.pid, f"http://127.0.0.1:{ports['dashboard']}", ports, token, tmp_path, log)
        wait_for(lambda: _answers(running) or None, "dashboard", timeout_s=240)
        yield running
    finally:
        ray.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            ray.wait(60)
        end_session(ray.pid)
        ray.kill()
    assert session_members(ray.pid) == []


def start_options(head: dict[str, Any], ports: dict[str, int]) -> list[str]:
    """What KubeRay gives to ``ray start`` on the head, on ports of this test's own, with what the workers'
    pods offer."""
    options = head["rayStartParams"] | {
        "dashboard-host": "127.0.0.1",
        "port": ports["gcs"],
        "dashboard-port": ports["dashboard"],
        "dashboard-agent-listen-port": ports["agent"],
        "resources": json.dumps({"kvquilt_services": 1000, "kvquilt_generator": NUM_GENERATOR_PODS}),
    }
    return [f"--{name}" if value == "true" else f"--{name}={value}" for name, value in options.items()]


def environment() -> dict[str, str]:
    """Where the packages are, and no settings."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("KVQUILT_", "RAY_"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return ours | {"PATH": path, "PYTHONPATH": str(PROJECT_ROOT)}


def _answers(cluster: Cluster) -> bool:
    try:
        cluster._call("GET")
    except OSError:
        return False
    return True


@pytest.mark.timeout(1200)
def test_a_rendered_configuration_answers_questions_and_scales_in_place(
    cluster: Cluster, helm: Helm, s3_server: S3Server
) -> None:
    def objects(**values: Any) -> list[dict[str, Any]]:
        store = {
            "objects.endpoint": s3_server.endpoint,
            "objects.secure": False,
            "objects.bucket": bucket,
            "minio.enabled": False,
            "auth.mode": "required",
            "config.selector.model": str(DEMO_ASSETS / "model" / "auxiliary"),  # not the image's
        }
        return helm.render(profile("dev-cpu"), **store, **values)

    bucket = new_bucket()
    key = cluster.mount(objects())
    cluster.deploy(serve_config_of(objects()))
    asyncio.run(refused(cluster))
    answered = helm_test(cluster, key)
    assert answered.returncode == 0, answered.stdout + answered.stderr
    assert "as expected: Tamdal was founded by Frida Pelard" in answered.stdout

    before = cluster.replicas()
    cluster.deploy(serve_config_of(objects(**{"generator.replicas": NUM_GENERATOR_PODS})))
    wait_for(
        lambda: len(cluster.replicas()["generator"]) == NUM_GENERATOR_PODS or None,
        "second generator",
        timeout_s=300,
    )
    after = cluster.replicas()
    assert before.pop("generator") < after.pop("generator")
    assert before == after

    wrong = helm_test(cluster, key, ANSWER="Nobody at all")
    assert wrong.returncode != 0
    assert "does not hold 'Nobody at all'; test.question and test.answer say" in wrong.stderr
    assert "agent of node" in cluster.log.read_text(errors="replace"), (
        "what services log is not in the pod's log"
    )


async def refused(cluster: Cluster) -> None:
    async with rag_client(f"127.0.0.1:{cluster.ports['grpc']}") as client:
        with pytest.raises(Unauthenticated):
            await client.status(RequestContext.create())


def helm_test(cluster: Cluster, key: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """What the pod of ``helm test`` runs."""
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))["test"]
    given = {name.upper(): values[name] for name in ("document", "question", "answer")}
    script = (CHART / "files" / "test.sh").read_text(encoding="utf-8")
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        env=environment() | given | {"TARGET": f"127.0.0.1:{cluster.ports['grpc']}", API_KEY: key} | changes,
        cwd=cluster.directory,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
