"""A soak notices a system that breaks its promises, and only such a one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from load_tests.benchmark import Violation
from load_tests.cluster_soak.__main__ import printed_table
from load_tests.cluster_soak.fault import ASKS, WRITES
from load_tests.cluster_soak.ledger import FaultLedger
from load_tests.cluster_soak.soak import _flat
from load_tests.cluster_soak.workers import Asker, Writer, work
from load_tests.servers.stack_processes import ProcessUse, grown
from shared.answer import AnswerDone, AnswerEvent, AnswerText, Inquiry
from shared.documents import DeletedDocuments, SourceDocument, Stage, UpsertProgress
from shared.errors import DeadlineExceeded, InternalError, KvquiltError, NotFound, StorageFull, Unavailable
from shared.generation.told import FinishReason, TokenEvent
from shared.request import RequestContext

QUESTION, ANSWER = "Who is the mayor?", "Ada"


class Clock:
    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> float:
        return self.s


class TestLedger:
    def test_all_is_well_when_every_worker_had_an_answer_to_a_call_that_began_after_the_strike(self) -> None:
        ledger = FaultLedger({ASKS: 2, WRITES: 1}, clock := Clock())
        ledger.success(ASKS, 0, 0.0)
        assert ledger.recovered
        clock.s = 10.0
        struck = ledger.strike("generator killed")
        for worker, began_s, now_s in ((0, 9.0, 11.0), (0, 11.0, 12.0), (1, 9.5, 13.0)):
            clock.s = now_s
            ledger.success(ASKS, worker, began_s)
            ledger.success(WRITES, 0, 10.5)
        assert struck.recovery_s == {WRITES: 1.0}
        assert not ledger.recovered
        clock.s = 14.0
        ledger.success(ASKS, 1, 13.5)
        assert ledger.recovered
        assert struck.recovery_s == {WRITES: 1.0, ASKS: 4.0}
        clock.s = 20.0
        ledger.strike("agent killed")
        assert not ledger.recovered
        assert ledger.succeeded == {ASKS: 5, WRITES: 3}

    def test_the_table_names_what_failed_and_the_longest_recovery(self) -> None:
        ledger = FaultLedger({ASKS: 1, WRITES: 1}, clock := Clock())
        for recovery_s in (2.0, 5.0):
            since_s = clock.s
            ledger.strike("agent killed")
            ledger.failure(ASKS, Unavailable("gone"))
            clock.s = since_s + recovery_s
            ledger.success(ASKS, 0, since_s)
        assert ledger.rows() == [("agent killed", "2", "2 UNAVAILABLE", "5.0 s", "none", "not seen")]
        assert printed_table(ledger).splitlines()[1].split()[:5] == [
            "agent",
            "killed",
            "2",
            "2",
            "UNAVAILABLE",
        ]

    @pytest.mark.parametrize("error", [InternalError("a bug"), DeadlineExceeded("too late"), NotFound("?")])
    def test_a_caller_may_only_be_told_what_is_retryable(self, error: KvquiltError) -> None:
        ledger = FaultLedger({ASKS: 1})
        ledger.strike("agent killed")
        with pytest.raises(Violation, match=error.code):
            ledger.failure(ASKS, error)

    def test_a_fault_may_say_what_else_its_callers_are_told_and_who(self) -> None:
        ledger = FaultLedger({ASKS: 1, WRITES: 1})
        ledger.strike("disk full", frozenset({(WRITES, StorageFull.code)}))
        ledger.failure(WRITES, StorageFull("make room"))
        with pytest.raises(Violation, match="asks: STORAGE_FULL"):
            ledger.failure(ASKS, StorageFull("make room"))
        ledger.strike("agent killed")
        with pytest.raises(Violation, match="writes: STORAGE_FULL"):
            ledger.failure(WRITES, StorageFull("make room"))

    def test_nothing_may_fail_before_a_fault(self) -> None:
        with pytest.raises(Violation, match="before any fault"):
            FaultLedger({ASKS: 1}).failure(ASKS, Unavailable("gone"))


@dataclass
class Answering:
    """A gateway that leaves out the last ``missing`` tokens of long answers."""

    text: str = ANSWER
    missing: int = 0
    ends: bool = True
    failure: KvquiltError | None = None

    async def answer(self, ctx: RequestContext, inquiry: Inquiry) -> AsyncGenerator[AnswerEvent, None]:
        if self.failure is not None:
            raise self.failure
        for i in range(inquiry.sampling.max_tokens - self.missing if inquiry.sampling.ignore_eos else 0):
            yield TokenEvent(0, 0, i, 7, " a", 0.0)
        yield AnswerText(0, 0, self.text, FinishReason.STOP)
        if self.ends:
            yield AnswerDone("request")


def asker_of(client: Answering) -> Asker:
    return Asker(0, client, "towns", {QUESTION: ANSWER}, random.Random(2))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("client", "told"),
    [
        (Answering("Bob"), "instead of"),
        (Answering(missing=1), "299 of 300"),
        (Answering(ends=False), "ended well"),
    ],
)
async def test_wrong_and_cut_answers_that_end_well_are_found_out(client: Answering, told: str) -> None:
    asker = asker_of(client)

    async def ask() -> None:
        for _ in range(30):
            await asker.step()

    with pytest.raises(Violation, match=told):
        await ask()


async def test_whole_and_equal_answers_pass_and_failures_are_counted() -> None:
    ledger, left = FaultLedger({ASKS: 1}), iter(range(10))
    ledger.strike("generator killed")
    async with asyncio.timeout(30):
        await work(asker_of(Answering()), ledger, lambda: next(left, None) is None, 0)
        left = iter(range(1))
        await work(
            asker_of(Answering(failure=Unavailable("gone"))), ledger, lambda: next(left, None) is None, 0
        )
    assert ledger.succeeded[ASKS] == 10
    assert ledger.struck[0].failed == {(ASKS, "UNAVAILABLE"): 1}


@dataclass
class Town:
    """Ingestion and retrieval in one. ``loses``: acknowledges without storing; ``stale``: keeps the first
    text; ``failing``: stores or not, and fails. ``unfound``: listed, but not in the index."""

    loses: bool = False
    stale: bool = False
    failing: float = 0.0
    rng: random.Random = field(default_factory=lambda: random.Random(5))
    texts: dict[str, str] = field(default_factory=dict)
    unfound: set[str] = field(default_factory=set)

    async def upsert(
        self, ctx: RequestContext, collection: str, documents: Sequence[SourceDocument]
    ) -> AsyncGenerator[UpsertProgress, None]:
        (document,) = documents
        fails = self.rng.random() < self.failing
        kept = self.stale and document.document_id in self.texts
        if not (self.loses or kept or (fails and self.rng.random() < 0.5)):
            self.texts[document.document_id] = document.content.decode()
            self.unfound.discard(document.document_id)
        if fails:
            yield UpsertProgress(document.document_id, Stage.FAILED, error="gone", error_code="UNAVAILABLE")
        else:
            yield UpsertProgress(document.document_id, Stage.STORED)

    async def delete(
        self, ctx: RequestContext, collection: str, document_ids: Sequence[str]
    ) -> DeletedDocuments:
        found = [self.texts.pop(document_id, None) for document_id in document_ids]
        missing = tuple(i for i, text in zip(document_ids, found, strict=True) if text is None)
        return DeletedDocuments(len(found) - len(missing), 0, missing)

    async def list(self, ctx: RequestContext, collection: str) -> AsyncGenerator[Any, None]:
        for document_id in self.texts:
            yield _Named(document_id)

    async def search(self, ctx: RequestContext, collection: str, queries: Sequence[str], k: int) -> Any:
        return _Rankings([[_Hit(i, _Text(t)) for i, t in self.texts.items() if i not in self.unfound]])


@dataclass
class _Named:
    document_id: str


@dataclass
class _Text:
    text: str


@dataclass
class _Hit:
    document_id: str
    chunk: _Text


@dataclass
class _Rankings:
    rankings: list[list[_Hit]]


async def written(town: Town, steps: int = 60) -> Writer:
    writer = Writer(0, town, town, "soak", random.Random(4))  # type: ignore[arg-type]
    for _ in range(steps):
        try:
            await writer.step()
        except Unavailable:
            continue
    return writer


async def test_what_was_acknowledged_is_there_and_what_failed_may_be_either() -> None:
    assert await (await written(Town())).check() > 3
    town = Town(failing=0.3)
    writer = await written(town)
    town.failing = 0.0
    assert await writer.check() > 1


async def test_lost_and_stale_documents_are_found_out() -> None:
    with pytest.raises(Violation, match="was acknowledged"):
        await (await written(Town(loses=True), 3)).check()
    with pytest.raises(Violation, match="is not found by what was acknowledged"):
        await (await written(Town(stale=True))).check()
    town = Town()
    writer = await written(town)
    town.texts.popitem()
    with pytest.raises(Violation, match="is not there"):
        await writer.check()


async def test_a_document_that_a_call_left_halfway_may_be_unfound_until_it_is_brought_again() -> None:
    town = Town()
    writer = await written(town)
    document_id = min(town.texts)
    town.unfound.add(document_id)
    with pytest.raises(Violation, match="is not found by what was acknowledged"):
        await writer.check()
    writer.allowed[document_id].add(None)
    assert await writer.check() == len(town.texts)
    assert not town.unfound


async def test_a_document_that_can_no_longer_be_brought_is_found_out() -> None:
    town = Town()
    writer = await written(town)
    writer.allowed[min(town.texts)].add(None)
    town.loses = True
    with pytest.raises(Violation, match="is not found by what was acknowledged"):
        await writer.check()


def test_only_processes_that_lived_all_the_time_count_and_may_not_grow() -> None:
    before = {
        1: ProcessUse("raylet", 10, 100, 1 << 20),
        2: ProcessUse("ray::A", 9, 9, 9),
        3: ProcessUse("ray::B", 5, 5, 5),
    }
    after = {
        1: ProcessUse("raylet", 12, 110, 2 << 20),
        2: ProcessUse("ray::IDLE", 99, 99, 99),
        4: ProcessUse("ray::C", 7, 7, 7),
    }
    assert grown(before, after, lambda held: held.files) == (100, 110)
    assert "100 before, 110 after" in _flat("open files", before, after)
    leaking = after | {1: ProcessUse("raylet", 12, 400, 2 << 20)}
    with pytest.raises(Violation, match="a leak"):
        _flat("open files", before, leaking)
