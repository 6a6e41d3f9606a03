"""Two nodes of Ray with a network between them that is cut under questions: each has a generator, one has all
the rest. Nobody waits for ever, what is told may be tried again, and the node that comes back works again."""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cluster.paths import DEMO_ASSETS
from load_tests.cluster_soak.fault import ASKS
from load_tests.cluster_soak.ledger import FaultLedger
from load_tests.cluster_soak.workers import PAUSE_S, Asker, answer_of, work
from load_tests.servers.network_namespace import NetworkNamespace, NoNetworkNamespace
from load_tests.servers.s3 import S3Server
from shared.answer import AnswerUsage, HandedDocument, Inquiry
from shared.clients.doors import ingest_client, rag_client
from shared.clients.rag import RagClient
from shared.documents import SourceDocument, Stage
from shared.generation.asked import SamplingParams
from shared.principals.credentials import bearer
from shared.request import RequestContext
from tests.e2e.ray_cluster import STATES_PAUSE_S, Cluster, ray_node, running_cluster
from tests.e2e.stack import wait_for
from tests.helm import Helm, only, profile, serve_config_of

pytestmark = pytest.mark.e2e
COLLECTION, DOCUMENTS = "towns", DEMO_ASSETS / "documents" / "towns"
TOWNS = ("Almwick", "Ildrath", "Rudeley", "Tambach", "Tamdal", "Zannau")
QUESTIONS = tuple(f"What is known of {town}?" for town in TOWNS)
NUM_ASKERS = 3
RECOVERY_S = 150.0
SELDOM_S = 2.0  # between the questions of who goes on while a node starts, which needs some of two processors


@dataclass
class TwoNodes:
    """The head and the services are ``near``, on this machine; ``far`` is a node beyond the link."""

    cluster: Cluster
    network: NetworkNamespace
    key: str
    ends: ExitStack
    far: subprocess.Popen[bytes] = field(init=False)

    def start_far(self) -> None:
        """It sees directories of its own where the head has its."""
        cluster = self.cluster
        own = [cluster.directory / "far" / name for name in ("data", "temporary")]
        seen = [cluster.directory / "data", cluster.temporary]
        for directory in (*own, *seen):
            directory.mkdir(parents=True, exist_ok=True)
        mounts = " && ".join(f"mount --bind {mine} {there}" for mine, there in zip(own, seen, strict=True))
        options = [
            f"--address={self.network.here}:{cluster.ports['gcs']}",
            f"--node-ip-address={self.network.there}",
            "--num-gpus=0",
            "--object-store-memory=104857600",
            f"--resources={json.dumps({'kvquilt_generator': 1})}",
        ]
        within = self.network.command("sh", "-c", f'{mounts} && exec "$@"', "sh")
        self.far = self.ends.enter_context(ray_node(cluster, options, cluster.directory / "far.log", within))

    def is_far_given_up(self) -> bool | None:
        """Whether Ray counts it among the dead."""
        return True if self.cluster.nodes()[self.network.there] == "DEAD" else None

    def has_far_ended(self) -> bool | None:
        return None if self.far.poll() is None else True

    def bring_back_far(self) -> bool | None:
        """Starts the far node if it has ended, as whoever runs nodes does; true when all replicas run. More
        than once, since Ray ends a node whose agents told no ports in 15 seconds (ray-project/ray#65983)."""
        if self.has_far_ended():
            self.start_far()
        return True if set(self.cluster.states().values()) == {"RUNNING"} else None


@pytest.fixture
def two(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    helm: Helm,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[TwoNodes]:
    try:
        network = NetworkNamespace()
    except NoNetworkNamespace as reason:
        pytest.skip(str(reason))
    with ExitStack() as stack:
        stack.enter_context(closing(network))
        store = stack.enter_context(closing(S3Server(tmp_path / "s3" / "data", host=network.here)))
        objects = helm.render(
            profile("dev-cpu"),
            **{
                "objects.endpoint": store.endpoint,
                "objects.secure": False,
                "minio.enabled": False,
                "auth.mode": "required",
                "generator.replicas": 2,
                "config.generator.routing": "rendezvous",  # some are asked of each
                "config.selector.model": str(DEMO_ASSETS / "model" / "auxiliary"),
            },
        )
        resources = {"kvquilt_services": 1000, "kvquilt_generator": 1}
        rayservice, temporary = only(objects, "RayService"), tmp_path_factory.mktemp("r")
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        cluster = stack.enter_context(
            running_cluster(rayservice, tmp_path, temporary, resources, network.here)
        )
        nodes = TwoNodes(cluster, network, cluster.mount(objects), stack)
        nodes.start_far()
        cluster.deploy(serve_config_of(objects))
        yield nodes


@pytest.mark.timeout(1200)
async def test_a_cut_between_two_nodes_fails_no_question_for_good_and_holds_none(two: TwoNodes) -> None:
    credentials = bearer(two.key)
    async with (
        rag_client(two.cluster.target, credentials) as rag,
        ingest_client(two.cluster.target, credentials) as ingest,
    ):
        towns = [SourceDocument(path.name, path.read_bytes()) for path in sorted(DOCUMENTS.iterdir())]
        async for event in ingest.upsert(RequestContext.create(deadline_ms=120_000), COLLECTION, towns):
            assert event.stage is not Stage.FAILED, event.error
        expected = {question: await answer_of(rag, COLLECTION, question) for question in QUESTIONS}
        await both_answer(rag)

        ledger, over, others_over = FaultLedger({ASKS: NUM_ASKERS}), asyncio.Event(), asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for n in range(NUM_ASKERS):
                asker = Asker(n, rag, COLLECTION, expected, random.Random(n))
                until, pause_s = (others_over, PAUSE_S) if n else (over, SELDOM_S)
                group.create_task(work(asker, ledger, until.is_set, pause_s))
            await asyncio.sleep(3)
            ledger.strike("the network is cut")
            two.network.cut()
            await recovered(ledger)
            await until_seen(two.is_far_given_up, "notice of the cut")
            ledger.strike("it is there again")
            two.network.heal()
            await recovered(ledger)
            others_over.set()
            await until_seen(two.has_far_ended, "end of the far node, which Ray gave up")
            async with asyncio.timeout(RECOVERY_S):
                await until_seen(two.bring_back_far, "both generators")
                await both_answer(rag)
            over.set()


async def until_seen(probe: Callable[[], bool | None], what: str) -> None:
    await asyncio.to_thread(wait_for, probe, what, RECOVERY_S, STATES_PAUSE_S)


async def recovered(ledger: FaultLedger) -> None:
    """Every asker had an answer to a question that it asked since."""
    async with asyncio.timeout(RECOVERY_S):
        while not ledger.recovered:
            await asyncio.sleep(0.1)


async def both_answer(rag: RagClient) -> None:
    """Asks until there were answers of two generators."""
    async with asyncio.timeout(RECOVERY_S):
        while len(await replicas_that_answer(rag)) < 2:
            await asyncio.sleep(0.5)


async def replicas_that_answer(rag: RagClient) -> set[str]:
    """When several are asked at once about what none has seen: none is nearer to it than another."""

    async def one() -> str:
        document = HandedDocument("News", f"The password of the day is {secrets.token_hex(8)}.")
        inquiry = Inquiry(
            "",
            ("What is the password of the day?",),
            sampling=SamplingParams(max_tokens=4),
            explain=True,
            no_shadow=True,
            documents=(document,),
        )
        events = [event async for event in rag.answer(RequestContext.create(), inquiry)]
        (usage,) = (event.usage for event in events if isinstance(event, AnswerUsage))
        return usage.route.partition(": ")[0]

    return set(await asyncio.gather(*(one() for _ in range(6))))
