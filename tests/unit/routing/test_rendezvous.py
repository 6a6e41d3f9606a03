"""Rendezvous hashing with a load bound: who is first, who is passed over, and that nobody is left out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shared.routing.costs import RoutedQuestion, WantedChunk
from shared.routing.decision import RouteReason
from shared.routing.rendezvous import BOUND, BoundedRendezvous

NAMES = [f"r{i}" for i in range(16)]


def question(key: int) -> RoutedQuestion:
    return RoutedQuestion((WantedChunk(7, 10), WantedChunk(key, 100)), 10)


def hashing() -> BoundedRendezvous:
    made = BoundedRendezvous()
    made.set_replicas(NAMES)
    return made


@given(st.lists(st.integers(0, 9), min_size=1, max_size=16), st.integers(0, 2**64 - 1))
def test_every_replica_is_in_one_rank_and_the_first_keeps_the_bound(counts: list[int], key: int) -> None:
    ongoing = dict(zip(NAMES, counts, strict=False))
    decision = hashing().rank(question(key), ongoing)
    assert sorted(name for rank in decision.ranks for name in rank) == sorted(ongoing)
    assert decision.reason is RouteReason.HASHED
    first = decision.ranks[0][0]
    tried = [name for rank in decision.ranks[:16] for name in rank if len(rank) == 1]
    within = [name for name in tried if ongoing[name] < BOUND * (sum(counts) + 1) / len(ongoing)]
    assert first in within or not within


def test_the_heaviest_chunk_decides_until_its_replica_has_more_than_its_share() -> None:
    made, idle = hashing(), dict.fromkeys(NAMES, 0)
    ranks = made.rank(question(1), idle).ranks
    assert ranks == made.rank(RoutedQuestion((WantedChunk(1, 100),), 999), idle).ranks
    first, second = ranks[0][0], ranks[1][0]
    busy = made.rank(question(1), idle | {first: 2}).ranks
    assert busy[0][0] == second
    assert (first,) in busy, "if all others are full"
    assert len({made.rank(question(key), idle).ranks[0] for key in range(200)}) > 12


def test_without_chunks_any_will_do_and_without_replicas_none() -> None:
    assert hashing().rank(RoutedQuestion((), 10), {"r1": 0, "r2": 3}).ranks == (("r1", "r2"),)
    assert hashing().rank(question(1), {}).reason is RouteReason.NO_REPLICA
