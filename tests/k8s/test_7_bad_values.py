"""What is wrong says so where an operator looks, does not crash again and again, and leaves the other
services alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from shared.clients.doors import rag_client
from shared.clients.health import ServiceHealth
from shared.errors import KvquiltError
from shared.request import RequestContext
from tests.k8s import servers
from tests.k8s.conftest import namespace
from tests.k8s.door import Door
from tests.k8s.images import Images
from tests.k8s.keys import CREDENTIALS
from tests.k8s.kubectl import Kubectl
from tests.k8s.release import FULLNAME, Release, Values
from tests.k8s.shell import tell, wait_for

TOLD_S = 300.0
WRONG_KEYS = {"AWS_ACCESS_KEY_ID": "nobody-known", "AWS_SECRET_ACCESS_KEY": "not-the-secret-key"}


@pytest.fixture(scope="module")
def kubectl() -> Iterator[Kubectl]:
    """One namespace for all: volumes stay from test to test."""
    with namespace("bad") as made:
        yield made


@pytest.fixture
def release(kubectl: Kubectl, images: Images) -> Iterator[Release]:
    """Not installed yet."""
    release = Release(kubectl, images)
    yield release
    release.uninstall(grace=False)


# Several mistakes a release, of services that have nothing to do with each other: an install takes minutes.
def test_a_missing_secret_is_named_by_the_pods_and_what_else_is_missing_by_those_who_need_it(
    release: Release,
) -> None:
    forgotten: Values = {
        "minio": {"existingSecret": "nobody-made-it"},
        "model": {"path": "/models/forgotten"},
        "milvus": {"uri": "http://nobody-there:19530"},
        "config": {"retrieval": {"startup_timeout_s": 5}},
    }
    release.install("dev-cpu", forgotten)

    def told() -> list[str] | None:
        events = release.kubectl.events()
        return [event for event in events if 'secret "nobody-made-it" not found' in event] or None

    wait_for(told, "event of a pod that names the secret", TOLD_S)
    servers.put_secret(release.kubectl, "nobody-made-it", WRONG_KEYS)
    bad = unready(release)  # it goes on by itself once the secret is there
    assert "the Milvus server at milvus_uri does not answer" in bad.pop("retrieval")
    assert "no Milvus at http://nobody-there:19530" in logs(release, "services")
    assert set(bad) == {"generator", "ingestion", "selector"}  # the last reads the model's tokens
    assert all("there is no directory '/models/forgotten'" in detail for detail in bad.values())
    assert "there is no directory '/models/forgotten'" in logs(release, "generator")
    assert_no_restarts(release)


def test_refused_keys_of_the_object_store_are_told_by_the_store_alone(release: Release) -> None:
    servers.start(release.kubectl, release.images)
    servers.put_secret(release.kubectl, "wrong", WRONG_KEYS)
    release.install("dev-cpu", servers.BY_URI, {"objects": {"existingSecret": "wrong"}})
    bad = unready(release)
    assert set(bad) == {"kv_store"}
    assert "refuses these credentials: set AWS_ACCESS_KEY_ID" in bad["kv_store"]
    assert "refuses these credentials" in logs(release, "head")
    assert_no_restarts(release)


def unready(release: Release) -> dict[str, str]:
    """Service → what it says, once all are up and some of them say why they are not ready."""
    try:
        release.wait_until_ready()
        door = Door(release.kubectl, FULLNAME)
        bad = wait_for(lambda: _unready(door.target), "service that says what is wrong", TOLD_S)
        door.close()
    except BaseException:
        tell(release.kubectl.diagnosis())
        raise
    return bad


def _unready(target: str) -> dict[str, str] | None:
    """None while one does not answer at all, or nothing is wrong yet."""

    async def ask() -> list[ServiceHealth]:
        async with rag_client(target, CREDENTIALS) as client:
            return await client.status(RequestContext.create(deadline_ms=20_000))

    try:
        services = asyncio.run(ask())
    except KvquiltError:
        return None
    bad = {service.service: service.detail for service in services if not service.ready}
    return (
        bad
        if bad and all(bad.values()) and not any("no answer" in detail for detail in bad.values())
        else None
    )


def logs(release: Release, component: str) -> str:
    return "".join(release.kubectl("logs", pod["metadata"]["name"]) for pod in release.pods(component))


def assert_no_restarts(release: Release) -> None:
    for pod in release.pods():
        assert [s["restartCount"] for s in pod["status"]["containerStatuses"]] == [0]
