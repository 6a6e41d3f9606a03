"""Whatever is done in whatever order, a keeper of blobs answers like a plain dict."""

from __future__ import annotations

import contextlib
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from load_tests.servers.s3 import S3Server
from services.kv_store.blobs.protocol import ByteRange, From, Last, Span
from shared.errors import CorruptData, NotFound
from tests.blob_keepers import KEEPERS, keeper
from tests.dict_blobs import DictBlobs, fill_by_sink

NAMES = st.sampled_from(["a", "b/1", "b/2", "b-1", "chunks/ab/abcd.arrow", "manifests/t/c/0.json"])
DATA = st.binary(max_size=64) | st.integers(1, 3_000_000).map(lambda n: b"kvquilt" * (n // 7))
POSITIONS = st.integers(0, 80) | st.integers(0, 3_000_100)
RANGES = st.builds(From, POSITIONS) | st.builds(Span, POSITIONS, POSITIONS) | st.builds(Last, POSITIONS)


class BlobMachine(RuleBasedStateMachine):
    kind: ClassVar[str]
    endpoint: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.stack = contextlib.ExitStack()
        self.blobs = self.stack.enter_context(keeper(self.kind, self.endpoint))
        self.model = DictBlobs()

    @rule(name=NAMES, data=DATA)
    def put(self, name: str, data: bytes) -> None:
        self.blobs.put(name, data)
        self.model.put(name, data)

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        assert self.blobs.delete(name) == self.model.delete(name)

    @rule(name=NAMES, byte_range=RANGES)
    def read(self, name: str, byte_range: ByteRange) -> None:
        try:
            expected = b"".join(self.model.read(name, byte_range))
        except NotFound:
            with pytest.raises(NotFound):
                list(self.blobs.read(name, byte_range))
        else:
            assert b"".join(self.blobs.read(name, byte_range)) == expected

    @rule(name=NAMES, start=POSITIONS, length=POSITIONS)
    def fill(self, name: str, start: int, length: int) -> None:
        expected, found = bytearray(length), bytearray(length)
        try:
            fill_by_sink(self.model, name, start, memoryview(expected))
        except (NotFound, CorruptData) as error:
            with pytest.raises(type(error)):
                fill_by_sink(self.blobs, name, start, memoryview(found))
        else:
            fill_by_sink(self.blobs, name, start, memoryview(found))
            assert found == expected

    @rule(
        prefix=st.sampled_from(["", "b", "b/", "chunks/"]),
        start_after=st.just("") | NAMES,
        limit=st.integers(1, 7),
    )
    def list(self, prefix: str, start_after: str, limit: int) -> None:
        found, expected = (b.list(prefix, start_after, limit) for b in (self.blobs, self.model))
        assert [(s.name, s.size_bytes) for s in found.blobs] == [
            (s.name, s.size_bytes) for s in expected.blobs
        ]
        assert found.truncated == expected.truncated

    @invariant()
    def every_blob_has_its_size(self) -> None:
        assert {s.name: s.size_bytes for s in self.blobs.list().blobs} == {
            n: len(d) for n, d in self.model.data.items()
        }

    def teardown(self) -> None:
        self.stack.close()


@pytest.mark.parametrize("kind", KEEPERS)
def test_a_keeper_of_blobs_behaves_like_a_dict(kind: str, s3_server: S3Server) -> None:
    machine = type("Machine", (BlobMachine,), {"kind": kind, "endpoint": s3_server.endpoint})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=20, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
