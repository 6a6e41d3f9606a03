"""Any sequence of operations on a store of two nodes, against a model of sets and dicts."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from services.kv_store.node.agent import Agent
from services.kv_store.node.cluster_store import ClusterStore
from shared.errors import FailedPrecondition, NotFound
from shared.kv_format import verify_chunk
from shared.kv_types import Manifest, ManifestChunk
from shared.request import RequestContext
from tests.kv_chunks import chunk_bytes, chunk_id_of
from tests.kv_stores import KnownNodes, agent_on, in_pieces
from tests.unit.kv_store.disks import QuickDisk

ResultT = TypeVar("ResultT")
NODES = ("home", "other")
CHUNKS = st.sampled_from([chunk_id_of(n) for n in range(4)])
DOCUMENTS = st.tuples(
    st.sampled_from(["acme", "zeta"]), st.sampled_from(["books", "films"]), st.sampled_from(["1", "2"])
)


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.directory = Path(tempfile.mkdtemp())
        self.nodes = KnownNodes()
        self.agents: dict[str, Agent] = {node: self.start(node) for node in NODES}
        self.store = ClusterStore(self.nodes, "other")
        self.on_node: dict[str, set[str]] = {node: set() for node in NODES}
        self.documents: dict[tuple[str, str, str], list[str]] = {}

    def start(self, node: str) -> Agent:
        return agent_on(self.directory / node, node, self.nodes, QuickDisk())

    def teardown(self) -> None:
        self.loop.close()
        shutil.rmtree(self.directory)

    @rule(chunk_id=CHUNKS)
    def put(self, chunk_id: str) -> None:
        data = chunk_bytes(chunk_id)
        assert self.run(self.store.put(ctx(), chunk_id, len(data), in_pieces(data))) == (
            chunk_id in self.stored
        )
        if chunk_id not in self.stored:
            self.on_node["other"].add(chunk_id)

    @rule(chunk_id=CHUNKS, node=st.sampled_from(NODES), replace=st.booleans())
    def adopt(self, chunk_id: str, node: str, replace: bool) -> None:
        path = Path(self.run(self.store.stage(ctx(), node))) / "file"
        path.write_bytes(chunk_bytes(chunk_id))
        assert self.run(self.store.adopt(ctx(), chunk_id, node, str(path), replace)) == (
            chunk_id in self.on_node[node]
        )
        self.on_node[node].add(chunk_id)

    @rule(chunk_ids=st.lists(CHUNKS, max_size=3), node=st.sampled_from(NODES))
    def open(self, chunk_ids: list[str], node: str) -> None:
        opened = self.run(self.store.open(ctx(), chunk_ids, node))
        assert [(o.chunk_id, o.exists) for o in opened] == [(c, c in self.stored) for c in chunk_ids]
        for o in opened:
            assert not o.exists or verify_chunk(o.path).header.chunk_id == o.chunk_id
        self.on_node[node] |= set(chunk_ids) & self.stored

    @rule(chunk_id=CHUNKS, node=st.sampled_from(NODES))
    def damage(self, chunk_id: str, node: str) -> None:
        """A file that lost its end is found when its node opens it, and taken from the other node if that has
        it."""
        if chunk_id not in self.on_node[node]:
            return
        (path,) = (self.directory / node).glob(f"**/{chunk_id}.arrow")
        path.write_bytes(path.read_bytes()[:-1])
        self.on_node[node].discard(chunk_id)
        self.open([chunk_id], node)

    @rule(chunk_ids=st.lists(CHUNKS, max_size=3, unique=True))
    def delete(self, chunk_ids: list[str]) -> None:
        result = self.run(self.agents["home"].delete(ctx(), chunk_ids))
        assert list(result.referenced) == [c for c in chunk_ids if c in self.referenced]
        assert list(result.deleted) == [c for c in chunk_ids if c in self.stored - self.referenced]
        self.forget(set(chunk_ids) - self.referenced)

    @rule(key=DOCUMENTS, chunk_ids=st.lists(CHUNKS, max_size=4))
    def put_manifest(self, key: tuple[str, str, str], chunk_ids: list[str]) -> None:
        manifest = Manifest(*key, chunks=tuple(ManifestChunk(c, (1,)) for c in chunk_ids))
        others = {c for other, ids in self.documents.items() if other[0] != key[0] for c in ids}
        if not set(chunk_ids) <= self.stored - others:
            with pytest.raises(FailedPrecondition):
                self.run(self.store.put_manifest(ctx(key[0]), manifest))
            return
        old = self.documents.get(key, [])
        self.documents[key] = chunk_ids
        gone = {c for c in old if c not in self.referenced}
        assert set(self.run(self.store.put_manifest(ctx(key[0]), manifest))) == gone
        self.forget(gone)

    @rule(key=DOCUMENTS)
    def delete_manifest(self, key: tuple[str, str, str]) -> None:
        if key not in self.documents:
            with pytest.raises(NotFound):
                self.run(self.store.delete_manifest(ctx(key[0]), *key[1:]))
            return
        old = self.documents.pop(key)
        gone = set(old) - self.referenced
        assert set(self.run(self.store.delete_manifest(ctx(key[0]), *key[1:]))) == gone
        self.forget(gone)

    @rule(node=st.sampled_from(NODES))
    def restart(self, node: str) -> None:
        self.agents[node] = self.start(node)

    @invariant()
    def every_node_agrees_with_itself(self) -> None:
        for agent in self.agents.values():
            agent.check_invariants()

    @invariant()
    def every_node_has_what_it_should_have(self) -> None:
        for node, agent in self.agents.items():
            assert {c.chunk_id for c in self.run(agent.list_page(ctx())).chunks} == self.on_node[node]

    @invariant()
    def documents_are_those_that_were_stored(self) -> None:
        for tenant in ("acme", "zeta"):
            page = self.run(self.store.manifest_page(ctx(tenant)))
            found = {
                (m.tenant, m.collection, m.document_id): [c.chunk_id for c in m.chunks]
                for m in page.manifests
            }
            assert found == {k: v for k, v in self.documents.items() if k[0] == tenant}

    @property
    def stored(self) -> set[str]:
        return self.on_node["home"] | self.on_node["other"]

    @property
    def referenced(self) -> set[str]:
        return {c for chunk_ids in self.documents.values() for c in chunk_ids}

    def forget(self, chunk_ids: set[str]) -> None:
        for chunks in self.on_node.values():
            chunks -= chunk_ids

    def run(self, call: Coroutine[Any, Any, ResultT]) -> ResultT:
        return self.loop.run_until_complete(call)


def ctx(tenant: str = "acme") -> RequestContext:
    return RequestContext.create(tenant=tenant)


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
