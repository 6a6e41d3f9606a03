"""Floors of residency: what a tenant used last stays, whatever others ask for."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shared.engine.kv.residency import Entry, Pool
from shared.engine.kv.segment import Segment
from tests.unit.engine.test_residency import SPEC, TOKEN_BYTES

CAPACITY, SHARE = 40, 0.2


def pool_of(capacity: int = CAPACITY, share: float = SHARE) -> Pool:
    return Pool(capacity * TOKEN_BYTES, share)


def used(pool: Pool, tenant: str, name: str, num_tokens: int) -> Entry:
    entry, new = pool.acquire(f"{tenant}/{name}", tuple(range(num_tokens)), tenant)
    if new:
        segment = Segment(SPEC, num_tokens)
        segment.length = num_tokens
        pool.fill(entry, segment)
    return entry


def use(pool: Pool, tenant: str, name: str, num_tokens: int = 4) -> None:
    pool.release(used(pool, tenant, name, num_tokens))


def test_a_flood_of_one_tenant_leaves_the_other_his_floor() -> None:
    pool = pool_of()
    for name in "abcde":
        use(pool, "quiet", name)
    for number in range(200):
        use(pool, "flood", str(number))
    assert [key for key in pool.ready_keys() if key.startswith("quiet")] == ["quiet/d", "quiet/e"]
    assert pool.num_bytes <= CAPACITY * TOKEN_BYTES


def test_one_question_larger_than_the_pool_leaves_it_too() -> None:
    pool = pool_of()
    use(pool, "quiet", "a", 8)
    held = [used(pool, "flood", str(number), 10) for number in range(6)]
    assert pool.get("quiet/a") is not None
    for entry in held:
        pool.release(entry)
    assert pool.get("quiet/a") is not None
    assert pool.num_bytes <= CAPACITY * TOKEN_BYTES


def test_without_floors_the_flood_takes_all() -> None:
    pool = pool_of(share=0.0)
    use(pool, "quiet", "a")
    for number in range(20):
        use(pool, "flood", str(number))
    assert pool.get("quiet/a") is None


def test_a_tenant_alone_has_the_pool_as_ever() -> None:
    pool = pool_of()
    for number in range(20):
        use(pool, "only", str(number))
    assert pool.ready_keys() == [f"only/{number}" for number in range(10, 20)]


def test_many_tenants_share_what_floors_may_take() -> None:
    pool = pool_of(share=0.5)
    for number in range(10):
        use(pool, f"t{number}", "a")
    assert pool._floors.floor_bytes(pool.capacity_bytes) * 10 <= pool.capacity_bytes / 2
    pool.check_invariants({})


def test_memory_that_runs_out_takes_floors_too() -> None:
    pool = pool_of()
    use(pool, "quiet", "a")
    use(pool, "flood", "b")
    assert pool.evict_unused() == 8 * TOKEN_BYTES
    assert pool.ready_keys() == []


def test_what_was_deleted_goes_unless_it_is_in_use() -> None:
    pool = pool_of()
    use(pool, "t", "a")
    held = used(pool, "t", "b", 4)
    pool.forget("t/a")
    pool.forget("t/b")
    pool.forget("t/nothing")
    assert pool.ready_keys() == ["t/b"]
    pool.check_invariants({"t/b": 1})
    pool.release(held)


class Floors(RuleBasedStateMachine):
    """Against a slow twin: a list of (tenant, key, length) in order of last use, in which floors are counted
    anew for every one that might go."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = pool_of()
        self.held: list[Entry] = []
        self.twin: list[tuple[str, str, int]] = []

    def make_room(self, tenant: str) -> None:
        in_use = {entry.key for entry in self.held}
        for one in list(self.twin):
            if sum(length for *_, length in self.twin) <= CAPACITY:
                return
            owner, key, length = one
            owners = {name for name, *_ in self.twin}
            floor = CAPACITY * min(SHARE, 0.5 / len(owners))
            rest = sum(n for name, _, n in self.twin if name == owner) - length
            if key not in in_use and (owner == tenant or rest >= floor):
                self.twin.remove(one)

    @rule(tenant=st.sampled_from("xyz"), name=st.sampled_from("abcd"))
    def acquire(self, tenant: str, name: str) -> None:
        length = 2 + 3 * (ord(name) - ord("a"))
        entry = used(self.pool, tenant, name, length)
        self.held.append(entry)
        others = [one for one in self.twin if one[1] != entry.key]
        is_new, self.twin = len(others) == len(self.twin), [*others, (tenant, entry.key, length)]
        if is_new:
            self.make_room(tenant)

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 30))
    def release(self, which: int) -> None:
        entry = self.held.pop(which % len(self.held))
        self.pool.release(entry)
        self.make_room(entry.tenant)

    @invariant()
    def the_same_are_resident(self) -> None:
        assert self.pool.ready_keys() == [key for _, key, _ in self.twin]
        self.pool.check_invariants(Counter(entry.key for entry in self.held))

    @invariant()
    def nobody_is_below_his_floor_for_others_sake(self) -> None:
        assert self.pool.num_bytes == sum(length for *_, length in self.twin) * TOKEN_BYTES


TestFloors = Floors.TestCase
TestFloors.settings = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    from shared.engine_config import EngineConfig

    with pytest.raises(ValueError, match="resident_floor"):
        EngineConfig(resident_floor=share)
