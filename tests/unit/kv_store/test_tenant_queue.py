"""Which copies go when a tenant needs room: never what is in another's floor."""

from __future__ import annotations

from collections import Counter

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from services.kv_store.tiers.tenant_queue import TenantQueue

CAPACITY, SHARE = 100, 0.2


class Tier:
    """What a queue is for: copies that take no more than the capacity together. ``sizes``: what is there."""

    def __init__(self, share: float = SHARE) -> None:
        self.queue, self.sizes = TenantQueue(share), dict[str, int]()

    def use(self, tenant: str, name: str, size_bytes: int = 5, held: frozenset[str] = frozenset()) -> bool:
        """Whether it is there afterwards. What is ``held`` must stay."""
        if name in self.sizes:
            self.queue.touch(name, tenant)
            return True
        if (short := sum(self.sizes.values()) + size_bytes - CAPACITY) > 0:
            victims = self.queue.victims(short, lambda name: name in held, tenant, CAPACITY)
            if not victims:
                return False
            for victim in victims:
                del self.sizes[victim]
        self.queue.admit(name, size_bytes)
        self.queue.assign(name, tenant)
        self.sizes[name] = size_bytes
        return True

    def of(self, tenant: str) -> list[str]:
        return sorted(name for name in self.sizes if name.startswith(f"{tenant}/"))


def test_a_flood_of_one_tenant_leaves_the_other_what_he_used_last() -> None:
    tier = Tier()
    for name in "abcdefgh":
        tier.use("quiet", f"quiet/{name}")
    tier.use("quiet", "quiet/b")
    for number in range(200):
        assert tier.use("flood", f"flood/{number}")
    assert tier.of("quiet") == ["quiet/b", "quiet/f", "quiet/g", "quiet/h"]
    assert sum(tier.sizes.values()) <= CAPACITY


def test_without_floors_the_flood_takes_all() -> None:
    tier = Tier(share=0.0)
    tier.use("quiet", "quiet/a")
    for number in range(200):
        tier.use("flood", f"flood/{number}")
    assert tier.of("quiet") == []


def test_a_tenant_alone_has_all_of_it() -> None:
    tier = Tier()
    for number in range(200):
        assert tier.use("only", f"only/{number}")
    assert sum(tier.sizes.values()) == CAPACITY


def test_what_nobody_used_since_the_start_has_no_floor_until_somebody_uses_it() -> None:
    tier = Tier()
    for name in ("left/a", "left/b"):
        tier.use("", name)
    tier.use("left", "left/b")
    for number in range(200):
        tier.use("flood", f"flood/{number}")
    assert tier.of("left") == ["left/b"]


def test_what_is_needed_for_nobody_known_takes_no_floor() -> None:
    tier = Tier()
    tier.use("quiet", "quiet/a")
    for number in range(200):
        assert tier.use("", str(number))
    assert tier.of("quiet") == ["quiet/a"]


def test_a_copy_larger_than_the_floor_is_in_none() -> None:
    """Or a few tenants' large chunks would fill the tier for ever."""
    tier = Tier()
    for tenant in "abc":
        tier.use(tenant, f"{tenant}/large", 30)
    assert tier.use("d", "d/large", 30)


def test_very_many_tenants_share_half_of_it() -> None:
    tier = Tier()
    for number in range(50):
        assert tier.use(f"t{number}", f"t{number}/a", 1)
        assert tier.use(f"t{number}", f"t{number}/b", 1)
    assert tier.use("new", "new/a", 40)


def test_a_replaced_copy_counts_with_its_new_size_and_stays_its_tenants() -> None:
    tier = Tier()
    tier.use("quiet", "quiet/a", 15)
    tier.queue.admit("quiet/a", 10)
    tier.sizes["quiet/a"] = 10
    tier.queue.check_invariants()
    tier.use("quiet", "quiet/b", 10)
    for number in range(200):
        tier.use("flood", f"flood/{number}")
    assert tier.of("quiet") == ["quiet/a", "quiet/b"]


class Floors(RuleBasedStateMachine):
    """Against a slow twin: a list of (tenant, name, size) in order of last use, of which floors are chosen
    anew whenever somebody needs room."""

    @initialize(share=st.sampled_from([0.0, 0.1, 0.2, 0.5, 1.0]))
    def begin(self, share: float) -> None:
        self.tier, self.share = Tier(share), share
        self.twin: list[tuple[str, str, int]] = []

    def kept_from(self, tenant: str) -> set[str]:
        owners = {owner for owner, *_ in self.twin if owner}
        kept: set[str] = set()
        for other in owners - {tenant}:
            left = CAPACITY * min(self.share, 0.5 / len(owners))
            for owner, name, size in reversed(self.twin):
                if owner == other:
                    left -= size
                    if left < 0:
                        break
                    kept.add(name)
        return kept

    @rule(
        tenant=st.sampled_from(["x", "y", "z", ""]),
        name=st.integers(0, 12),
        size=st.sampled_from([1, 3, 8, 20, 45]),
        held=st.frozensets(st.integers(0, 12), max_size=3),
    )
    def use(self, tenant: str, name: int, size: int, held: frozenset[int]) -> None:
        full, kept_names = str(name), frozenset(map(str, held))
        had, floors = dict(self.tier.sizes), self.kept_from(tenant)
        there = self.tier.use(tenant, full, size, kept_names)
        gone = had.keys() - self.tier.sizes.keys()
        assert not gone & (floors | kept_names), "a floor, or what somebody holds, was taken"
        evictable = sum(had[name] for name in had.keys() - floors - kept_names)
        short = sum(had.values()) + size - CAPACITY
        assert there == (full in had or short <= evictable), "there was room, or there was none"
        assert there or not gone
        self.twin = [one for one in self.twin if one[1] not in gone]
        if there and (tenant or full not in had):
            others = [one for one in self.twin if one[1] != full]
            self.twin = [*others, (tenant, full, self.tier.sizes[full])]

    @rule(which=st.integers(0, 40))
    def remove(self, which: int) -> None:
        if self.twin:
            name = self.twin.pop(which % len(self.twin))[1]
            self.tier.queue.remove(name)
            del self.tier.sizes[name]

    @rule(tenant=st.sampled_from("xyz"), start=st.integers(0, 1000))
    def flood(self, tenant: str, start: int) -> None:
        """Many new ones of a tenant: whoever has no more than his floor loses nothing."""
        floor = CAPACITY * min(self.share, 0.5 / max(1, len({o for o, *_ in self.twin if o} | {tenant})))
        have = Counter[str]()
        for owner, _, size in self.twin:
            have[owner] += size
        poor = [one for one in self.twin if one[0] not in ("", tenant) and have[one[0]] <= floor]
        for number in range(start, start + 30):
            self.tier.use(tenant, f"{tenant}/flood{number}", 4)
        assert {name for _, name, _ in poor} <= self.tier.sizes.keys()
        for number in range(start, start + 30):
            if (name := f"{tenant}/flood{number}") in self.tier.sizes:
                self.tier.queue.remove(name)
                del self.tier.sizes[name]
        self.twin = [one for one in self.twin if one[1] in self.tier.sizes]

    @invariant()
    def the_capacity_is_kept_and_everything_counted(self) -> None:
        if hasattr(self, "tier"):
            assert sum(self.tier.sizes.values()) <= CAPACITY
            assert self.tier.queue.num_bytes == sum(self.tier.sizes.values())
            assert {name for _, name, _ in self.twin} == self.tier.sizes.keys()
            self.tier.queue.check_invariants()


TestFloors = Floors.TestCase
TestFloors.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
