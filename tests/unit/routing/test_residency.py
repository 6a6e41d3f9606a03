"""A router's view: as the reports say or older, never mixed up, whatever is lost on the way."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from shared.errors import InvalidRequest
from shared.routing.costs import Tier
from shared.routing.journal import HeldJournal
from shared.routing.reports import MOST_HELD, HeldChunks, LaneName, ReportOutcome, plain, read_report
from shared.routing.residency import Residency

LANE, NODE_LANE = LaneName("a", Tier.RESIDENT), LaneName("n", Tier.DISK)
KEYS = range(6)


def snapshot(*keys: int, seq: int = 0, epoch: int = 1, lane: LaneName = LANE) -> HeldChunks:
    return HeldChunks(lane, epoch, seq, frozenset(keys))


def delta(
    base_seq: int, seq: int, added: set[int] | None = None, removed: set[int] | None = None, epoch: int = 1
) -> HeldChunks:
    return HeldChunks(LANE, epoch, seq, frozenset(added or ()), frozenset(removed or ()), base_seq)


def view(most_keys: int = MOST_HELD) -> Residency:
    residency = Residency(lease_ms=100, most_keys=most_keys)
    residency.join("a", "n", 0)
    residency.join("b", "n", 1)
    return residency


def held(residency: Residency) -> set[int]:
    residency.check_invariants()
    return {key for key in KEYS if residency.holders(Tier.RESIDENT, key)}


def test_changes_follow_a_snapshot() -> None:
    residency = view()
    assert residency.apply(delta(0, 1, {1}), 0) is ReportOutcome.SNAPSHOT_NEEDED
    assert residency.apply(snapshot(1, 2), 0) is ReportOutcome.APPLIED
    assert residency.apply(delta(0, 2, {3}, {1, 5}), 0) is ReportOutcome.APPLIED  # 5: was never there
    assert held(residency) == {2, 3}


def test_a_gap_retires_the_lane_until_a_snapshot() -> None:
    residency = view()
    residency.apply(snapshot(1), 0)
    assert residency.apply(delta(1, 2, {2}), 0) is ReportOutcome.SNAPSHOT_NEEDED
    assert held(residency) == set()
    assert not residency.any_live
    assert residency.apply(delta(0, 1, {2}), 0) is ReportOutcome.SNAPSHOT_NEEDED
    residency.apply(snapshot(2, seq=2), 0)
    assert held(residency) == {2}


def test_what_comes_twice_or_late_changes_nothing() -> None:
    residency = view()
    residency.apply(snapshot(1, seq=3), 0)
    residency.apply(delta(3, 4, {2}), 0)
    assert residency.apply(delta(3, 4, {2}), 0) is ReportOutcome.OLD
    assert residency.apply(snapshot(5, seq=2), 0) is ReportOutcome.OLD
    assert residency.apply(snapshot(5, epoch=0, seq=9), 0) is ReportOutcome.OLD
    assert held(residency) == {1, 2}


def test_a_holder_that_began_anew_is_asked_for_a_snapshot() -> None:
    residency = view()
    residency.apply(snapshot(1), 0)
    assert residency.apply(delta(0, 1, {2}, epoch=2), 0) is ReportOutcome.SNAPSHOT_NEEDED
    assert held(residency) == set()


def test_a_lease_ends_unless_something_is_heard() -> None:
    residency = view()
    residency.apply(snapshot(1), 0)
    residency.apply(delta(0, 0), 90)
    residency.expire(180)
    assert held(residency) == {1}
    residency.expire(191)
    assert held(residency) == set()
    assert residency.apply(delta(0, 1, {2}), 191) is ReportOutcome.SNAPSHOT_NEEDED


def test_what_a_node_holds_counts_for_all_its_replicas() -> None:
    residency = view()
    residency.apply(snapshot(1, lane=NODE_LANE), 0)
    residency.join("c", "n", 2)
    assert residency.holders(Tier.DISK, 1) == 0b111
    residency.leave("a")
    assert residency.holders(Tier.DISK, 1) == 0b110
    residency.leave("b")
    residency.leave("c")
    residency.check_invariants()
    assert residency.num_keys == 0
    assert residency.apply(snapshot(1, lane=NODE_LANE), 0) is ReportOutcome.UNKNOWN


def test_a_lane_holds_no_more_than_its_limit() -> None:
    residency = view(most_keys=3)
    residency.apply(snapshot(*range(10)), 0)
    residency.apply(delta(0, 1, {20, 21}), 0)
    assert residency.num_keys == 3
    residency.check_invariants()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"holder": ""}, "holder"),
        ({"holder": 7}, "holder"),
        ({"tier": "peer"}, "tier"),
        ({"seq": -1}, "seq"),
        ({"seq": True}, "seq"),
        ({"epoch": float("nan")}, "epoch"),
        ({"added": [1, 2**64]}, "added"),
        ({"added": "12"}, "added"),
        ({"added": list(range(MOST_HELD + 1))}, "added"),
        ({"removed": [1]}, "removed"),
        ({"base_seq": 5}, "seq"),
        ({"base_seq": 0, "seq": 1, "added": [3], "removed": [3]}, "removed"),
    ],
)
def test_nonsense_is_refused_by_name(change: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        read_report(plain(snapshot(1, 2)) | change)


def test_a_report_survives_its_plain_form() -> None:
    for report in (snapshot(1, 2), delta(3, 4, {1}, {2})):
        assert read_report(plain(report)) == report


def test_changes_that_a_snapshot_had_already_are_no_gap() -> None:
    journal, residency = HeldJournal(LANE, 1), view()
    residency.apply(journal.tell(), 0)
    for key in KEYS:
        journal.add(key)
    residency.apply(journal.tell(), 0)
    journal.remove(1)
    residency.apply(journal.snapshot(), 0)
    journal.add(1)
    journal.remove(2)
    assert residency.apply(journal.tell(), 0) is ReportOutcome.APPLIED
    assert held(residency) == set(KEYS) - {2}


def test_a_key_that_was_not_there_and_is_again_is_believed_again() -> None:
    journal, residency = HeldJournal(LANE, 1), view()
    for key in KEYS:
        journal.add(key)
    residency.apply(journal.tell(), 0)
    residency.contradict("a", [1])
    assert 1 not in held(residency)
    journal.remove(1)
    journal.add(1)  # as a question that found it missing makes it
    residency.apply(journal.tell(), 0)
    assert 1 in held(residency)


def test_a_journal_tells_no_more_than_it_may() -> None:
    journal = HeldJournal(LANE, 1, most_held=2)
    for key in (1, 2, 3):
        journal.add(key)
    assert journal.tell().added == {1, 2}
    journal.remove(3)
    journal.remove(1)
    journal.add(4)
    assert journal.snapshot().added == {2, 4}
    journal.check_invariants()


def test_a_journal_without_changes_renews_the_lease() -> None:
    journal, residency = HeldJournal(LANE, 1), view()
    journal.add(1)
    residency.apply(journal.tell(), 0)
    assert residency.apply(journal.tell(), 90) is ReportOutcome.APPLIED
    residency.expire(180)
    assert held(residency) == {1}


class LossyReports(RuleBasedStateMachine):
    """One holder, whose reports are lost, repeated and late: what is seen was true at the moment it tells."""

    def __init__(self) -> None:
        super().__init__()
        self.residency, self.now_ms = view(), 0.0
        self.epoch, self.truth = 1, set[int]()
        self.journal = HeldJournal(LANE, self.epoch)
        self.past: dict[tuple[int, int], set[int]] = {(1, 0): set()}
        self.on_the_way: list[HeldChunks] = []
        self.seen: tuple[int, int] | None = None

    @rule(key=st.sampled_from(KEYS), there=st.booleans())
    def changes(self, key: int, there: bool) -> None:
        if there:
            self.journal.add(key)
            self.truth = self.truth | {key}
        else:
            self.journal.remove(key)
            self.truth = self.truth - {key}
        self.journal.check_invariants()
        self.past[self.epoch, self.journal.snapshot().seq] = self.truth

    @rule()
    def begins_anew(self) -> None:
        self.epoch, self.truth = self.epoch + 1, set()
        self.journal = HeldJournal(LANE, self.epoch)
        self.past[self.epoch, 0] = set()

    @rule(whole=st.booleans())
    def tells(self, whole: bool) -> None:
        report = self.journal.snapshot() if whole else self.journal.tell()
        assert read_report(plain(report)) == report
        self.on_the_way.append(report)

    @rule(which=st.integers(0, 20), again=st.booleans(), passed_ms=st.sampled_from([0.0, 60.0, 150.0]))
    def arrives(self, which: int, again: bool, passed_ms: float) -> None:
        self.now_ms += passed_ms
        self.residency.expire(self.now_ms)
        if not self.on_the_way:
            return
        place = which % len(self.on_the_way)
        report = self.on_the_way[place] if again else self.on_the_way.pop(place)
        if self.residency.apply(report, self.now_ms) is ReportOutcome.APPLIED:
            self.seen = (report.epoch, report.seq)

    @invariant()
    def sees_what_was_true(self) -> None:
        seen = held(self.residency)
        if self.residency.any_live:
            assert self.seen is not None
            assert seen == self.past[self.seen]
        else:
            assert seen == set()


TestLossyReports = LossyReports.TestCase
TestLossyReports.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def test_a_word_that_nothing_changed_is_news_and_the_same_change_again_is_not() -> None:
    residency, many = view(), 10**6  # numbers that are equal without being one object
    assert residency.apply(snapshot(1, seq=many), 0) is ReportOutcome.APPLIED
    assert residency.apply(delta(int("1000000"), int("1000000")), 50) is ReportOutcome.APPLIED
    assert residency.apply(delta(many - 1, many, {2}), 60) is ReportOutcome.OLD
    assert held(residency) == {1}
