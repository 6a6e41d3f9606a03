"""A trial release as its first user meets it: asked from outside, tested by Helm, closed to strangers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator

import pytest

from tests.k8s.asking import ANSWER, COLLECTION, QUESTION, cli
from tests.k8s.conftest import Trial, namespace
from tests.k8s.keys import KEY
from tests.k8s.kubectl import Kubectl
from tests.k8s.release import FULLNAME
from tests.k8s.shell import run

# Ports that listen on a pod's address, one a line.
LISTENING = """
lines = [line.split() for name in ("tcp", "tcp6") for line in open(f"/proc/net/{name}").readlines()[1:]]
loopback = ("0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000")
print(*sorted({int(l[1].split(":")[1], 16) for l in lines if l[3] == "0A" and l[1].split(":")[0] not in loopback}), sep="\\n")
"""  # noqa: E501
# Of the arguments host:port those that take a connection.
OPEN = """
import socket, sys
for address in sys.argv[1:]:
    try:
        socket.create_connection(address.rsplit(":", 1), 1).close()
        print(address)
    except OSError:
        pass
"""
# What is read at the address that is the first argument, with the key that is the second.
MODELS = """
import sys, urllib.request
asked = urllib.request.Request(sys.argv[1], headers={"Authorization": f"Bearer {sys.argv[2]}"})
print(urllib.request.urlopen(asked, timeout=30).read().decode())
"""


def test_the_command_line_works_from_outside(trial: Trial) -> None:
    assert "ready" in cli(trial.door.target, "status")
    told = json.loads(cli(trial.door.target, "ask", QUESTION, "-c", COLLECTION, "--json"))
    assert ANSWER in told["answers"][0]["text"]
    assert told["usage"]["reused_tokens"] > 0
    assert (
        told["usage"]["recomputed_tokens"] == 0
        or told["usage"]["recomputed_tokens"] < told["usage"]["reused_tokens"]
    )


def test_a_selector_chooses_the_tokens_that_are_recomputed(trial: Trial) -> None:
    ask = ("ask", QUESTION, "-c", COLLECTION, "--reuse", "cacheclip", "--json")
    told = json.loads(cli(trial.door.target, *ask))
    assert told["usage"]["reuse"] == "cacheclip"
    assert 0 < told["usage"]["recomputed_tokens"] < told["usage"]["reused_tokens"]


def test_helm_test_passes(trial: Trial) -> None:
    assert "Succeeded" in trial.release.test()


@pytest.mark.skipif(shutil.which("grpcurl") is None, reason="grpcurl is not on PATH")
def test_grpcurl_asks_by_reflection(trial: Trial) -> None:
    request = json.dumps({"collection": COLLECTION, "questions": [QUESTION]})
    command = [
        "grpcurl",
        "-plaintext",
        "-H",
        "application: gateway",
        "-H",
        f"authorization: Bearer {KEY}",
        "-d",
        request,
        trial.door.target,
        "kvquilt.v1.Rag/Answer",
    ]
    told = run(*command)
    assert ANSWER in told
    assert '"done"' in told


def test_openais_clients_find_the_gateway_by_its_own_service(trial: Trial) -> None:
    insider = trial.release.pods("services")[0]["metadata"]["name"]
    listed = json.loads(trial.kubectl.python(insider, MODELS, f"http://{FULLNAME}-http:8000/v1/models", KEY))
    assert [model["id"] for model in listed["data"]] == ["demo", "demo:full", "demo:auto", "minilm"]


def test_no_pod_runs_as_root_or_may_become_it(trial: Trial) -> None:
    for pod in trial.release.pods():
        name = pod["metadata"]["name"]
        assert trial.kubectl.python(name, "import os; print(os.getuid())").strip() == "1000"
        assert all(not c["securityContext"]["allowPrivilegeEscalation"] for c in pod["spec"]["containers"])


@pytest.fixture(scope="module")
def stranger(trial: Trial) -> Iterator[Kubectl]:
    """A pod called ``stranger`` in a namespace of its own."""
    with namespace("stranger") as kubectl:
        container = {
            "name": "stranger",
            "image": trial.release.images.kvquilt,
            "imagePullPolicy": "IfNotPresent",
            "command": ["sleep", "600"],
            "resources": {"requests": {"cpu": "50m"}},
        }
        kubectl.apply(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "stranger"},
                "spec": {"containers": [container], "terminationGracePeriodSeconds": 0},
            }
        )
        kubectl("wait", "--for=condition=Ready", "pod/stranger", "--timeout=120s", timeout_s=130)
        yield kubectl


def test_a_foreign_pod_reaches_no_port_of_ray_the_agents_or_minio(trial: Trial, stranger: Kubectl) -> None:
    addresses = []
    for pod in trial.release.pods():
        ports = trial.kubectl.python(pod["metadata"]["name"], LISTENING).split()
        addresses += [f"{pod['status']['podIP']}:{port}" for port in ports]
    minio = [f"{pod['status']['podIP']}:9000" for pod in trial.release.pods("minio")]
    assert minio

    insider = trial.release.pods("services")[0]["metadata"]["name"]
    reached = trial.kubectl.python(insider, OPEN, *addresses, *minio).split()
    assert set(minio) < set(reached)
    assert len(reached) > 10, "the ports of Ray, Serve and the agents of several pods"
    assert stranger.python("stranger", OPEN, *reached, timeout_s=180).split() == []
