"""Who keeps the documents while Ray's head is replaced under workers that go on: nobody else."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from services.kv_store.app import RayNodes, home_and_all
from shared.errors import NotFound, Unavailable
from shared.principals.credentials import no_credentials

HEAD = ("CPU", "node:__internal_head__")
WORKER = ("CPU", "kvquilt_services")


class Cluster:
    def __init__(self, **living: Collection[str]) -> None:
        self.living: dict[str, Collection[str]] = living

    def nodes(self) -> RayNodes:
        return RayNodes(self.no_agent, no_credentials, lambda: self.living)

    def no_agent(self, node_id: str) -> Any:
        raise ValueError(f"no agent of {node_id}")


def test_the_head_keeps_the_documents_and_comes_first() -> None:
    assert home_and_all({"b": WORKER, "c": HEAD, "a": WORKER}, "") == ("c", ("c", "a", "b"))


async def test_no_worker_becomes_home_while_there_is_no_head() -> None:
    """What it took in would lie in its own directory, where the next head does not look."""
    cluster = Cluster(old=HEAD, a=WORKER, b=WORKER)
    nodes = cluster.nodes()
    del cluster.living["old"]
    await nodes.refresh()
    assert (nodes.home(), nodes.ids()) == ("old", ("a", "b"))
    cluster.living["new"] = HEAD
    await nodes.refresh()
    assert (nodes.home(), nodes.ids()) == ("new", ("new", "a", "b"))


async def test_an_agent_that_starts_while_there_is_no_head_is_not_home() -> None:
    assert Cluster(a=WORKER).nodes().home() != "a"


@pytest.mark.parametrize("another", [{}, {"new": HEAD}], ids=["no head", "another head"])
async def test_documents_are_unavailable_meanwhile_and_not_missing(another: dict[str, Any]) -> None:
    """``NotFound`` would say that a document is not there."""
    cluster = Cluster(old=HEAD, a=WORKER)
    nodes = cluster.nodes()
    del cluster.living["old"]
    await nodes.refresh()
    home = nodes.home()
    cluster.living |= another  # which nobody has looked at yet
    with pytest.raises(Unavailable, match="keeps the documents is being replaced; retry"):
        await nodes.store(home)
    with pytest.raises(NotFound):
        await nodes.store("nobody")
