"""Any sequence of operations on one node's tiers, hardly any room in each of them, against a dict of what was
acknowledged."""

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

from services.kv_store.fetching.flight import FlightReader
from services.kv_store.fetching.nodes import Neighbours
from services.kv_store.fetching.sources import PeerSearch
from services.kv_store.node.chunks import NodeTiers
from services.kv_store.node.copies import NodeCopies
from services.kv_store.tiers.chunk_files import is_damaged
from services.kv_store.tiers.chunk_names import blob_of
from shared.errors import CorruptData, StorageFull, Unavailable
from shared.request import RequestContext
from tests.dict_blobs import DictBlobs
from tests.faulty_blobs import FailingBlobs
from tests.kv_chunks import chunk_bytes, chunk_id_of
from tests.kv_stores import KnownNodes, tiers_in
from tests.unit.kv_store.disks import QuickDisk

ResultT = TypeVar("ResultT")
CHUNKS = st.sampled_from([chunk_id_of(n) for n in range(6)])
SIZE = len(chunk_bytes(chunk_id_of(0)))
DOWN = Unavailable("down")


class TiersMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.directory = Path(tempfile.mkdtemp())
        self.objects = FailingBlobs(DictBlobs())
        self.now = 0.0
        self.tiers = self.start()
        self.acknowledged: dict[str, int] = {}
        """Chunk → which of its versions."""

    def start(self) -> NodeTiers:
        return tiers_in(
            self.directory,
            QuickDisk(),
            self.objects,
            capacity_bytes=3 * SIZE + 1,
            memory_bytes=2 * SIZE,
            lease_s=10,
            clock=lambda: self.now,
        )

    def end(self) -> None:
        """As a process does: with all of its threads."""
        self.run(self.tiers.close())
        self.tiers._threads.shutdown(wait=True)

    def teardown(self) -> None:
        self.end()
        self.loop.close()
        shutil.rmtree(self.directory)

    @rule(chunk_id=CHUNKS, version=st.integers(0, 3), replace=st.booleans(), write_back=st.booleans())
    def put(self, chunk_id: str, version: int, replace: bool, write_back: bool) -> None:
        staged = self.tiers.disk.staging.new()
        staged.write_bytes(chunk_bytes(chunk_id, version))
        try:
            existed = self.run(self.tiers.put(chunk_id, staged, replace, write_back))
        except Unavailable:
            assert self.objects.failure is not None
            assert not write_back
            return
        except StorageFull:
            assert write_back
            return
        assert not staged.exists()
        if self.objects.failure is None:
            assert existed == (chunk_id in self.acknowledged)
        if replace or not existed:
            self.acknowledged[chunk_id] = version

    @rule(chunk_id=CHUNKS)
    def open(self, chunk_id: str) -> None:
        (opened,) = self.run(self.tiers.open([chunk_id], nobody()))
        if self.objects.failure is None and opened.exists != (chunk_id in self.acknowledged):
            assert not opened.exists
            assert all(tier.reserve(SIZE) is None for tier in self.tiers.own), "there is room for a copy"
        if opened.exists:
            assert Path(opened.path).read_bytes() == chunk_bytes(chunk_id, self.acknowledged[chunk_id])

    @rule(chunk_id=CHUNKS)
    def delete(self, chunk_id: str) -> None:
        if self.objects.failure is not None:
            return
        here = self.run(self.tiers.delete(chunk_id))
        there = self.run(self.tiers.delete_object(chunk_id))
        assert (here or there) == (chunk_id in self.acknowledged)
        self.acknowledged.pop(chunk_id, None)

    @rule()
    def object_store_goes_down(self) -> None:
        self.objects.failure = DOWN

    @rule()
    def object_store_comes_back(self) -> None:
        self.objects.failure = None
        self.run(self.upload())

    @rule(chunk_id=CHUNKS, tier=st.sampled_from(["memory", "disk"]), flip=st.booleans())
    def damage(self, chunk_id: str, tier: str, flip: bool) -> None:
        """A copy of what is whole elsewhere."""
        place = self.tiers.memory if tier == "memory" else self.tiers.disk
        assert place is not None
        copy = place.find(chunk_id)
        if copy is None or copy.primary:
            return
        path = place.path_of(chunk_id)
        data = bytearray(path.read_bytes())
        data[-50] ^= 1  # of the frame: what is wrong elsewhere is found by readers
        path.write_bytes(data if flip else data[:-1])
        with pytest.raises(CorruptData):
            self.run(NodeCopies(self.tiers, lambda c: nobody(), False).verify_copy(chunk_id, tier))
        self.open(chunk_id)
        # where a faster tier had it, nobody looked
        place.remove_if(chunk_id, lambda: is_damaged(path, chunk_id))

    @rule(chunk_ids=st.frozensets(CHUNKS, max_size=2))
    def pin(self, chunk_ids: frozenset[str]) -> None:
        self.tiers.pin(chunk_ids)

    @rule(seconds=st.integers(1, 20))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds

    @rule()
    def restart(self) -> None:
        self.end()
        self.tiers = self.start()

    @invariant()
    def every_tier_agrees_with_itself_and_holds_no_more_than_it_may(self) -> None:
        self.tiers.check_invariants(verify=False)
        for stats in self.tiers.stats()[0]:
            assert stats.num_bytes <= stats.capacity_bytes

    @invariant()
    def what_was_acknowledged_is_somewhere_durable(self) -> None:
        inner = self.objects.inner
        assert isinstance(inner, DictBlobs)
        for chunk_id, version in self.acknowledged.items():
            copy = self.tiers.disk.find(chunk_id)
            data = (
                self.tiers.disk.path_of(chunk_id).read_bytes()
                if copy and copy.primary
                else inner.data.get(blob_of(chunk_id))
            )
            assert data == chunk_bytes(chunk_id, version)

    async def upload(self) -> None:
        self.tiers.upload_pending()
        await self.tiers.uploaded()

    def run(self, call: Coroutine[Any, Any, ResultT]) -> ResultT:
        return self.loop.run_until_complete(call)


def nobody() -> PeerSearch:
    return PeerSearch(Neighbours("here", KnownNodes()), RequestContext.create(), [], FlightReader())


TestTiersMachine = TiersMachine.TestCase
TestTiersMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
