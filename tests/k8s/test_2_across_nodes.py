"""Two generators on two nodes: stored KV goes from one to the other, once, and both say the same."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shared.clients.doors import generation_client, store_client
from shared.generation.asked import SamplingParams
from shared.generation.modes import ReuseMode
from shared.generation.orders import GenerationOrder, Reuse
from shared.generation.told import TokenEvent
from shared.request import RequestContext
from tests.k8s.asking import cli
from tests.k8s.conftest import Trial
from tests.k8s.door import door_to_pod
from tests.k8s.keys import CREDENTIALS
from tests.k8s.kubectl import Object

NUM_ASKERS = 8
FETCHES = ("object_fetches", "peer_fetches")
RAY_NODES = """
import ray
ray.init(address="auto", log_to_driver=False)
print(*(f"{node['NodeID']}={node['NodeManagerAddress']}" for node in ray.nodes() if node["Alive"]))
"""
OPEN_MANY = """
import asyncio
from pathlib import Path
import ray
from shared.clients.agent_actor import agent_address
from shared.clients.own_node import AgentConnection
from shared.principals.credentials import ServiceIdentity
from shared.principals.secret import signer_of
from shared.principals.services import credentials_of
from shared.request import RequestContext

async def main():
    secret = Path("/etc/kvquilt/installation/secret")
    service = ServiceIdentity("test", signer_of(secret)) if secret.exists() else None
    agent = AgentConnection(await agent_address("NODE"), credentials_of(service))
    ctx = RequestContext.create(deadline_ms=60_000)
    await asyncio.gather(*(agent.open(ctx, ["CHUNK"], "NODE") for _ in range(ASKERS)))
    while (opened := (await agent.open(ctx, ["CHUNK"], "NODE"))[0]).progress or not opened.exists:
        await asyncio.sleep(0.05)
    print(opened.size_bytes)

ray.init(address="auto", log_to_driver=False)
asyncio.run(asyncio.wait_for(main(), 60))
"""


def ctx() -> RequestContext:
    return RequestContext.create(deadline_ms=60_000)


@pytest.fixture(scope="module")
def generators(trial: Trial) -> list[Object]:
    trial.release.upgrade("dev-cpu", {"generator": {"replicas": 2}})
    return trial.release.ready_pods("generator", 2)


def test_the_generators_stand_on_different_nodes(trial: Trial, generators: list[Object]) -> None:
    num_nodes = len(json.loads(trial.kubectl("get", "nodes", "--output", "json"))["items"])
    assert len({pod["spec"]["nodeName"] for pod in generators}) == min(num_nodes, 2)


def test_every_pod_of_ray_has_an_agent_with_a_cache_of_its_own(
    trial: Trial, generators: list[Object]
) -> None:
    pods = trial.release.pods()
    caches = [next(v for v in pod["spec"]["volumes"] if v["name"] == "kv-cache") for pod in pods]
    assert all("emptyDir" in cache for cache in caches)

    async def num_agents() -> int:
        async with store_client(trial.door.target, CREDENTIALS) as store:
            async with asyncio.timeout(60):
                while (stats := await store.stats(ctx())).num_unreachable or len(stats.nodes) != len(pods):
                    await asyncio.sleep(1)
        return len(stats.nodes)

    assert asyncio.run(num_agents()) == len(pods) == 4


def test_a_chunk_written_on_one_node_comes_to_the_other_once_for_all_who_ask(
    trial: Trial, generators: list[Object], tmp_path: Path
) -> None:
    collection = f"once-{secrets.token_hex(4)}"
    (tmp_path / "news.txt").write_text(
        f"The password of the day is {secrets.token_hex(8)}. Nobody asked for it yet."
    )
    cli(trial.door.target, "ingest", str(tmp_path), "-c", collection)
    (chunk_id,) = asyncio.run(chunk_ids(trial.door.target, collection))
    nodes = asyncio.run(generator_nodes(trial, generators))

    before = asyncio.run(fetches(trial, nodes))
    with ThreadPoolExecutor() as at_once:
        script = OPEN_MANY.replace("CHUNK", chunk_id).replace("ASKERS", str(NUM_ASKERS))
        sizes = at_once.map(
            lambda pod, node: trial.kubectl.python(pod["metadata"]["name"], script.replace("NODE", node)),
            generators,
            nodes,
        )
        assert len(set(sizes)) == 1
    fetched = asyncio.run(fetches(trial, nodes)) - before
    assert fetched.total() == 1, f"one of {len(nodes)} nodes computed it, the other fetched it: {fetched}"


def test_generators_on_two_nodes_answer_the_same_tokens(trial: Trial, generators: list[Object]) -> None:
    chunk = tuple(secrets.randbelow(200) + 20 for _ in range(64))
    before = asyncio.run(all_opens(trial))
    answers = []
    for pod in generators:
        with door_to_pod(trial.kubectl, pod["metadata"]["name"]) as target:
            answers.append(asyncio.run(generated(target, chunk)))
    after = asyncio.run(all_opens(trial))
    assert len(answers[0]) == 16
    assert answers[0] == answers[1]
    assert len(after - before) == 2, (
        "each proxy asks the generator of its own pod, and that one its own agent"
    )


async def generated(target: str, chunk: tuple[int, ...]) -> list[int]:
    async with generation_client(target, CREDENTIALS) as generator:
        sampling = SamplingParams(max_tokens=16, ignore_eos=True)
        order = GenerationOrder((chunk,), ("Who?",), reuse=Reuse(ReuseMode.REORDERED), sampling=sampling)
        events = generator.generate(ctx(), order)
        return [event.token_id async for event in events if isinstance(event, TokenEvent)]


async def chunk_ids(target: str, collection: str) -> list[str]:
    async with store_client(target, CREDENTIALS) as store:
        page = await store.manifest_page(ctx(), collection)
    return [chunk.chunk_id for manifest in page.manifests for chunk in manifest.chunks]


async def generator_nodes(trial: Trial, generators: list[Object]) -> list[str]:
    """Ray's ids of the nodes that the generators' pods are."""
    told = trial.kubectl.python(generators[0]["metadata"]["name"], RAY_NODES).split()
    by_address = {address: node_id for node_id, _, address in (pair.partition("=") for pair in told)}
    return [by_address[pod["status"]["podIP"]] for pod in generators]


async def fetches(trial: Trial, nodes: list[str]) -> Counter[str]:
    async with store_client(trial.door.target, CREDENTIALS) as store:
        stats = await store.stats(ctx())
    return Counter(
        {
            n.node_id: n.counters.get("object_fetches", 0) + n.counters.get("peer_fetches", 0)
            for n in stats.nodes
            if n.node_id in nodes
        }
    )


async def all_opens(trial: Trial) -> Counter[str]:
    async with store_client(trial.door.target, CREDENTIALS) as store:
        return Counter({n.node_id: n.counters.get("opens", 0) for n in (await store.stats(ctx())).nodes})
