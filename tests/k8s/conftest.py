"""The cluster, the images on it, and the releases that the modules share; in the order of the modules'
numbers."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pytest

from shared.errors import KvquiltError
from tests.k8s import images as image_store
from tests.k8s import servers
from tests.k8s.asking import ANSWER, COLLECTION, DOCUMENTS, Answered, answer, cli
from tests.k8s.door import Door
from tests.k8s.images import Earlier, Images
from tests.k8s.kubectl import Kubectl, cluster_objects
from tests.k8s.release import FULLNAME, Release, Values, seconds_since
from tests.k8s.shell import CommandFailed, run, tell, wait_for

RECOVERY_S = 180.0
_FAILED = pytest.StashKey[bool]()


@dataclass(frozen=True)
class Trial:
    """A running release, and the way to it from outside."""

    release: Release
    door: Door

    @property
    def kubectl(self) -> Kubectl:
        return self.release.kubectl


@pytest.fixture(scope="session")
def images() -> Images:
    """
    Raises:
        AssertionError: what is missing on this machine or in the cluster.
    """
    missing = [tool for tool in ("kubectl", "helm") if shutil.which(tool) is None]
    if missing:
        raise AssertionError(f"make test-k8s needs {' and '.join(missing)} on PATH")
    try:
        nodes = cluster_objects("nodes")
        cluster_objects("rayservices.ray.io")
    except CommandFailed as error:
        raise AssertionError(
            f"make test-k8s needs KUBECONFIG to lead to a cluster with the KubeRay operator: {error}"
        ) from None
    tell(f"the cluster has {len(nodes)} nodes")
    return image_store.prepare(os.environ)


@contextmanager
def namespace(purpose: str) -> Iterator[Kubectl]:
    """A new one; removed with all that is in it."""
    name = f"kvquilt-{purpose}-{secrets.token_hex(3)}"
    run("kubectl", "create", "namespace", name)
    try:
        yield Kubectl(name)
    finally:
        run("kubectl", "delete", "namespace", name, "--wait=true", timeout_s=300)


@contextmanager
def beside_servers(
    purpose: str, images: Images, *values: Values, redis: bool = False, earlier: Earlier | None = None
) -> Iterator[Trial]:
    """A release, with the demo's towns in it, beside an object store and a Milvus of somebody else, and with
    ``redis`` a Redis too; it is of the ``earlier`` state, if there is one. It is gone before its servers are:
    KubeRay clears up in Redis behind it."""
    with namespace(purpose) as kubectl:
        release, door = Release(kubectl, images), Door(kubectl, FULLNAME)
        if earlier is not None:
            its_own = replace(images, kvquilt=earlier.image)
            release = Release(kubectl, its_own, earlier.tree / "helm" / "kvquilt")
        servers.start(kubectl, images)
        if redis:
            servers.start_redis(kubectl, images)
            servers.wait(kubectl, servers.REDIS)
        release.install("dev-cpu", servers.BY_URI, *values)
        try:
            release.wait_until_ready()
            cli(door.target, "ingest", str(DOCUMENTS), "-c", COLLECTION)
            yield Trial(release, door)
        except BaseException:
            tell(kubectl.diagnosis())
            raise
        finally:
            door.close()
            release.uninstall(grace=redis)


@pytest.fixture(scope="session")
def trial(images: Images) -> Iterator[Trial]:
    """The profile dev-cpu with the demo's towns in it: one pod of services, one of generators, MinIO, the
    embedded Milvus."""
    with namespace("trial") as kubectl:
        release = Release(kubectl, images)
        door = Door(kubectl, FULLNAME)
        began_s = time.monotonic()
        try:
            release.install("dev-cpu")
            release.wait_until_ready()
            tell(f"ready after {seconds_since(began_s)}")
            cli(door.target, "ingest", str(DOCUMENTS), "-c", COLLECTION)
            assert ANSWER in asyncio.run(answer(door.target)).text
        except BaseException:
            tell(kubectl.diagnosis())
            raise
        tell(f"from helm install to the first answer: {seconds_since(began_s)}")
        yield Trial(release, door)
        door.close()


@pytest.fixture(autouse=True)
def begun_ready(request: pytest.FixtureRequest) -> None:
    """Every test begins with a release that is ready and answers, whatever the one before it left."""
    for fixture in ("trial", "pair"):
        if fixture in request.fixturenames:
            running: Trial = request.getfixturevalue(fixture)
            running.release.wait_until_ready()
            wait_for(lambda running=running: answers(running), "answer to begin with", RECOVERY_S)


def answers(trial: Trial) -> Answered | None:
    """The right answer; None: there is none yet."""
    try:
        answered = asyncio.run(answer(trial.door.target))
    except KvquiltError as error:
        tell(f"no answer yet: {error.detail}")
        return None
    return answered if ANSWER in answered.text else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[_FAILED] = item.stash.get(_FAILED, False) or report.failed
    return report


@pytest.fixture(autouse=True)
def told(request: pytest.FixtureRequest) -> Iterator[None]:
    """What the cluster says of a test that failed."""
    yield
    if request.node.stash.get(_FAILED, False):
        for fixture in ("trial", "pair"):
            if fixture in request.fixturenames:
                tell(request.getfixturevalue(fixture).kubectl.diagnosis())
