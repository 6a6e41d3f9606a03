"""Whether a verdict holds on questions that it was not made of."""

from __future__ import annotations

import pytest

from cluster.gate.evaluated import Evaluated
from cluster.gate.held import held, plan_for, unseen
from cluster.gate.ledger import GradedAnswer
from cluster.gate.modes import OTHERS, Comparison
from cluster.gate.questions import OwnQuestion
from cluster.gate.retrieved import OwnSubject, RetrievedQuestions
from shared.generation.modes import ReuseMode
from shared.kv_types import KvContext
from shared.verdict import MadeWith, Verdict

WITHIN, ACROSS = "within_documents", "cross_document"
VERDICT = Verdict(
    ReuseMode.REORDERED, 0.03, "m", "p", "exact", loss_at_most={WITHIN: 0.02, ACROSS: 0.5}, num_contexts=2
)
PLAN = Comparison(ratios=(0.1, 0.2), others=OTHERS, as_served=True)
NUM_CONTEXTS, ABOUT_ONE = 50, 2


def evaluated(plan: Comparison, wrong: dict[tuple[str, str], int]) -> Evaluated:
    """Two questions about each of 50 contexts, of two kinds; ``wrong``: by kind and mode so many contexts in
    which both are answered wrongly. Nothing is known without a context."""
    answers = [
        GradedAnswer(kind, arm.label, c, q, c >= wrong.get((kind, arm.label), 0), "", 100, 0)
        for kind in ("spread", "single_many", ACROSS, "own_unjudged")
        for arm in plan.arms(kind)
        for c in range(NUM_CONTEXTS)
        for q in range(ABOUT_ONE)
    ]
    answers = [a for a in answers if a.mode != "closed_book"] + [
        GradedAnswer(kind, "closed_book", c, q, False, "", 100, 0)
        for kind in ("spread", "single_many", ACROSS, "own_unjudged")
        for c in range(NUM_CONTEXTS)
        for q in range(ABOUT_ONE)
    ]
    order = [(many, c) for many in (False, True) for c in range(NUM_CONTEXTS)]
    served = MadeWith("m", "p", "exact", KvContext.DOCUMENT)
    return Evaluated(answers, order, plan, served, {})


@pytest.mark.parametrize(("lost", "holds"), [(0, True), (4, False), (10, False)])
def test_it_holds_where_nothing_worse_than_its_margin_is_likely(lost: int, holds: bool) -> None:
    """Kinds that are answered alike count together, contexts of many documents as contexts of their own."""
    plan = plan_for(VERDICT, PLAN)
    found = {one.group: one for one in held(evaluated(plan, {("spread", "reordered_0"): lost}), VERDICT)}
    within = found[WITHIN]
    assert (within.num_contexts, within.num_questions) == (2 * NUM_CONTEXTS, 2 * ABOUT_ONE * NUM_CONTEXTS)
    assert within.difference.value == pytest.approx(-lost / (2 * NUM_CONTEXTS))
    assert (within.holds, within.margin) == (holds, 0.03)


def test_where_the_verdict_says_that_the_mode_loses_there_is_nothing_to_hold() -> None:
    plan = plan_for(VERDICT, PLAN)
    lost = {(ACROSS, "reordered_0"): 40}
    (across,) = [one for one in held(evaluated(plan, lost), VERDICT) if one.group == ACROSS]
    assert (across.margin, across.holds) == (None, True)
    assert across.difference.value == pytest.approx(-0.8)


def test_what_nobody_judges_and_what_the_model_does_not_read_says_nothing() -> None:
    plan = plan_for(VERDICT, PLAN)
    unread = {("spread", arm.label): NUM_CONTEXTS for arm in plan.arms("spread")}
    groups = {one.group: one.num_contexts for one in held(evaluated(plan, unread), VERDICT)}
    assert groups == {WITHIN: NUM_CONTEXTS, ACROSS: NUM_CONTEXTS}


@pytest.mark.parametrize(
    ("mode", "ratio", "labels"),
    [
        (ReuseMode.REORDERED, None, set()),
        (ReuseMode.FULL, None, set()),
        (ReuseMode.APE, None, {"ape"}),
        (ReuseMode.EPIC, 0.1, {"epic_10"}),
        (ReuseMode.CACHECLIP, 0.2, {"cacheclip_20"}),
    ],
)
def test_of_all_modes_only_its_own_is_asked(mode: ReuseMode, ratio: float | None, labels: set[str]) -> None:
    verdict = Verdict(mode, 0.03, "m", "p", "exact", ratio)
    plan = plan_for(verdict, PLAN)
    marks = {"closed_book", "whole_blocks", "full", "reordered_0"}
    assert {arm.label for arm in plan.arms("")} == marks | labels
    assert held(evaluated(plan, {}), verdict)


def test_own_questions_are_those_behind_what_the_verdict_took() -> None:
    subjects = tuple(OwnSubject(n, OwnQuestion(f"{n}?"), (("d", 0),), ("text",)) for n in (3, 1, 0, 4, 2))
    retrieved = RetrievedQuestions(subjects, {})
    assert [one.number for one in unseen(retrieved, VERDICT, 2).subjects] == [0, 4]
    assert [one.number for one in unseen(retrieved, VERDICT, 99).subjects] == [0, 4, 2]
    assert unseen(RetrievedQuestions(subjects[:2], {}), VERDICT, 9).subjects == ()
