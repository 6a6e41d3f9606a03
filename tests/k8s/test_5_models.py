"""A model that a job of the chart brings to a volume, and pods that serve it from there."""

from __future__ import annotations

import json

from tests.k8s.asking import DOCUMENTS, QUESTION, cli
from tests.k8s.conftest import RECOVERY_S, Trial
from tests.k8s.kubectl import Object
from tests.k8s.release import Values
from tests.k8s.shell import CommandFailed, tell, wait_for

COLLECTION = "towns-of-smollm2"
CLAIM: Object = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "models"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2Gi"}}},
}
MODEL: Values = {
    "model": {
        "existingClaim": "models",
        "subPath": "smollm2",
        "path": "/models/served",
        "pull": {"model": "smollm2", "resources": {"requests": {"cpu": "100m", "memory": "512Mi"}}},
    },
    "config": {"gateway": {"http": {"model": "smollm2"}}},
}


def test_pods_serve_the_model_that_the_job_brought(trial: Trial) -> None:
    """The last test of the trial, on its volumes: the model stays another one."""
    trial.release.uninstall(grace=False)
    trial.kubectl.apply(CLAIM)
    trial.release.install("dev-cpu", MODEL)  # fails if the job does
    trial.release.wait_until_ready()
    wait_for(lambda: ingested(trial.door.target), "ingestion to begin with", RECOVERY_S)
    target = trial.door.target
    answered = json.loads(cli(target, "ask", QUESTION, "-c", COLLECTION, "--json"))
    assert answered["answers"][0]["text"].strip()
    assert answered["usage"]["reused_tokens"] > 0
    assert "/models/served" in cli(target, "status")
    trial.release.uninstall(grace=False)  # the nodes are free for the others


def ingested(target: str) -> str | None:
    """What ingestion told; None: what was just installed did not answer yet."""
    try:
        return cli(target, "ingest", str(DOCUMENTS), "-c", COLLECTION)
    except CommandFailed as error:
        tell(f"not ingested yet: {error}")
        return None
