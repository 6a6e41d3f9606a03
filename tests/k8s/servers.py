"""An object store, a Milvus and a Redis outside the release, as an operator would have them: single pods,
reached by their Services."""

from __future__ import annotations

import secrets

from tests.k8s.images import Images
from tests.k8s.kubectl import Kubectl, Object
from tests.k8s.release import Values

MINIO, MINIO_PORT = "store", 9000
MILVUS, MILVUS_PORT = "index", 19530
REDIS, REDIS_PORT = "books", 6379
SECRET = "store-keys"
REDIS_SECRET = "books-password"
BY_URI: Values = {
    "minio": {"enabled": False},
    "objects": {"endpoint": f"{MINIO}:{MINIO_PORT}", "secure": False, "existingSecret": SECRET},
    "milvus": {"uri": f"http://{MILVUS}:{MILVUS_PORT}"},
}
BY_REDIS: Values = {
    "head": {
        "faultTolerance": {
            "redis": {"address": f"{REDIS}:{REDIS_PORT}", "existingSecret": REDIS_SECRET},
        }
    }
}
BY_ROCKSDB: Values = {"head": {"faultTolerance": {"rocksdb": {"enabled": True}}}}
_REDIS_IMAGE = "redis:7.4-bookworm"
_MINIO_IMAGE = "quay.io/minio/minio:RELEASE.2025-09-07T16-13-09Z"
# The embedded Milvus as a server: the same protocol, and clients need the address only.
_MILVUS = ["python", "-m", "services.retrieval.milvus_server", "/data/index", "0.0.0.0", f"{MILVUS_PORT}"]


def start(kubectl: Kubectl, images: Images) -> None:
    """Returns when both answer."""
    keys = {"AWS_ACCESS_KEY_ID": secrets.token_hex(8), "AWS_SECRET_ACCESS_KEY": secrets.token_hex(16)}
    put_secret(kubectl, SECRET, keys)
    variables = {"MINIO_ROOT_USER": "AWS_ACCESS_KEY_ID", "MINIO_ROOT_PASSWORD": "AWS_SECRET_ACCESS_KEY"}
    env = [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": SECRET, "key": key}}}
        for name, key in variables.items()
    ]
    args = ["server", "/data", "--address", f":{MINIO_PORT}"]
    _start(kubectl, MINIO, images.minio or _MINIO_IMAGE, MINIO_PORT, {"args": args, "env": env})
    _start(kubectl, MILVUS, images.kvquilt, MILVUS_PORT, {"command": _MILVUS})
    wait(kubectl, MINIO, MILVUS)


def start_redis(kubectl: Kubectl, images: Images) -> None:
    put_secret(kubectl, REDIS_SECRET, {"password": secrets.token_hex(16)})
    password = {"secretKeyRef": {"name": REDIS_SECRET, "key": "password"}}
    container: Object = {
        "command": ["redis-server"],
        "args": ["--requirepass", "$(PASSWORD)", "--dir", "/data", "--bind", "0.0.0.0"],
        # the second one is for redis-cli
        "env": [{"name": name, "valueFrom": password} for name in ("PASSWORD", "REDISCLI_AUTH")],
    }
    _start(kubectl, REDIS, images.redis or _REDIS_IMAGE, REDIS_PORT, container)


def redis_keys(kubectl: Kubectl) -> list[str]:
    """Every key in it."""
    return kubectl("exec", f"deployment/{REDIS}", "--", "redis-cli", "--scan").split()


def put_secret(kubectl: Kubectl, name: str, values: dict[str, str]) -> None:
    kubectl.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": values})


def wait(kubectl: Kubectl, *names: str) -> None:
    deployments = [f"deployment/{name}" for name in names]
    kubectl("wait", "--for=condition=Available", *deployments, "--timeout=180s", timeout_s=190)


def _start(kubectl: Kubectl, name: str, image: str, port: int, container: Object) -> None:
    labels = {"app": name}
    pod = {
        "containers": [
            {
                "name": name,
                "image": image,
                "imagePullPolicy": "IfNotPresent",
                "readinessProbe": {"tcpSocket": {"port": port}, "periodSeconds": 2},
                "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}},
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                **container,
            }
        ],
        "securityContext": {"fsGroup": 1000},
        "terminationGracePeriodSeconds": 1,
        "volumes": [{"name": "data", "emptyDir": {}}],
    }
    kubectl.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name},
            "spec": {"selector": labels, "ports": [{"port": port}]},
        },
    )
