"""What users say of answers: remembered, kept, bounded, read again."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import aclosing
from pathlib import Path

import pytest

from cluster.cli.feedback_commands import questions_of
from cluster.gate.questions import OwnQuestion, read_questions
from protos.kvquilt.v1 import rag_pb2
from services.gateway.config import FeedbackConfig, GatewayConfig
from services.gateway.feedback import FeedbackKeeper, GivenAnswer
from services.gateway.pipeline import Pipeline
from services.gateway.prefetch import Prefetching
from shared.answer import Inquiry, Refusal
from shared.errors import FailedPrecondition, InvalidRequest, NotFound
from shared.feedback import Feedback, RatedAnswer, Rating
from shared.request import RequestContext
from shared.wire.feedback import FEEDBACK, RATED
from tests.unit.gateway.fakes import FakeGenerator, FakeRetriever, hit

HITS = (hit("a", "Orla Venn built it"), hit("b", "It was built in 1874"))
GIVEN = GivenAnswer("handbook", ("Who?", "When?"), ("Orla Venn", "in 1874"), HITS, "epic", 3)


def keeper(directory: Path, clock: float = 5.0, **settings: int) -> FeedbackKeeper:
    return FeedbackKeeper(FeedbackConfig(str(directory), **settings), lambda: clock)


def rated_of(directory: Path, tenant: str = "t") -> list[tuple[str, str]]:
    return [(one.request_id, one.comment) for one in keeper(directory).ratings(tenant)]


def test_a_rating_is_kept_with_the_mode_and_the_chunks_of_its_answer(tmp_path: Path) -> None:
    kept = keeper(tmp_path)
    kept.remember("t", "r1", GIVEN)
    rated = kept.rate("t", Feedback("r1", Rating.GOOD, "Yes!", 1))
    assert rated == RatedAnswer(
        "r1",
        1,
        Rating.GOOD,
        "Yes!",
        "handbook",
        "When?",
        "in 1874",
        "epic",
        0.3333,
        ("a", "b"),
        ("a.txt", "b.txt"),
        5.0,
    )
    assert keeper(tmp_path).ratings("t") == [rated]  # by another process
    assert keeper(tmp_path).ratings("t", "handbook") == [rated]
    assert keeper(tmp_path).ratings("t", "other") == []


def test_tenants_do_not_see_each_others_answers_and_ratings(tmp_path: Path) -> None:
    kept = keeper(tmp_path)
    kept.remember("t", "r1", GIVEN)
    with pytest.raises(
        NotFound, match=r"no answer 'r1' is remembered here, of the last 1000; rate answers sooner"
    ):
        kept.rate("u", Feedback("r1", Rating.GOOD))
    kept.rate("t", Feedback("r1", Rating.GOOD))
    assert kept.ratings("u") == []


def test_who_changes_their_mind_is_heard_last(tmp_path: Path) -> None:
    kept = keeper(tmp_path)
    for name in ("r1", "r2"):
        kept.remember("t", name, GIVEN)
        kept.rate("t", Feedback(name, Rating.GOOD))
    kept.rate("t", Feedback("r1", Rating.BAD, "No."))
    kept.rate("t", Feedback("r1", Rating.BAD, "Nor this.", 1))
    assert [(one.request_id, one.question, one.rating) for one in kept.ratings("t")] == [
        ("r2", 0, Rating.GOOD),
        ("r1", 0, Rating.BAD),
        ("r1", 1, Rating.BAD),
    ]


@pytest.mark.parametrize(
    ("feedback", "says"),
    [
        (Feedback("r1"), "rating: neither a rating nor a comment is given"),
        (Feedback("r1", comment=" "), "rating: neither a rating nor a comment is given"),
        (Feedback("r1", Rating.BAD, "x" * 11), "comment: at most 10 characters, got 11"),
        (Feedback("r1", Rating.BAD, question=2), "question: the answer is to 2, got 2"),
    ],
)
def test_what_says_nothing_or_too_much_is_refused(tmp_path: Path, feedback: Feedback, says: str) -> None:
    kept = keeper(tmp_path, max_comment_chars=10)
    kept.remember("t", "r1", GIVEN)
    with pytest.raises(InvalidRequest, match=says):
        kept.rate("t", feedback)
    assert list(tmp_path.iterdir()) == []


def test_memory_and_files_are_bounded_and_the_oldest_go_first(tmp_path: Path) -> None:
    kept = keeper(tmp_path, remembered=2, most_ratings=4)
    for i in range(3):
        kept.remember("t", f"r{i}", GIVEN)
    assert len(kept) == 2
    with pytest.raises(NotFound):
        kept.rate("t", Feedback("r0", Rating.GOOD))
    for i in range(20):
        kept.remember("t", f"r{i}", GIVEN)
        kept.rate("t", Feedback(f"r{i}", Rating.GOOD))
        assert len((tmp_path / "t.jsonl").read_text().splitlines()) <= 5
    assert [one.request_id for one in kept.ratings("t")] == ["r16", "r17", "r18", "r19"]


def test_a_line_that_a_crash_left_unfinished_is_not_mixed_with_the_next(tmp_path: Path) -> None:
    for name in ("r1", "r2"):
        kept = keeper(tmp_path)
        kept.remember("t", name, GIVEN)
        kept.rate("t", Feedback(name, comment=name))
        with (tmp_path / "t.jsonl").open("ab") as file:
            file.write(b'{"request_id": "r')
            os.fsync(file.fileno())
        assert rated_of(tmp_path)[-1] == (name, name)
    assert rated_of(tmp_path) == [("r1", "r1"), ("r2", "r2")]


def test_several_replicas_share_a_file(tmp_path: Path) -> None:
    both = [keeper(tmp_path, most_ratings=3) for _ in range(2)]
    for i in range(12):
        both[i % 2].remember("t", f"r{i}", GIVEN)
        both[i % 2].rate("t", Feedback(f"r{i}", Rating.GOOD))
    assert [one.request_id for one in both[0].ratings("t")] == ["r9", "r10", "r11"]


def test_where_nothing_is_kept_the_setting_is_named() -> None:
    kept = FeedbackKeeper(FeedbackConfig())
    kept.remember("t", "r1", GIVEN)
    assert len(kept) == 0
    with pytest.raises(FailedPrecondition, match=r"name a directory in gateway\.feedback\.directory"):
        kept.rate("t", Feedback("r1", Rating.GOOD))


async def test_an_answer_can_be_rated_once_it_is_whole(tmp_path: Path) -> None:
    kept = keeper(tmp_path)
    pipeline = Pipeline(
        FakeRetriever({"Who?": list(HITS), "When?": list(HITS)}),
        FakeGenerator({"Who?": "Orla Venn", "When?": "in 1874"}),
        GatewayConfig(),
        Prefetching(None),
        kept,
    )
    ctx = RequestContext.create("r1", "t")
    async with aclosing(pipeline.answer(ctx, Inquiry("handbook", ("Who?", "When?")))) as events:
        async for _ in events:
            assert len(kept) == 0 or _ is not None
    rated = await asyncio.to_thread(kept.rate, "t", Feedback("r1", Rating.GOOD, question=1))
    assert (rated.asked, rated.answer, rated.collection) == ("When?", "in 1874", "handbook")
    assert set(rated.chunk_ids) == {"a", "b"}


async def test_a_refusal_can_be_rated_too(tmp_path: Path) -> None:
    kept = keeper(tmp_path)
    pipeline = Pipeline(
        FakeRetriever({"Who?": []}), FakeGenerator({}), GatewayConfig(), Prefetching(None), kept
    )
    inquiry = Inquiry("handbook", ("Who?",), refusal=Refusal.STRICT)
    async with aclosing(pipeline.answer(RequestContext.create("r1", "t"), inquiry)) as events:
        _ = [event async for event in events]
    rated = kept.rate("t", Feedback("r1", Rating.GOOD))
    assert (rated.answer, rated.reuse) == ("The documents do not say.", "")
    assert json.loads(next(questions_of([rated])))["unanswerable"] is True


def test_both_travel_as_they_are(tmp_path: Path) -> None:
    for feedback in (Feedback("r1", Rating.BAD, "no", 3), Feedback("r1", comment="hm")):
        assert FEEDBACK.of(FEEDBACK.to_pb(feedback)) == feedback
    assert FEEDBACK.of(rag_pb2.FeedbackRequest(request_id="r1", rating=99)).rating is Rating.NONE  # type: ignore[arg-type]
    kept = keeper(tmp_path)
    kept.remember("t", "r1", GIVEN)
    rated = kept.rate("t", Feedback("r1", Rating.GOOD))
    assert RATED.of(RATED.to_pb(rated)) == rated


def test_what_was_rated_becomes_a_file_of_questions_for_the_gate(tmp_path: Path) -> None:
    kept = keeper(tmp_path)
    for number, rating in enumerate(Rating):
        kept.remember("t", f"r{number}", GIVEN)
        kept.rate("t", Feedback(f"r{number}", rating, "a comment"))
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(f"{line}\n" for line in questions_of(kept.ratings("t"))), encoding="utf-8")
    assert read_questions(path) == [
        OwnQuestion("Who?"),
        OwnQuestion("Who?", evidence=("Orla Venn",)),
        OwnQuestion("Who?"),
    ]
    beside = [json.loads(line)["feedback"] for line in path.read_text().splitlines()]
    assert [one["rating"] for one in beside] == ["none", "good", "bad"]
    assert beside[0]["reuse"] == "epic"
    assert beside[0]["chunk_ids"] == ["a", "b"]
