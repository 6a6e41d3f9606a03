"""Decisions while answers come in: the bets, groups of questions, and when there is enough."""

from __future__ import annotations

import random

import numpy as np
import pytest

from cluster.gate.decision import GateOutcome, decide, group_of, shares_of
from cluster.gate.ledger import GradedAnswer
from cluster.gate.modes import REORDERED, Comparison
from shared.generation.modes import ReuseMode
from shared.measuring.sequential import log_threshold, worse_at_most, worse_by_less, worse_by_more

PLAN = Comparison(controls=(ReuseMode.EPIC,), clips=(), ratios=(0.2,))
ORDER = [(False, c) for c in range(600)]


def drawn(seed: int, lost: float, won: float, num: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.choice([-1.0, 0.0, 1.0], p=[lost, 1 - lost - won, won], size=num)


def test_what_is_worse_by_the_margin_is_seldom_taken_for_better_however_often_one_looks() -> None:
    """Of 400 sequences at the border of the hypothesis, each looked at 500 times."""
    taken = sum(
        bool((worse_by_less(drawn(seed, 0.045, 0.015, 500), 0.03) >= log_threshold(0.05)).any())
        for seed in range(400)
    )
    assert taken <= 0.05 * 400 + 3 * (0.05 * 0.95 * 400) ** 0.5


@pytest.mark.parametrize("margin", [0.01, 0.03, 0.1, 1.0])
def test_answers_that_never_differ_are_soon_enough(margin: float) -> None:
    wealth = worse_by_less(np.zeros(1000), margin)
    assert wealth[-1] > log_threshold(0.05)
    assert np.all(np.diff(wealth) >= 0)
    assert worse_at_most(np.zeros(1000), 0.05) < 0.01


def test_a_bet_is_laid_by_what_was_seen_before() -> None:
    """So the future changes nothing of the wealth until then."""
    seen = drawn(1, 0.05, 0.05, 50)
    for future in (np.ones(10), -np.ones(10)):
        assert np.array_equal(
            worse_by_less(np.concatenate([seen, future]), 0.03)[:50], worse_by_less(seen, 0.03)
        )


def test_what_loses_much_is_known_to_be_worse() -> None:
    lost = drawn(2, 0.2, 0.0, 300)
    assert worse_by_more(lost, 0.03)[-1] > log_threshold(0.01)
    assert worse_by_less(lost, 0.03)[-1] < 0
    assert worse_at_most(lost, 0.05) > 0.15
    assert worse_at_most(np.zeros(0), 0.05) == 1


def answer(mode: str, context: int, correct: bool, kind: str = "spread", question: int = 0) -> GradedAnswer:
    return GradedAnswer(kind, mode, context, question, correct, "", num_tokens=100, selected=0)


def kept(wrong: dict[str, float], kinds: tuple[str, ...] = ("spread",), num: int = 600) -> list[GradedAnswer]:
    """``wrong``: by way the share of questions that it answers wrongly, drawn anew for each."""
    rng = random.Random(0)
    shares = {
        "closed_book": 1.0,
        "whole_blocks": 0.0,
        "full": 0.0,
        "reordered_0": 0.0,
        "epic_20": 0.0,
    } | wrong
    return [
        answer(mode, c, rng.random() >= share, kind)
        for kind in kinds
        for c in range(num)
        for mode, share in shares.items()
    ]


def test_asking_ends_as_soon_as_what_computes_least_is_good_enough() -> None:
    answers = kept({"epic_20": 0.3})
    decision = decide(answers, PLAN, ORDER, 0.03, 0.05)
    assert decision.decided
    assert 100 < decision.num_contexts < 200
    assert decision.outcome("reordered_0") is GateOutcome.ACCEPTED
    (judged,) = decision.of("reordered_0")
    assert (judged.group, judged.difference) == ("within_documents", 0)
    assert 0.02 < judged.loss_at_most <= 0.03
    assert decide(answers, PLAN, ORDER[: decision.num_contexts - 1], 0.03, 0.05).decided is False
    rest = [a for a in answers if a.context < decision.num_contexts]
    assert decide(rest, PLAN, ORDER[: decision.num_contexts], 0.03, 0.05) == decision


def test_it_goes_on_while_the_other_ways_are_open() -> None:
    decision = decide(kept({"reordered_0": 0.4}), PLAN, ORDER, 0.03, 0.05)
    assert decision.decided
    assert decision.outcome("reordered_0") is GateOutcome.WORSE
    assert decision.outcome("epic_20") is GateOutcome.ACCEPTED
    few = decide(kept({"reordered_0": 0.4}), PLAN, ORDER[:40], 0.03, 0.05)
    assert (few.decided, few.outcome("epic_20"), few.num_contexts) == (False, GateOutcome.OPEN, 40)


def test_a_way_must_be_good_enough_in_every_group_of_questions() -> None:
    answers = [*kept({}), *kept({"reordered_0": 0.5}, ("cross_document",))]
    decision = decide(answers, PLAN, ORDER, 0.03, 0.05)
    assert decision.outcome("reordered_0") is GateOutcome.WORSE
    by_group = {one.group: one.outcome for one in decision.of("reordered_0")}
    assert by_group == {"within_documents": GateOutcome.ACCEPTED, "cross_document": GateOutcome.WORSE}


def test_questions_of_a_context_are_one_comparison() -> None:
    """Twice the questions about as many contexts are no more evidence."""
    once = kept({})
    twice = [*once, *(answer(a.mode, a.context, a.correct, question=1) for a in once)]
    assert decide(twice, PLAN, ORDER).num_contexts == decide(once, PLAN, ORDER).num_contexts


def test_what_the_model_cannot_read_decides_nothing() -> None:
    decision = decide(kept({"whole_blocks": 0.9, "full": 0.9, "reordered_0": 0.9}), PLAN, ORDER)
    assert (decision.decided, decision.judged) == (False, ())


def test_kinds_are_grouped_by_what_their_answers_take() -> None:
    assert {group_of(kind) for kind in ("spread", "unnamed_many", "single")} == {"within_documents"}
    assert group_of("cross_document_many") == "cross_document"
    assert group_of("own") == "own"


def test_the_chance_of_error_is_shared_out() -> None:
    plan = Comparison(clips=(), ratios=(0.1, 0.2), others=(ReuseMode.APE,), as_served=True)
    shares = shares_of(plan, 0.05)
    assert shares.pop("full") == 0.05
    assert shares[REORDERED.label] == 0.025
    assert sum(shares.values()) == pytest.approx(0.05)
    assert len(shares) == 2 + 2 * len(plan.controls)
    alone = shares_of(Comparison(controls=(), clips=(), ratios=()), 0.05)
    assert alone[REORDERED.label] == 0.05
