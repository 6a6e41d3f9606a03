"""What becomes of a release whose head is lost under questions: with a Redis or a RocksDB that keeps its
book-keeping, and without."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.clients.doors import store_client
from shared.request import RequestContext
from tests.k8s import servers
from tests.k8s.asking import ANSWER, COLLECTION, Trickle, answer, cli
from tests.k8s.conftest import RECOVERY_S, Trial, answers, beside_servers
from tests.k8s.images import Images
from tests.k8s.keys import CREDENTIALS
from tests.k8s.kubectl import Object, is_ready
from tests.k8s.release import Release, Values, seconds_since
from tests.k8s.shell import CommandFailed, tell, wait_for
from tests.k8s.test_4_volumes import num_stored

COMPONENTS = ("services", "generator")
LOST_S = 600.0
CLEARED_S = 180.0
# Ends what `ray start --block` watches: the container ends with it, and starts again in the same pod.
KILL_GCS = """
import os, pathlib
for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    if b"gcs_server" in path.read_bytes().split(b"\\0")[0]:
        os.kill(int(path.parent.name), 9)
        print("killed")
"""
DELETED, KILLED = "the pod is deleted", "its process is killed"


class Kept:
    """Its book-keeping outlives it."""

    @pytest.mark.parametrize("how", [DELETED, KILLED])
    def test_answers_go_on_and_ingestion_resumes_when_the_head_is_lost(
        self, pair: Trial, tmp_path: Path, how: str
    ) -> None:
        stored, lives = asyncio.run(answer(pair.door.target)), lives_of_workers(pair.release)
        with Trickle(pair.door) as trickle:
            lost = lose_head(pair, how)
            began_s = time.monotonic()
            wait_for(lambda: told_by_ingestion(pair, tmp_path), "ingestion", RECOVERY_S)
            tell(f"a document that came while there was no head is ingested after {seconds_since(began_s)}")
            wait_for(lambda: another_head(pair.release, lost), "another head", RECOVERY_S)
            pair.release.wait_until_ready()
        trickle.check()
        assert lives_of_workers(pair.release) == lives, "no other pod noticed"
        again = asyncio.run(answer(pair.door.target))
        assert (ANSWER in again.text, again.text, again.work) == (True, stored.text, stored.work)


class TestWithRocksDb(Kept):
    @pytest.fixture(scope="class")
    @classmethod
    def pair(cls, images: Images) -> Iterator[Trial]:
        with beside_servers("rocksdb", images, servers.BY_ROCKSDB) as running:
            yield running


class TestWithRedis(Kept):
    @pytest.fixture(scope="class")
    @classmethod
    def pair(cls, images: Images) -> Iterator[Trial]:
        with beside_servers("redis", images, servers.BY_REDIS, redis=True) as running:
            assert servers.redis_keys(running.kubectl), "the head keeps its books there"
            yield running

    def test_settings_change_in_place_under_the_new_head(self, pair: Trial) -> None:
        """Serve's controller goes on where the lost one was."""
        (cluster,) = pair.release.ray_clusters()
        with Trickle(pair.door) as trickle:
            scaled: Values = {"generator": {"replicas": 2}}
            pair.release.upgrade("dev-cpu", servers.BY_URI, servers.BY_REDIS, scaled)
            pair.release.ready_pods("generator", 2)
            pair.release.wait_until_ready()
        trickle.check()
        assert pair.release.ray_clusters() == [cluster]

    def test_a_secret_without_the_key_is_named_before_anything_changes(self, pair: Trial) -> None:
        servers.put_secret(pair.kubectl, "keyless", {"passwort": "x"})
        wrong: Values = {"head": {"faultTolerance": {"redis": {"existingSecret": "keyless"}}}}
        with pytest.raises(CommandFailed, match='"keyless" has no key password, but passwort'):
            pair.release.upgrade("dev-cpu", servers.BY_URI, servers.BY_REDIS, wrong)

    def test_nothing_of_the_release_stays_in_redis(self, pair: Trial) -> None:
        pair.release.uninstall()
        wait_for(lambda: None if servers.redis_keys(pair.kubectl) else True, "empty Redis", CLEARED_S)
        wait_for(lambda: None if pair.release.ray_clusters() else True, "end of the Ray cluster", CLEARED_S)


class TestWithoutRedis:
    @pytest.fixture(scope="class")
    @classmethod
    def pair(cls, images: Images) -> Iterator[Trial]:
        with beside_servers("headless", images) as running:
            yield running

    @pytest.mark.parametrize("how", [DELETED, KILLED])
    def test_a_lost_head_takes_every_pod_along_and_nothing_that_is_stored(
        self, pair: Trial, how: str
    ) -> None:
        stored, lives = asyncio.run(answer(pair.door.target)), lives_of_workers(pair.release)
        documents = asyncio.run(documents_of(pair.door.target))
        with Trickle(pair.door) as trickle:
            began_s = time.monotonic()
            lost = lose_head(pair, how)
            wait_for(lambda: another_head(pair.release, lost), "another head", RECOVERY_S)
            wait_for(lambda: others_live(pair.release, lives), "pods that began anew", LOST_S)
            tell(f"all pods began anew after {seconds_since(began_s)}")
            pair.release.wait_until_ready()
            wait_for(lambda: answers(pair), "answer from the new pods", LOST_S)
            tell(f"and answer after {seconds_since(began_s)}")
        tell(f"meanwhile callers were told {dict(trickle.failures)}")
        again = asyncio.run(answer(pair.door.target))
        assert (ANSWER in again.text, again.text, again.work) == (True, stored.text, stored.work)
        assert asyncio.run(documents_of(pair.door.target)) == documents
        assert asyncio.run(num_stored(pair.door.target)) == 0, "nothing was computed for it"


def lose_head(trial: Trial, how: str) -> tuple[str, int]:
    """Its life, which ends."""
    (head,) = trial.release.ready_pods("head", 1)
    name = head["metadata"]["name"]
    tell(f"head {name}: {how}")
    if how == DELETED:
        trial.kubectl("delete", "pod", name, "--grace-period=0", "--force", "--wait=false")
    else:
        assert "killed" in trial.kubectl.python(name, KILL_GCS)
    return lives_of(head)


def another_head(release: Release, lost: tuple[str, int]) -> bool | None:
    """Whether it is ready."""
    heads = release.pods("head")
    return True if len(heads) == 1 and is_ready(heads[0]) and lives_of(heads[0]) != lost else None


def lives_of(pod: Object) -> tuple[str, int]:
    """Another one for every time that its container began."""
    containers = pod["status"].get("containerStatuses", [])
    return pod["metadata"]["name"], sum(container["restartCount"] for container in containers)


def lives_of_workers(release: Release) -> set[tuple[str, int]]:
    return {lives_of(pod) for component in COMPONENTS for pod in release.pods(component)}


def others_live(release: Release, before: set[tuple[str, int]]) -> bool | None:
    """Whether as many live as before, and none of those."""
    now = lives_of_workers(release)
    return True if len(now) == len(before) and not now & before else None


def told_by_ingestion(trial: Trial, folder: Path) -> str | None:
    """What it told of a document that nobody has brought before; None: it did not take it yet."""
    secret = secrets.token_hex(8)
    (folder / "news.txt").write_text(f"The password of the day is {secret}. Nobody asked for it yet.")
    try:
        told = cli(trial.door.target, "ingest", str(folder), "-c", f"news-{secret}")
    except CommandFailed as error:
        tell(f"not ingested yet: {error}")
        return None
    return told


async def documents_of(target: str, collection: str = COLLECTION) -> dict[str, list[str]]:
    """Its documents and their chunks."""
    async with store_client(target, CREDENTIALS) as store:
        page = await store.manifest_page(RequestContext.create(deadline_ms=30_000), collection)
    return {m.document_id: [chunk.chunk_id for chunk in m.chunks] for m in page.manifests}
