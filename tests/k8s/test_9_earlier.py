"""A release of an earlier state of the project, with what it stored, becomes this one and goes back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.k8s import servers
from tests.k8s.asking import ANSWER, Trickle, answer, cli
from tests.k8s.conftest import Trial, beside_servers
from tests.k8s.images import Images
from tests.k8s.release import Release
from tests.k8s.test_4_volumes import num_stored
from tests.k8s.test_8_head import documents_of

NEWS = "news"


@pytest.fixture
def pair(images: Images) -> Iterator[Trial]:
    if images.earlier is None:
        pytest.skip("EARLIER names no earlier state of the project")
    with beside_servers("earlier", images, earlier=images.earlier) as running:
        yield running


def test_no_question_fails_while_an_earlier_release_becomes_this_one_and_goes_back(
    pair: Trial, images: Images, tmp_path: Path
) -> None:
    stored = asyncio.run(answer(pair.door.target))
    documents = asyncio.run(documents_of(pair.door.target))

    (first,) = pair.release.ray_clusters()
    with Trickle(pair.door) as trickle:
        Release(pair.kubectl, images).upgrade("dev-cpu", servers.BY_URI)
        pair.release.wait_for_takeover(first)
    trickle.check()
    check(pair, images.kvquilt, stored.text)
    (tmp_path / "news.txt").write_text("The password of the day is Kiefernzapfen.")
    cli(pair.door.target, "ingest", str(tmp_path), "-c", NEWS)
    news = asyncio.run(documents_of(pair.door.target, NEWS))
    assert asyncio.run(documents_of(pair.door.target)) == documents

    (second,) = pair.release.ray_clusters()
    with Trickle(pair.door) as trickle:
        pair.release.rollback()
        pair.release.wait_for_takeover(second)
    trickle.check()
    check(pair, pair.release.images.kvquilt, stored.text)
    assert asyncio.run(documents_of(pair.door.target)) == documents
    assert asyncio.run(documents_of(pair.door.target, NEWS)) == news != {}, "what this one stored"


def check(pair: Trial, image: str, text: str) -> None:
    """Pods of ``image`` answer from what is stored."""
    assert {pod["spec"]["containers"][0]["image"] for pod in pair.release.pods()} == {image}
    answered = asyncio.run(answer(pair.door.target))
    assert ANSWER in answered.text
    assert answered.text == text
    assert asyncio.run(num_stored(pair.door.target)) == 0, "nothing was computed for it"
