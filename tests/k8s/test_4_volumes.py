"""What outlives a release: its volumes, and with them every document and its KV. The second one has its
selector beside the generator."""

from __future__ import annotations

import asyncio
import json
import re
import time

from shared.clients.doors import store_client
from shared.request import RequestContext
from tests.k8s.asking import COLLECTION, DOCUMENTS, QUESTION, answer, cli
from tests.k8s.conftest import RECOVERY_S, Trial, answers
from tests.k8s.keys import CREDENTIALS
from tests.k8s.release import FULLNAME, NAME, seconds_since
from tests.k8s.shell import tell, wait_for

KINDS = "pods,services,deployments,secrets,configmaps,serviceaccounts,rayservices,networkpolicies,poddisruptionbudgets"  # noqa: E501


def test_a_second_install_on_the_volumes_of_the_first_answers_from_its_stored_kv(trial: Trial) -> None:
    before = asyncio.run(answer(trial.door.target))
    trial.release.uninstall()
    (secret,) = trial.kubectl.all(KINDS, f"app.kubernetes.io/instance={NAME}")
    assert secret["metadata"]["name"] == f"{FULLNAME}-installation", "it seals what is stored"
    claims = [claim["metadata"]["name"] for claim in trial.kubectl.all("persistentvolumeclaims")]
    assert len(claims) == 2, claims

    began_s = time.monotonic()
    trial.release.install("dev-cpu", {"selector": {"placement": "generators"}})
    trial.release.wait_until_ready()
    after = wait_for(lambda: answers(trial), "answer from the volumes", RECOVERY_S)
    tell(f"from the second install to its first answer: {seconds_since(began_s)}")
    assert after.text == before.text
    assert after.work == before.work
    assert after.usage.loaded_tokens > 0, "its KV came from the volumes"
    assert asyncio.run(num_stored(trial.door.target)) == 0, "nothing was computed for it"

    cli(trial.door.target, "ingest", str(DOCUMENTS), "-c", COLLECTION)
    assert asyncio.run(num_stored(trial.door.target)) == 0, "nor for documents that are there already"


def test_the_selector_stands_beside_the_generator(trial: Trial) -> None:
    ask = ("ask", QUESTION, "-c", COLLECTION, "--reuse", "cacheclip", "--json")
    told = json.loads(cli(trial.door.target, *ask))
    assert 0 < told["usage"]["recomputed_tokens"] < told["usage"]["reused_tokens"]
    for component, expected in (("generator", {"generator", "selector"}), ("services", {"gateway"})):
        (pod,) = trial.release.pods(component)
        commands = trial.kubectl(
            "exec", pod["metadata"]["name"], "--", "sh", "-c", "cat /proc/[0-9]*/cmdline"
        )
        serving = set(re.findall(r"ray::ServeReplica:(\w+):", commands))
        assert expected <= serving
        assert ("selector" in serving) == ("selector" in expected)


async def num_stored(target: str) -> int:
    """Chunks that were brought to the object store since the pods began."""
    async with store_client(target, CREDENTIALS) as store:
        stats = await store.stats(RequestContext.create(deadline_ms=30_000))
    return sum(node.counters.get("uploads", 0) for node in stats.nodes)
