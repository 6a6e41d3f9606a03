"""A node's notices: whoever reads them knows what their writers hold, wherever he stood before."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from shared.routing.costs import Tier
from shared.routing.journal import HeldJournal
from shared.routing.noticeboard import NoticeBoard, lane_key
from shared.routing.reports import HeldChunks, LaneName, ReportOutcome, plain, read_report
from shared.routing.residency import Residency

LANE = LaneName("a", Tier.RESIDENT)
KEYS = range(8)
LEASE_MS = 100.0


def notice(report: HeldChunks, **beside: object) -> dict[str, object]:
    return {"report": plain(report), **beside}


def report_of(told: dict[str, Any]) -> HeldChunks:
    return read_report(told["report"])


def test_who_has_seen_nothing_gets_all_and_who_has_seen_all_gets_a_renewal() -> None:
    board = NoticeBoard(LEASE_MS)
    assert board.told(notice(HeldChunks(LANE, 1, 3, frozenset({1, 2})), load={"branches": 4}), 0)
    (told,) = board.since({}, 5)
    assert (report_of(told).base_seq, report_of(told).added) == (None, {1, 2})
    assert (told["load"], told["age_ms"]) == ({"branches": 4}, 5)
    (again,) = board.since({lane_key(LANE): (1, 3)}, 5)
    assert report_of(again) == HeldChunks(LANE, 1, 3, base_seq=3)


def test_what_was_old_when_it_was_told_is_older_when_it_is_read() -> None:
    board = NoticeBoard(LEASE_MS)
    assert board.told(notice(HeldChunks(LANE, 1, 3), age_ms=150.0), 10)
    assert [told["age_ms"] for told in board.since({}, 30)] == [170]
    assert board.since({}, 10 + LEASE_MS), "it has said something since"


def test_each_router_is_answered_from_where_it_stands() -> None:
    board = NoticeBoard(LEASE_MS)
    board.told(notice(HeldChunks(LANE, 1, 1, frozenset({1}))), 0)
    board.told(notice(HeldChunks(LANE, 1, 2, frozenset({2}), base_seq=1)), 0)
    board.told(notice(HeldChunks(LANE, 1, 3, frozenset(), frozenset({1}), base_seq=2)), 0)
    changes = {seq: report_of(board.since({lane_key(LANE): (1, seq)}, 0)[0]) for seq in (1, 2)}
    assert (changes[1].added, changes[1].removed) == ({2}, {1})
    assert (changes[2].added, changes[2].removed) == (set(), {1})
    assert report_of(board.since({lane_key(LANE): (0, 3)}, 0)[0]).base_seq is None  # of an earlier life
    assert report_of(board.since({lane_key(LANE): (1, 9)}, 0)[0]).base_seq is None  # of the future


def test_what_does_not_follow_asks_for_a_snapshot() -> None:
    board = NoticeBoard(LEASE_MS)
    assert not board.told(notice(HeldChunks(LANE, 1, 2, frozenset({1}), base_seq=1)), 0)
    board.told(notice(HeldChunks(LANE, 1, 2, frozenset({1}))), 0)
    assert not board.told(notice(HeldChunks(LANE, 1, 5, frozenset({1}), base_seq=4)), 0)
    assert not board.told(notice(HeldChunks(LANE, 2, 3, frozenset({1}), base_seq=2)), 0)
    for nonsense in ({}, {"report": None}, {"report": {"holder": "a", "tier": "resident", "epoch": "x"}}):
        assert not board.told(nonsense, 0)
    assert report_of(board.since({}, 0)[0]).added == {1}


def test_of_a_silent_holder_nothing_is_told() -> None:
    board = NoticeBoard(LEASE_MS)
    board.told(notice(HeldChunks(LANE, 1, 1, frozenset({1}))), 0)
    assert board.since({}, LEASE_MS) != []
    assert board.since({}, LEASE_MS + 1) == []


class Told(RuleBasedStateMachine):
    """A holder, its board, which forgets and is forgotten now and then, and two routers that listen when they
    like."""

    def __init__(self) -> None:
        super().__init__()
        self.journal, self.held = HeldJournal(LANE, 1), set[int]()
        self.board = NoticeBoard(LEASE_MS, most_changes=3)
        self.views = [Residency(lease_ms=1e9) for _ in range(2)]
        for view in self.views:
            view.join("a", "n", 0)
        self.known: list[dict[str, tuple[int, int]]] = [{}, {}]
        self.epoch = 1

    @rule(key=st.sampled_from(KEYS))
    def comes(self, key: int) -> None:
        self.journal.add(key)
        self.held.add(key)

    @rule(key=st.sampled_from(KEYS))
    def goes(self, key: int) -> None:
        self.journal.remove(key)
        self.held.discard(key)

    @rule()
    def tells(self) -> None:
        if not self.board.told(notice(self.journal.tell()), 0):
            assert self.board.told(notice(self.journal.snapshot()), 0)

    @rule()
    def tells_in_vain(self) -> None:
        self.journal.tell()

    @rule()
    def board_begins_anew(self) -> None:
        self.board = NoticeBoard(LEASE_MS, most_changes=3)

    @rule()
    def holder_begins_anew(self) -> None:
        self.epoch += 1
        self.journal, self.held = HeldJournal(LANE, self.epoch), set()

    @rule(router=st.sampled_from([0, 1]))
    def listens(self, router: int) -> None:
        self.tells()
        view = self.views[router]
        for told in self.board.since(self.known[router], 0):
            report = report_of(told)
            outcome = view.apply(report, 0)
            assert outcome in (ReportOutcome.APPLIED, ReportOutcome.OLD)
            self.known[router][lane_key(report.lane)] = report.epoch, report.seq
        assert {key for key in KEYS if view.holders(Tier.RESIDENT, key)} == self.held

    @invariant()
    def is_sound(self) -> None:
        self.board.check_invariants()


TestTold = Told.TestCase
TestTold.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
