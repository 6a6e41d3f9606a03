"""With the object store by URI and a Milvus in a pod of its own, new pods come as a second Ray cluster beside
the first, and nobody notices."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.k8s import servers
from tests.k8s.asking import ANSWER, Trickle, answer
from tests.k8s.conftest import Trial, beside_servers
from tests.k8s.images import Images
from tests.k8s.release import Values

OWN_MILVUS: Values = {"milvus": {"uri": "", "enabled": True}}


@pytest.fixture(scope="module")
def pair(images: Images) -> Iterator[Trial]:
    with beside_servers("pair", images, OWN_MILVUS) as running:
        yield running


def test_no_question_fails_while_a_second_cluster_takes_over_from_the_first(pair: Trial) -> None:
    (first,) = pair.release.ray_clusters()
    stored = asyncio.run(answer(pair.door.target))
    with Trickle(pair.door) as trickle:
        changed: Values = {"generator": {"annotations": {"changed": "yes"}}}
        pair.release.upgrade("dev-cpu", servers.BY_URI, OWN_MILVUS, changed)
        seen = pair.release.wait_for_takeover(first)
    trickle.check()
    assert len(seen) == 2, "the first one stayed until the second was ready"
    assert all(pod["metadata"]["annotations"]["changed"] == "yes" for pod in pair.release.pods("generator"))

    again = asyncio.run(answer(pair.door.target))
    assert (ANSWER in again.text, again.text, again.work) == (True, stored.text, stored.work)
