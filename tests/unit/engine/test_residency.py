"""The pool of segments: who stays, who goes, who is counted. Without a model."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shared.engine.kv.branch import Branch
from shared.engine.kv.hot_chunks import HotChunk
from shared.engine.kv.loader import ChunkLoad
from shared.engine.kv.residency import Entry, Pool, State
from shared.engine.kv.segment import Segment
from shared.engine.model.rope import RopeSpec
from shared.engine.model.spec import ModelSpec
from shared.errors import InvalidRequest

SPEC = ModelSpec(
    num_layers=1,
    num_heads=1,
    num_kv_heads=1,
    head_dim=2,
    vocab_size=10,
    max_positions=1000,
    sliding_window=None,
    eos_ids=frozenset(),
    dtype=torch.float32,
    device=torch.device("cpu"),
    rope=RopeSpec((1.0,)),
)
TOKEN_BYTES = SPEC.kv_bytes_per_token


def segment(num_tokens: int) -> Segment:
    made = Segment(SPEC, num_tokens)
    made.length = num_tokens
    return made


def ready(pool: Pool, key: str, num_tokens: int = 10) -> Entry:
    """Resident, with one reference."""
    entry, new = pool.acquire(key, tuple(range(num_tokens)))
    if new:
        pool.fill(entry, segment(num_tokens))
    return entry


def keys(pool: Pool) -> set[str]:
    return {key for key in "abcdef" if pool.get(key) is not None}


def test_the_least_recently_used_goes_first() -> None:
    pool = Pool(30 * TOKEN_BYTES)
    for key in "abc":
        pool.release(ready(pool, key))
    pool.release(ready(pool, "a"))  # used again
    ready(pool, "d")
    assert pool.ready_keys() == ["c", "a", "d"], "b was not used for the longest time"
    ready(pool, "e")
    assert pool.ready_keys() == ["a", "d", "e"]


def test_what_only_serves_to_compute_others_goes_before_chunks() -> None:
    pool = Pool(30 * TOKEN_BYTES)
    for key in ("a", "b", "link:c"):
        pool.release(ready(pool, key))
    ready(pool, "d")
    assert pool.ready_keys() == ["a", "b", "d"]


def test_a_chunk_that_was_just_asked_for_is_loading_and_neither_late_nor_broken() -> None:
    entry, new = Pool(30 * TOKEN_BYTES).acquire("a", (1, 2), "t")
    assert new
    assert (entry.state, entry.refs, entry.tenant) == (State.LOADING, 1, "t")
    assert (entry.late, entry.broken, entry.only_loaded) == (False, False, False)


def test_a_chunk_is_awaited_while_its_load_is_under_way() -> None:
    pool = Pool(30 * TOKEN_BYTES)
    entry, _ = pool.acquire("a", (1, 2))
    assert not entry.awaited, "nobody has asked the store for it"
    entry.load = ChunkLoad({"a": 2}, 0.0)
    assert entry.awaited
    pool.fill(entry, segment(2))
    assert not entry.awaited


def test_no_more_go_than_room_is_needed_for() -> None:
    pool = Pool(35 * TOKEN_BYTES)
    for key in "abc":
        pool.release(ready(pool, key))
    ready(pool, "d", num_tokens=5)
    assert keys(pool) == set("abcd")
    ready(pool, "e", num_tokens=1)
    assert keys(pool) == set("bcde")


def test_what_somebody_refers_to_stays_though_the_pool_overflows() -> None:
    pool = Pool(20 * TOKEN_BYTES)
    held = [ready(pool, key) for key in "abc"]
    assert pool.num_bytes == 30 * TOKEN_BYTES
    pool.release(held[1])
    assert keys(pool) == {"a", "c"}, "the first that nobody refers to goes at once"
    pool.check_invariants(Counter("ac"))


def test_all_that_nobody_refers_to_goes_when_asked_and_the_next_may_stay() -> None:
    pool = Pool(30 * TOKEN_BYTES)
    ready(pool, "held")
    for key in "ab":
        pool.release(ready(pool, key))
    assert pool.evict_unused() == 20 * TOKEN_BYTES
    assert pool.ready_keys() == ["held"]
    pool.release(ready(pool, "c"))
    assert pool.ready_keys() == ["held", "c"]


def test_an_entry_is_shared_and_goes_only_after_its_last_holder() -> None:
    pool = Pool(1)
    first, second = ready(pool, "a"), ready(pool, "a")
    assert first is second
    pool.release(first)
    assert keys(pool) == {"a"}
    pool.release(second)
    assert keys(pool) == set()
    assert pool.num_bytes == 0


def test_one_identity_for_other_tokens_is_refused() -> None:
    pool = Pool(100)
    ready(pool, "a")
    with pytest.raises(InvalidRequest, match="two different runs"):
        pool.acquire("a", (7,))


def test_what_is_computed_for_nobody_is_given_up() -> None:
    pool = Pool(100)
    entry, _ = pool.acquire("a", (1, 2))
    loading, _ = pool.acquire("b", (3,))
    pool.compute(entry, Branch(SPEC, (1, 2), 0))
    assert pool.computing() == [entry]
    assert pool.ready_keys() == []
    pool.discard(loading)
    pool.release(entry)
    assert keys(pool) == set()
    pool.check_invariants({})


def test_what_is_loaded_for_nobody_stays_for_the_next() -> None:
    pool = Pool(100 * TOKEN_BYTES)
    entry, _ = pool.acquire("a", (1, 2))
    pool.release(entry)
    pool.fill(entry, segment(2))
    assert pool.acquire("a", (1, 2)) == (entry, False)


def test_a_streaming_segment_counts_once_and_not_at_all_when_it_broke() -> None:
    pool = Pool(100 * TOKEN_BYTES)
    entry, _ = pool.acquire("a", (1, 2))
    pool.stream(entry, segment(2))
    assert pool.num_bytes == 2 * TOKEN_BYTES
    pool.broke(entry)
    assert (pool.num_bytes, entry.state, entry.segment) == (0, State.LOADING, None)
    pool.stream(entry, segment(2))
    pool.fill(entry, segment(2))
    assert pool.num_bytes == 2 * TOKEN_BYTES
    pool.check_invariants(Counter("a"))


def test_a_pass_may_begin_on_what_arrives_until_that_fails() -> None:
    pool = Pool(100 * TOKEN_BYTES)
    entry, _ = pool.acquire("a", (1, 2))
    assert not entry.arriving
    arriving = Segment.arriving(SPEC, 2)
    pool.stream(entry, arriving)
    assert entry.arriving
    assert arriving.arrival is not None
    arriving.arrival.fail()
    assert not entry.arriving


def test_what_is_computed_beside_its_load_counts_once_and_waits_for_it_again_when_nobody_asks() -> None:
    pool = Pool(100 * TOKEN_BYTES)
    entry, _ = pool.acquire("a", (1, 2))
    entry.load, entry.late = ChunkLoad({"a": 2}, 0.0), True
    pool.stream(entry, segment(2))
    pool.compute(entry, Branch(SPEC, (1, 2), 0))
    assert (pool.num_bytes, pool.used_bytes) == (0, 0)
    pool.check_invariants(Counter("a"))
    pool.release(entry)
    assert (entry.state, entry.late, entry.branch) == (State.LOADING, False, None)
    assert pool.acquire("a", (1, 2)) == (entry, False)
    pool.compute(entry, Branch(SPEC, (1, 2), 0))
    pool.fill(entry, segment(2))
    assert pool.num_bytes == 2 * TOKEN_BYTES
    pool.check_invariants(Counter("a"))


def test_the_hottest_are_those_that_most_requests_used_and_of_equals_the_last_used() -> None:
    pool = Pool(100 * TOKEN_BYTES)
    for key in ("a", "b", "c", "b", "prefix:", "prefix:", "d"):
        pool.release(ready(pool, key))
    pool.acquire("e", (1, 2))  # not there yet
    assert [entry.key for entry in pool.hottest()] == ["b", "d", "c", "a"]


def test_what_no_request_asked_for_is_the_first_to_go() -> None:
    pool = Pool(30 * TOKEN_BYTES)
    pool.release(ready(pool, "a"))
    for key in "bc":
        pool.fill(pool.expect(HotChunk(key, tuple(range(10)), "t")), segment(10))
    assert pool.ready_keys() == ["c", "b", "a"]
    ready(pool, "d")
    assert pool.ready_keys() == ["b", "a", "d"]
    assert ready(pool, "b").tenant == "t"
    pool.check_invariants(Counter("bd"))


CAPACITY = 40


class Pools(RuleBasedStateMachine):
    """Against a list of keys in order of last use, from which the first that is free goes."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = Pool(CAPACITY * TOKEN_BYTES)
        self.held: list[Entry] = []
        self.order: list[str] = []

    def lengths(self) -> int:
        return sum(1 + ord(key) - ord("a") for key in self.order)

    def expect_eviction(self) -> None:
        refs = Counter(entry.key for entry in self.held)
        for key in list(self.order):
            if self.lengths() <= CAPACITY:
                return
            if not refs[key]:
                self.order.remove(key)

    @rule(key=st.sampled_from("abcdefghijkl"))
    def acquire(self, key: str) -> None:
        entry, new = self.pool.acquire(key, tuple(range(1 + ord(key) - ord("a"))))
        assert new == (key not in self.order)
        self.held.append(entry)
        if not new:
            self.order.remove(key)
        self.order.append(key)
        if new:
            self.pool.fill(entry, segment(len(entry.token_ids)))
            self.expect_eviction()

    @rule(key=st.sampled_from("abcdefghijkl"))
    def warm(self, key: str) -> None:
        if key not in self.order:
            entry = self.pool.expect(HotChunk(key, tuple(range(1 + ord(key) - ord("a")))))
            self.order.insert(0, key)
            self.pool.fill(entry, segment(len(entry.token_ids)))
            self.expect_eviction()

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        entry = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.pool.release(entry)
        self.expect_eviction()

    @invariant()
    def holds_what_a_list_would(self) -> None:
        assert self.pool.ready_keys() == self.order
        self.pool.check_invariants(Counter(entry.key for entry in self.held))


Pools.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
TestPools = Pools.TestCase
