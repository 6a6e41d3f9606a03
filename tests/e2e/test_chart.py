"""The Serve configuration that the chart renders, on a Ray of this machine, given to it as KubeRay does: by
Ray's REST API."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.paths import DEMO_ASSETS
from load_tests.servers.s3 import S3Server
from shared.clients.doors import rag_client
from shared.config import API_KEY
from shared.errors import Unauthenticated
from shared.request import RequestContext
from tests.e2e.ray_cluster import STATES_PAUSE_S, Cluster, environment, running_cluster
from tests.e2e.stack import wait_for
from tests.helm import CHART, Helm, only, profile, serve_config_of
from tests.minio_server import new_bucket

pytestmark = pytest.mark.e2e
NUM_GENERATOR_PODS = 2


@pytest.fixture
def cluster(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, s3_server: S3Server, helm: Helm
) -> Iterator[Cluster]:
    rayservice = only(helm.render(profile("dev-cpu")), "RayService")
    resources = {"kvquilt_services": 1000, "kvquilt_generator": NUM_GENERATOR_PODS}
    with running_cluster(rayservice, tmp_path, tmp_path_factory.mktemp("r"), resources) as running:
        yield running


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
        300,
        STATES_PAUSE_S,
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
    async with rag_client(cluster.target) as client:
        with pytest.raises(Unauthenticated):
            await client.status(RequestContext.create())


def helm_test(cluster: Cluster, key: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """What the pod of ``helm test`` runs."""
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))["test"]
    given = {name.upper(): values[name] for name in ("document", "question", "answer")}
    script = (CHART / "files" / "test.sh").read_text(encoding="utf-8")
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        env=environment() | given | {"TARGET": cluster.target, API_KEY: key} | changes,
        cwd=cluster.directory,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
