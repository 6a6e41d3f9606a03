"""The way into the cluster from here: a node's port where nodes can be reached, else `kubectl
port-forward`."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
from collections.abc import Iterator

from tests.k8s.kubectl import Kubectl, cluster_objects

GRPC_PORT = 9000
_CONNECT_S = 2.0


class Door:
    """Leads to a Service."""

    def __init__(self, kubectl: Kubectl, service: str) -> None:
        self._kubectl, self._service = kubectl, service
        self._forward: subprocess.Popen[str] | None = None
        self._local = ""

    @property
    def target(self) -> str:
        """``host:port`` to connect to now."""
        node_port = self._node_port()
        for address in _node_addresses():
            if node_port and _is_open(address, node_port):
                return f"{address}:{node_port}"
        if self._forward is None or self._forward.poll() is not None:
            self._forward, self._local = start_forward(self._kubectl, f"service/{self._service}")
        return self._local

    def close(self) -> None:
        if self._forward is not None:
            self._forward.terminate()
            self._forward.wait()

    def _node_port(self) -> int:
        service = self._kubectl.get("service", self._service) or {"spec": {"ports": []}}
        return next(
            (
                int(p["nodePort"])
                for p in service["spec"]["ports"]
                if p["port"] == GRPC_PORT and "nodePort" in p
            ),
            0,
        )


@contextlib.contextmanager
def door_to_pod(kubectl: Kubectl, pod: str) -> Iterator[str]:
    """``host:port`` that leads to this very pod."""
    process, target = start_forward(kubectl, f"pod/{pod}")
    try:
        yield target
    finally:
        process.terminate()
        process.wait()


def start_forward(kubectl: Kubectl, to: str) -> tuple[subprocess.Popen[str], str]:
    command = ["kubectl", "--namespace", kubectl.namespace, "port-forward", to, f":{GRPC_PORT}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    said = process.stdout.readline()
    found = re.search(r"127\.0\.0\.1:\d+", said)
    if found is None:
        process.terminate()
        raise AssertionError(f"`{' '.join(command)}`: {said}{process.communicate()[0]}")
    return process, found[0]


def _node_addresses() -> list[str]:
    nodes = cluster_objects("nodes")
    return [a["address"] for n in nodes for a in n["status"]["addresses"] if a["type"] == "InternalIP"]


def _is_open(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), _CONNECT_S).close()
    except OSError:
        return False
    return True
