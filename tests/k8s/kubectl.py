"""One namespace of the cluster that KUBECONFIG names, through kubectl."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tests.k8s.shell import CommandFailed, run

Object = dict[str, Any]


@dataclass(frozen=True)
class Kubectl:
    namespace: str

    def __call__(self, *args: str, stdin: str = "", timeout_s: float = 60.0) -> str:
        return run("kubectl", "--namespace", self.namespace, *args, stdin=stdin, timeout_s=timeout_s)

    def all(self, kind: str, selector: str = "") -> list[Object]:
        items: list[Object] = json.loads(self("get", kind, "--selector", selector, "--output", "json"))[
            "items"
        ]
        return items

    def get(self, kind: str, name: str) -> Object | None:
        text = self("get", kind, name, "--ignore-not-found", "--output", "json")
        return json.loads(text) if text else None

    def apply(self, *objects: Object) -> None:
        self(
            "apply",
            "--filename",
            "-",
            stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}),
        )

    def python(self, pod: str, code: str, *args: str, timeout_s: float = 60.0) -> str:
        """What ``code`` prints in the first container of ``pod``."""
        return self("exec", pod, "--", "python", "-c", code, *args, timeout_s=timeout_s)

    def events(self) -> list[str]:
        """Reason and message of everything that happened in the namespace."""
        return [f"{event['reason']}: {event.get('message', '')}" for event in self.all("events")]

    def diagnosis(self) -> str:
        """What one would look at first when something is wrong here."""
        parts = []
        for args in (
            ("get", "pods,rayservices,rayclusters,services,persistentvolumeclaims", "--output", "wide"),
            ("get", "rayservices", "--output", "jsonpath={.items[*].status}"),
            ("get", "events", "--sort-by", ".lastTimestamp"),
        ):
            with suppress(CommandFailed):
                parts.append(self(*args)[-6000:])
        for pod in self.all("pods"):
            name = pod["metadata"]["name"]
            with suppress(CommandFailed):
                parts.append(
                    f"--- {name}\n"
                    + self("logs", name, "--tail", "40", "--all-containers", "--prefix")[-5000:]
                )
        return "\n".join(parts)


def cluster_objects(kind: str, selector: str = "") -> list[Object]:
    """Of all namespaces, or that have none."""
    text = run("kubectl", "get", kind, "--all-namespaces", "--selector", selector, "--output", "json")
    items: list[Object] = json.loads(text)["items"]
    return items


def is_ready(pod: Object) -> bool:
    conditions = pod["status"].get("conditions", [])
    return (
        any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
        and "deletionTimestamp" not in pod["metadata"]
    )


def waiting_reasons(pod: Object) -> list[str]:
    """Why containers of the pod do not run: ``reason: message``."""
    states = [s["state"].get("waiting") for s in pod["status"].get("containerStatuses", [])]
    return [f"{w.get('reason', '')}: {w.get('message', '')}" for w in states if w]
