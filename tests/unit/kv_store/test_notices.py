"""A node's agent tells routers what its tiers hold, as they are when it is asked."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from services.kv_store.node.notices import LOOK_AGAIN_MS, NodeNotices
from services.kv_store.tiers.files import FileCopy
from shared.routing.costs import Tier, chunk_key
from shared.routing.noticeboard import lane_key
from shared.routing.reports import HeldChunks, LaneName, plain, read_report

DISK, MEMORY = LaneName("n", Tier.DISK), LaneName("n", Tier.MEMORY)


class PretendTier:
    """``looked``: how often it was."""

    def __init__(self, name: str) -> None:
        self.name, self.held, self.looked = name, set[str](), 0

    def copies(self, start_after: str = "", limit: int = 0, primary_only: bool = False) -> list[FileCopy]:
        self.looked += 1
        return [FileCopy(name, 1, 0.0, False) for name in sorted(self.held)][:limit]


class World:
    """One node, and a router that follows it."""

    def __init__(self) -> None:
        self.disk, self.memory, self.now_ms = PretendTier("disk"), PretendTier("memory"), 0.0
        self.node = NodeNotices("n", 1, (self.disk, self.memory, None), 1e9, lambda: self.now_ms)
        self.known: dict[str, tuple[int, int]] = {}
        self.view: dict[LaneName, set[int]] = {DISK: set(), MEMORY: set()}

    def listen(self) -> None:
        self.now_ms += LOOK_AGAIN_MS
        for told in self.node.since(self.known):
            report = _report(told)
            held = self.view.setdefault(report.lane, set())
            if report.base_seq is None:
                held.clear()
            held |= report.added
            held -= report.removed
            self.known[lane_key(report.lane)] = report.epoch, report.seq


def _report(told: dict[str, Any]) -> HeldChunks:
    return read_report(told["report"])


def keys(names: set[str]) -> set[int]:
    return set(map(chunk_key, names))


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.sets(st.sampled_from("abcd"))), max_size=12), st.data())
def test_a_router_knows_what_tiers_hold_whenever_it_asks(
    steps: list[tuple[bool, set[str]]], data: st.DataObject
) -> None:
    world = World()
    for on_disk, held in steps:
        (world.disk if on_disk else world.memory).held = held
        if data.draw(st.booleans()):
            world.listen()
            assert world.view == {DISK: keys(world.disk.held), MEMORY: keys(world.memory.held)}


def test_many_routers_do_not_make_it_look_more_often() -> None:
    world = World()
    world.listen()
    for _ in range(50):
        world.node.since({})
    assert world.disk.looked == 1


def test_links_are_busy_for_all_replicas_of_the_node_together() -> None:
    world = World()
    loads = {"r0": {"disk": 30.0}, "r1": {"disk": 20.0, "peer": 5.0}, "r2": {}, "r3": {"disk": "x", 7: 1.0}}
    for name, loading in loads.items():
        report = plain(HeldChunks(LaneName(name, Tier.RESIDENT), 1, 1))
        load = {"wait_ms": 1.0, "loading_ms": 0.0, "branches": 2}
        assert world.node.told({"report": report, "load": load, "loading": loading})
        world.now_ms += 2.0
    told: list[Any] = [notice for notice in world.node.since({}) if "load" in notice]
    left_ms = (30 - 8) + (20 - 6)  # since each was told
    assert [(one["age_ms"], one["load"]["loading_ms"]) for one in told] == [
        (age_ms, left_ms + age_ms) for age_ms in (8, 6, 4, 2)
    ]
    assert all(
        one["load"] | {"loading_ms": 0} == {"wait_ms": 1, "loading_ms": 0, "branches": 2} for one in told
    )
    world.now_ms += 60.0
    told = [notice for notice in world.node.since({}) if "load" in notice]
    assert [one["load"]["loading_ms"] for one in told] == [0.0] * 4


def test_what_replicas_on_the_node_tell_is_told_beside_it() -> None:
    world = World()
    lane = LaneName("r", Tier.RESIDENT)
    assert world.node.told({"report": plain(HeldChunks(lane, 1, 1, frozenset({7})))})
    assert not world.node.told({"report": plain(HeldChunks(lane, 1, 9, base_seq=8))})
    world.listen()
    assert world.view[lane] == {7}
