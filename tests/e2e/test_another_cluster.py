"""A stack of gateway and ingestion alone: another stack serves all that they call, reached by address."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from cluster.cli.remote import rag_client
from cluster.local import launcher
from cluster.local.state import RunDirectory
from shared.answer import Inquiry
from shared.errors import NotFound
from shared.request import RequestContext
from tests.e2e import stack as stacks
from tests.e2e.stack import Stack

pytestmark = pytest.mark.e2e
ELSEWHERE = ("kv_store", "retrieval", "generator", "selector")
COLLECTION = "brought-from-elsewhere"
TEXT = "# Quernby\n\nThe ferry of Quernby is steered by Odalys Wren. It crosses the Tarn every hour.\n"
QUESTION = "Who steers the ferry of Quernby?"


@pytest.fixture(scope="module")
def front(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Started as an operator does it; ``stack`` is the other cluster."""
    folder = tmp_path_factory.mktemp("front")
    quilt = {
        "model": "demo",
        "grpc_port": launcher.free_port(),
        "http_port": launcher.free_port(),
        "ingestion": {"chunk_tokens": 96},
        "applications": {name: {"address": f"grpc://{stack.target}"} for name in ELSEWHERE},
    }
    (folder / "quilt.yaml").write_text(yaml.safe_dump(quilt), encoding="utf-8")
    data_dir = folder / "data"
    try:
        up = stacks.cli(data_dir, "up", "--config", str(folder / "quilt.yaml"))
        assert up.returncode == 0, up.stdout + up.stderr
        for name in ELSEWHERE:
            assert f"{name} is not started here: the one at {stack.target} is used" in up.stdout
        state = RunDirectory(data_dir).running()
        assert state is not None
        yield Stack(data_dir, state)
    finally:
        launcher.stop(data_dir)


def test_status_says_what_is_elsewhere_and_that_it_is_well(front: Stack, stack: Stack) -> None:
    shown = front.cli("status")
    assert shown.returncode == 0, shown.stdout + shown.stderr
    rows = {line.split()[0]: line for line in shown.stdout.splitlines()[2:]}
    assert {name for name, row in rows.items() if f"remote {stack.target}" in row} == set(ELSEWHERE)
    assert {"gateway", "ingestion"} < rows.keys()


def test_a_document_is_ingested_asked_and_deleted_through_the_other_cluster(
    front: Stack, stack: Stack, tmp_path: Path
) -> None:
    (tmp_path / "quernby.md").write_text(TEXT, encoding="utf-8")
    ingested = front.cli("ingest", str(tmp_path), "-c", COLLECTION)
    assert ingested.returncode == 0, ingested.stdout + ingested.stderr
    assert COLLECTION in stack.cli("documents").stdout, "the other cluster's store has its manifest"
    usages = []
    for door in (front, stack):
        answered = door.cli("ask", QUESTION, "-c", COLLECTION, "--json")
        assert answered.returncode == 0, answered.stdout + answered.stderr
        usages.append(json.loads(answered.stdout)["usage"])
    assert usages[0]["reused_tokens"] == usages[1]["reused_tokens"] > 0, "nothing is prefilled twice"
    for command in (("store", "stats"), ("retrieval", "rebuild", "-c", COLLECTION)):
        done = front.cli(*command)
        assert done.returncode == 0, done.stdout + done.stderr
    assert front.cli("delete", "-c", COLLECTION, "--all").returncode == 0
    assert COLLECTION not in stack.cli("documents").stdout


async def test_errors_of_the_other_cluster_are_what_they_were_there(front: Stack) -> None:
    async with rag_client(front.target) as client:
        with pytest.raises(NotFound, match="nowhere"):
            async for _ in client.answer(RequestContext.create(), Inquiry("nowhere", (QUESTION,))):
                pass


def test_what_is_not_deployed_where_it_is_asked_is_unavailable(front: Stack) -> None:
    asked = stacks.cli(front.data_dir, "--target", front.target, "store", "stats", timeout_s=180.0)
    assert asked.returncode == 4
    assert "Application 'kv_store' is not deployed where it was called" in asked.stderr
