"""A release of the chart: installed, changed, watched until it is ready, taken away."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.paths import PROJECT_ROOT
from tests.k8s.images import Images
from tests.k8s.keys import SECRET, put_keys
from tests.k8s.kubectl import Kubectl, Object, cluster_objects, is_ready, waiting_reasons
from tests.k8s.shell import run, tell, wait_for

CHART = PROJECT_ROOT / "helm" / "kvquilt"
NAME = "quilt"
FULLNAME = "quilt-kvquilt"
READY_TIMEOUT_S = 420.0
TAKEOVER_S = 900.0
_CANNOT_BE_PULLED = ("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName")
_OPERATOR = "app.kubernetes.io/name=kuberay-operator"
Values = dict[str, Any]


@dataclass(frozen=True)
class Release:
    kubectl: Kubectl
    images: Images
    chart: Path = CHART

    def install(self, profile: str, *values: Values) -> None:
        tell(f"helm install in namespace {self.kubectl.namespace}")
        put_keys(self.kubectl)
        self._helm("install", profile, *values)

    def upgrade(self, profile: str, *values: Values) -> None:
        tell(f"helm upgrade with {json.dumps(values)}")
        self._helm("upgrade", profile, *values)

    def rollback(self) -> None:
        """To the revision before the current one."""
        tell("helm rollback")
        run("helm", "rollback", NAME, "--namespace", self.kubectl.namespace, timeout_s=420)

    def test(self) -> str:
        return run(
            "helm", "test", NAME, "--namespace", self.kubectl.namespace, "--timeout", "5m", timeout_s=330
        )

    def uninstall(self, grace: bool = True) -> None:
        """Returns when the last of its pods is gone, or there is no release. Without ``grace`` they are
        killed, which saves half a minute: for a release of which nothing more is expected."""
        tell("helm uninstall")
        namespace = ("--namespace", self.kubectl.namespace)
        run("helm", "uninstall", NAME, *namespace, "--wait", "--ignore-not-found", timeout_s=330)
        own = ("--selector", f"app.kubernetes.io/instance={NAME}")

        def gone() -> bool | None:
            if not grace:  # each time: until its cluster is gone the operator replaces what is killed
                self.kubectl("delete", "pods", *own, "--grace-period=0", "--force", "--wait=false")
            return None if self.kubectl.all("pods", own[1]) else True

        wait_for(gone, "end of the pods", 180)

    def wait_until_ready(self) -> None:
        """Every pod is, and the Service leads to the running services."""
        wait_for(self._serving, f"ready release in {self.kubectl.namespace}", READY_TIMEOUT_S)

    def pods(self, component: str = "") -> list[Object]:
        """Those that are not ending; without ``component`` all of Ray's."""
        wanted = f"app.kubernetes.io/component={component}" if component else "app.kubernetes.io/part-of=ray"
        pods = self.kubectl.all("pods", f"app.kubernetes.io/instance={NAME},{wanted}")
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    def ready_pods(self, component: str, number: int) -> list[Object]:
        """Waits until there are so many, no more and no fewer, all of them ready."""

        def there() -> list[Object] | None:
            pods = self.pods(component)
            return pods if len(pods) == number and all(map(is_ready, pods)) else None

        return wait_for(there, f"{number} ready {component} pods", READY_TIMEOUT_S)

    def ray_clusters(self) -> list[str]:
        return [c["metadata"]["name"] for c in self.kubectl.all("rayclusters")]

    def wait_for_takeover(self, first: str) -> set[str]:
        """Until another Ray cluster stands alone, and is ready, where ``first`` was; all that were seen."""
        seen: set[str] = set()

        def alone() -> bool | None:
            clusters = self.ray_clusters()
            seen.update(clusters)
            return True if first not in clusters and len(clusters) == 1 else None

        wait_for(alone, "second cluster alone", TAKEOVER_S)
        self.wait_until_ready()
        return seen

    def _serving(self) -> bool | None:
        for pod in self.kubectl.all("pods"):
            for reason in waiting_reasons(pod):
                if reason.startswith(_CANNOT_BE_PULLED):
                    raise AssertionError(
                        f"a node has no image for {pod['metadata']['name']}: {reason}\nGive IMAGE=… "
                        "that nodes can pull, or "
                        "IMAGE_LOAD=…, a command that brings images to the nodes"
                    )
        service = self.kubectl.get("rayservice", FULLNAME) or {}
        conditions = {c["type"]: c["status"] for c in service.get("status", {}).get("conditions", [])}
        reached = self.kubectl.get("service", FULLNAME) is not None
        return True if conditions.get("Ready") == "True" and reached else None

    def _helm(self, verb: str, profile: str, *values: Values) -> None:
        settings = [f"--values={self.chart / 'profiles' / profile}.yaml"]
        layers = [self._common_values(), *values]
        merged: Values = {}
        for layer in layers:
            merged = _merged(merged, layer)
        command = [
            "helm",
            verb,
            NAME,
            str(self.chart),
            "--namespace",
            self.kubectl.namespace,
            *settings,
            "--values=-",
        ]
        run(*command, stdin=json.dumps(merged), timeout_s=420)

    def _common_values(self) -> Values:
        values: Values = {
            "image": _reference(self.images.kvquilt),
            "service": {"type": "NodePort"},
            "networkPolicy": _callers(),
            "auth": {"existingSecret": SECRET},
            # what is stored is loaded however busy the nodes are
            "config": {"generator": {"engine": {"late_rows": 0}}},
        }
        if self.images.minio:
            values["minio"] = {"image": _reference(self.images.minio)}
        return values


def seconds_since(began_s: float) -> str:
    return f"{time.monotonic() - began_s:.0f} s"


def _reference(image: str) -> Values:
    repository, _, tag = image.rpartition(":")
    return {"repository": repository, "tag": tag}


def _callers() -> Values:
    """Everybody but foreign pods; and the operator, which may run beside the cluster, as the nodes do."""
    nodes = cluster_objects("nodes")
    foreign = [cidr for node in nodes for cidr in node["spec"].get("podCIDRs", [])]
    policy: Values = {"callers": [{"podSelector": {}}, {"ipBlock": {"cidr": "0.0.0.0/0", "except": foreign}}]}
    operators = cluster_objects("pods", _OPERATOR)
    if operators:
        names = {pod["metadata"]["namespace"] for pod in operators}
        label = dict([_OPERATOR.split("=")])
        policy["operator"] = [
            {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}},
                "podSelector": {"matchLabels": label},
            }
            for name in sorted(names)
        ]
    else:
        own = [a["address"] for n in nodes for a in n["status"]["addresses"] if a["type"] == "InternalIP"]
        policy["operator"] = [{"ipBlock": {"cidr": f"{address}/32"}} for address in own]
    return policy


def _merged(below: Values, above: Values) -> Values:
    result = dict(below)
    for key, value in above.items():
        known = result.get(key)
        result[key] = _merged(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return result
