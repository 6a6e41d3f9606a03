"""What a replica tells of itself is what its engine holds, whatever became of the notices before."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.generator.metering import count_routed
from services.generator.telling import Notice, ResidencyTeller
from shared.engine.stats import EngineStats
from shared.errors import Unavailable
from shared.generation.asked import Chunk
from shared.metrics.recorder import Metrics
from shared.routing.costs import MOST_MS, chunk_key
from shared.routing.noticeboard import NoticeBoard

IDS = "abcdef"
OUTCOMES = ("arrives", "is lost", "is refused", "agent begins anew")


class Agent:
    """Where notices go; ``outcome``: what becomes of the next one."""

    def __init__(self) -> None:
        self.board, self.outcome = NoticeBoard(lease_ms=1e9), "arrives"
        self.sent: list[Notice] = []

    async def send(self, notice: Notice) -> bool:
        self.sent.append(notice)
        outcome, self.outcome = self.outcome, "arrives"
        if outcome == "is refused":
            raise Unavailable("no agent")
        if outcome == "agent begins anew":
            self.board = NoticeBoard(lease_ms=1e9)
        told = self.board.told(notice, 0)
        if outcome == "is lost":  # it arrived, and nobody knows
            raise Unavailable("no answer")
        return told

    def held(self) -> set[object]:
        (told,) = self.board.since({}, 0)
        assert isinstance(told["report"], dict)
        return set(told["report"]["added"])


class Held:
    """An engine's snapshots."""

    def __init__(self) -> None:
        self.stats = EngineStats()

    def __call__(self) -> EngineStats:
        return self.stats


def teller(agent: Agent, stats: Held) -> ResidencyTeller:
    return ResidencyTeller("r0", 1, stats, 10, lambda: 200.0, agent.send, clock=lambda: 100.0)


def keys(ids: Iterable[str]) -> set[int]:
    return set(map(chunk_key, ids))


@settings(deadline=None)
@given(st.lists(st.tuples(st.sets(st.sampled_from(IDS)), st.sampled_from(OUTCOMES)), min_size=1, max_size=8))
def test_the_agent_knows_what_is_resident_after_every_notice_that_arrived(
    steps: list[tuple[set[str], str]],
) -> None:
    agent, stats = Agent(), Held()
    telling = teller(agent, stats)

    async def run() -> None:
        for resident, outcome in steps:
            stats.stats, agent.outcome = EngineStats(resident_chunk_ids=tuple(sorted(resident))), outcome
            try:
                await telling.tell()
            except Unavailable:
                continue
            assert agent.held() == keys(resident)
        stats.stats = EngineStats(resident_chunk_ids=("a",))
        await telling.tell()
        assert agent.held() == keys("a")
        agent.board.check_invariants()

    asyncio.run(run())


def test_after_a_first_snapshot_only_changes_travel() -> None:
    agent, stats = Agent(), Held()
    telling = teller(agent, stats)
    for ids in (("a", "b", "c"), ("b", "c", "d")):
        stats.stats = EngineStats(resident_chunk_ids=ids)
        asyncio.run(telling.tell())
    first, second = (notice["report"] for notice in agent.sent)
    assert isinstance(first, dict)
    assert isinstance(second, dict)
    assert (first["base_seq"], set(first["added"])) == (None, keys("abc"))
    assert (set(second["added"]), set(second["removed"])) == (keys("d"), keys("a"))


def test_it_says_how_busy_and_how_fast_it_is() -> None:
    agent, stats = Agent(), Held()
    telling = teller(agent, stats)
    asyncio.run(telling.tell())
    assert agent.sent[0]["rates"] == {}
    read_s = {"disk": 1e-5, "floppy": 1.0}
    stats.stats = EngineStats(
        at_s=99.8, tokens_ahead=300, running=2, compute_s=0.001, find_s=0.02, read_s=read_s
    )
    asyncio.run(telling.tell())
    load, rates = agent.sent[1]["load"], agent.sent[1]["rates"]
    assert load == {"wait_ms": pytest.approx(300), "loading_ms": 0.0, "branches": 2}
    assert agent.sent[1]["age_ms"] == pytest.approx(200), "a pass has been under way for so long"
    assert rates == {"prefill_ms": 1.0, "find_ms": 20.0, "link_ms": {"disk": pytest.approx(0.1)}}


def test_an_engine_that_rests_is_as_it_was() -> None:
    agent, stats = Agent(), Held()
    stats.stats = EngineStats(at_s=3.0, compute_s=0.001)
    asyncio.run(teller(agent, stats).tell())
    assert agent.sent[0]["age_ms"] == 0.0


def test_who_does_not_measure_counts_those_that_wait() -> None:
    agent, stats = Agent(), Held()
    stats.stats = EngineStats(tokens_ahead=300, waiting=3)
    asyncio.run(teller(agent, stats).tell())
    load = agent.sent[0]["load"]
    assert isinstance(load, dict)
    assert load["wait_ms"] == pytest.approx(600)


def test_it_says_for_how_long_links_bring_what_it_asked_for() -> None:
    agent, stats = Agent(), Held()
    telling = teller(agent, stats)
    asked = {"disk": 4_000, "objects": 1_000, "": 500, "peer": 100}
    stats.stats = EngineStats(loading_bytes=asked)
    asyncio.run(telling.tell())
    assert agent.sent[0]["loading"] == {}, "nobody knows how fast they are"
    stats.stats = EngineStats(loading_bytes=asked, read_s={"disk": 1e-5, "objects": 1e-4})
    asyncio.run(telling.tell())
    load, loading = agent.sent[1]["load"], agent.sent[1]["loading"]
    assert loading == pytest.approx({"disk": 45.0, "objects": 100.0, "peer": 10.0})
    assert isinstance(load, dict)
    assert load["loading_ms"] == pytest.approx(110.0), "the network's, which both of these share"
    stats.stats = EngineStats(loading_bytes={"disk": 10**18}, read_s={"disk": 1.0})
    asyncio.run(telling.tell())
    assert agent.sent[2]["loading"] == {"disk": MOST_MS}


def test_hits_misses_and_what_was_expected_in_vain_are_counted() -> None:
    metrics, chunks = Metrics(), [Chunk(name, (1, 2)) for name in IDS[:4]]
    count_routed(metrics, chunks, ["a", "x"], expected=3)
    count_routed(metrics, chunks, IDS, expected=2**31)  # whoever says so
    text = metrics.text()
    assert 'kvquilt_routed_chunks_total{outcome="hit"} 5.0' in text
    assert 'kvquilt_routed_chunks_total{outcome="miss"} 3.0' in text
    assert "kvquilt_route_stale_total 2.0" in text
