from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from services.kv_store.tiers.eviction import S3Fifo

NAMES = st.sampled_from("abcdefgh")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("admit"), NAMES, st.integers(1, 50)),
        st.tuples(st.just("touch"), NAMES, st.just(0)),
        st.tuples(st.just("remove"), NAMES, st.just(0)),
        st.tuples(st.just("victims"), NAMES, st.integers(1, 200)),
    ),
    max_size=60,
)


@given(STEPS, st.sets(NAMES))
def test_bytes_are_accounted_for_whatever_happens(steps: list[tuple[str, str, int]], kept: set[str]) -> None:
    queue, model = S3Fifo(), dict[str, int]()
    for step, name, size in steps:
        match step:
            case "admit":
                queue.admit(name, size)
                model[name] = size
            case "touch":
                queue.touch(name)
            case "remove":
                queue.remove(name)
                model.pop(name, None)
            case _:
                evictable = sum(s for n, s in model.items() if n not in kept)
                victims = queue.victims(size, lambda n: n in kept)
                freed = sum(model.pop(v) for v in victims)
                assert not kept & set(victims)
                assert len(victims) == len(set(victims))
                assert freed >= size if evictable >= size else not victims
        queue.check_invariants()
        assert queue.num_bytes == sum(model.values())
        assert len(queue) == len(model)
        assert all(n in queue for n in model)


class Cache:
    """What a queue is for: a given number of bytes, things of one byte."""

    def __init__(self, capacity: int) -> None:
        self.queue, self.capacity = S3Fifo(), capacity

    def use(self, name: str) -> bool:
        hit = name in self.queue
        if hit:
            self.queue.touch(name)
        else:
            if self.queue.num_bytes >= self.capacity:
                self.queue.victims(1, lambda _: False)
            self.queue.admit(name, 1)
        return hit


@given(st.integers(0, 2**32), st.integers(150, 2000))
def test_a_scan_does_not_flush_the_hot_set(seed: int, scan_len: int) -> None:
    cache, rng = Cache(100), random.Random(seed)
    hot = [f"hot{n}" for n in range(60)]
    for _ in range(600):
        cache.use(rng.choice(hot))
    before = {name for name in hot if name in cache.queue}
    for n in range(scan_len):
        cache.use(f"scan{n}")
    assert len(before) > 50
    assert sum(name in cache.queue for name in before) >= 0.9 * len(before)


def test_a_scan_through_the_hot_set_of_an_lru_would_flush_it_but_reused_things_are_learned() -> None:
    """The other side: a new hot set takes the place of one that is not used any more."""
    cache = Cache(100)
    for _ in range(5):
        for n in range(80):
            cache.use(f"old{n}")
    hits = 0
    for round in range(20):
        hits = sum(cache.use(f"new{n}") for n in range(80))
        assert round < 19 or hits >= 72


def test_what_was_evicted_lately_and_comes_back_is_hot() -> None:
    cache = Cache(10)
    for n in range(12):
        cache.use(f"a{n}")
    assert "a0" not in cache.queue
    cache.use("a0")  # its name was remembered
    for n in range(50):
        cache.use(f"b{n}")
    assert "a0" in cache.queue


def queue_with_main(*names: str, size_bytes: int = 10) -> S3Fifo:
    """Whose main queue holds these, not used since they came there, and whose small one is empty."""
    queue = S3Fifo()
    for name in names:
        queue.admit(name, size_bytes)
        queue.touch(name)
        queue.touch(name)
    queue.admit("once", 1)
    assert queue.victims(1, lambda _: False) == ["once"]
    return queue


def test_new_ones_go_first_while_they_take_a_tenth_or_more() -> None:
    for size_bytes, victim in ((10, "new"), (9, "a")):
        queue = queue_with_main(*"abcdefghi")
        queue.admit("new", size_bytes)
        assert queue.victims(1, lambda _: False) == [victim]


def test_of_the_hot_ones_those_stay_longer_that_were_used_more_often() -> None:
    queue = queue_with_main("a", "b")
    for name in "aab":
        queue.touch(name)
    assert queue.victims(1, lambda _: False) == ["b"]


def test_a_hot_one_that_is_replaced_counts_with_its_new_size_and_stays_hot() -> None:
    queue = queue_with_main("a", "b")
    queue.admit("a", 25)
    assert queue.num_bytes == 35
    queue.admit("new", 10)
    assert queue.victims(1, lambda _: False) == ["new"]
    queue.check_invariants()


def test_what_was_evicted_long_ago_is_new_again() -> None:
    queue = queue_with_main(*"abcdefghi")
    for n in range(12):
        queue.admit(f"passing{n}", 10)
        assert queue.victims(1, lambda _: False) == [f"passing{n}"]
    queue.admit("passing0", 10)
    assert queue.victims(1, lambda _: False) == ["passing0"], "its name was forgotten"
    queue.admit("passing11", 10)
    assert queue.victims(1, lambda _: False) == ["a"], "this one's was not"


def test_nothing_is_evicted_if_too_little_can_be() -> None:
    queue = S3Fifo()
    for name in "abc":
        queue.admit(name, 10)
    assert queue.victims(21, lambda n: n == "a") == []
    assert len(queue) == 3
    assert sorted(queue.victims(20, lambda n: n == "a")) == ["b", "c"]
    queue.check_invariants()
