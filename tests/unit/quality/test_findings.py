"""Statistics against slow twins, findings, verdicts, and what is kept of answers."""

from __future__ import annotations

import itertools
import random
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cluster.gate.decision import decide, scores
from cluster.gate.findings import evidence, findings
from cluster.gate.ledger import GradedAnswer, Ledger
from cluster.gate.modes import (
    CONTROLS,
    REORDERED,
    Arm,
    ClipSetting,
    Comparison,
    parse_clips,
    parse_controls,
    parse_ratios,
)
from cluster.gate.tasks import (
    TaskKind,
    parse_kinds,
)
from shared.errors import InvalidRequest
from shared.generation.modes import ReuseMode
from shared.generation.selection import Grouping, Reading
from shared.kv_types import KvContext
from shared.measuring.judge import Score, judge
from shared.measuring.paired import Clusters, agreement, mcnemar, won_back


@pytest.mark.parametrize(("first", "second"), [(0, 0), (1, 9), (9, 1), (5, 5), (3, 8)])
def test_the_paired_test_counts_the_ways_in_which_coins_fall_as_unevenly(first: int, second: int) -> None:
    falls = list(itertools.product((0, 1), repeat=first + second))
    uneven = sum(abs(2 * sum(fall) - len(fall)) >= abs(first - second) for fall in falls)
    assert mcnemar(first, second) == pytest.approx(uneven / len(falls))


def test_an_interval_holds_its_value_and_is_wider_where_questions_of_a_context_agree() -> None:
    rng = np.random.default_rng(0)
    context_Q = np.repeat(np.arange(50), 8)
    alone_Q, together_Q = rng.random(400) < 0.5, np.repeat(rng.random(50) < 0.5, 8)
    clusters = Clusters(context_Q)
    alone, together = (clusters.interval(lambda ours: ours, values_Q) for values_Q in (alone_Q, together_Q))
    for interval, values_Q in ((alone, alone_Q), (together, together_Q)):
        assert interval.value == pytest.approx(values_Q.mean())
        assert interval.low < interval.value < interval.high
    assert together.high - together.low > 1.5 * (alone.high - alone.low)


def test_what_answers_alike_differs_by_nothing_for_certain() -> None:
    right_Q = np.array([True, False, True, True])
    interval = Clusters(np.array([0, 0, 1, 1])).interval(lambda ours, other: ours - other, right_Q, right_Q)
    assert (interval.value, interval.low, interval.high) == (0, 0, 0)


def test_won_back_is_nothing_for_the_least_and_all_for_the_most() -> None:
    shares = won_back(np.array([0.5, 0.8, 0.65]), np.array(0.5), np.array(0.8))
    assert shares == pytest.approx([0, 1, 0.5])


def test_a_judgement_agrees_fully_with_itself_whatever_its_scale() -> None:
    scores = np.array([0.1, 0.5, 0.2, 0.0, 0.7], dtype=np.float32)
    assert agreement(scores, 3 * scores, 0.4) == pytest.approx((0, 1), abs=1e-6)


def test_divergence_and_overlap_of_judgements_are_those_of_the_books() -> None:
    p, q = np.array([0.5, 0.25, 0.25], dtype=np.float32), np.array([0.25, 0.5, 0.25], dtype=np.float32)
    divergence, overlap = agreement(p, q, 1 / 3)
    assert divergence == pytest.approx(0.5 * np.log(2) + 0.25 * np.log(0.5), abs=1e-6)
    assert overlap == 0
    assert agreement(p, q, 2 / 3)[1] == 1


def answer(mode: str, context: int, question: int, correct: bool, kind: str = "spread") -> GradedAnswer:
    return GradedAnswer(kind, mode, context, question, correct, "", num_tokens=100, selected=20)


def test_findings_compare_only_questions_that_were_asked_in_all_modes() -> None:
    plan = Comparison(controls=(), ratios=(0.2,))
    modes = [arm.label for arm in plan.arms(TaskKind.SPREAD)]
    assert modes == ["closed_book", "whole_blocks", "full", "reordered_0", "cacheclip_20"]
    wrong = ("reordered_0", "closed_book")
    kept = [answer(mode, c, q, mode not in wrong) for mode in modes for c in range(4) for q in range(2)]
    (finding,) = findings([*kept, answer("full", 9, 0, False)], plan)
    assert (finding.num_questions, finding.num_contexts) == (8, 4)
    assert [row.correct.value for row in finding.rows] == [0, 1, 1, 0, 1]
    assert [(row.ahead, row.behind) for row in finding.rows] == [(0, 8), (0, 0), (0, 0), (0, 8), (0, 0)]
    assert {row.reference for row in finding.rows} == {"cacheclip_20"}
    assert finding.row(REORDERED).p == pytest.approx(2 / 2**8)
    assert finding.row(REORDERED).against_whole.value == -1
    assert finding.rows[-1].won_back.value == 1
    assert finding.counts


def test_a_kind_counts_where_whole_blocks_beat_closed_book_by_20_points() -> None:
    plan = Comparison(controls=(), clips=(), ratios=())
    right = {"closed_book": 3, "whole_blocks": 4, "full": 4, "reordered_0": 4}
    kept = [answer(mode, c, 0, c < num) for mode, num in right.items() for c in range(10)]
    assert [finding.counts for finding in findings(kept, plan)] == [False]
    kept = [replace(one, correct=True) if one.mode == "whole_blocks" else one for one in kept]
    assert [finding.counts for finding in findings(kept, plan)] == [True]


def test_what_is_tested_against_cacheclip_is_so_at_the_same_ratio() -> None:
    plan = Comparison()
    assert plan.reference(Arm(ReuseMode.EPIC, 0.4)).label == "cacheclip_40"
    assert plan.reference(REORDERED).label == "cacheclip_20"
    assert Comparison(clips=()).reference(Arm(ReuseMode.EPIC, 0.4)) == REORDERED
    five = [arm.label for arm in plan.arms(TaskKind.UNNAMED) if arm.ratio == 0.05]
    assert five == [f"{mode}_5" for mode in (*CONTROLS, "cacheclip")]
    assert not [arm for arm in plan.arms(TaskKind.SPREAD) if arm.ratio == 0.05]


def test_ratios_and_kinds_are_named_or_refused() -> None:
    assert parse_ratios("0.1, 0.2,0,0.2") == (0.1, 0.2)
    assert parse_ratios("") == ()
    for wrong in ("much", "1.5", "nan", "-0.1"):
        with pytest.raises(InvalidRequest, match=r"--ratios: .* 0 to 1"):
            parse_ratios(wrong)
    assert parse_kinds("single, unnamed") == (TaskKind.SINGLE, TaskKind.UNNAMED)
    with pytest.raises(InvalidRequest, match="--kinds: 'double' is not one of spread"):
        parse_kinds("double")


PLAN = Comparison(controls=(ReuseMode.EPIC,), ratios=(0.2,), as_served=True)


def kept_of(modes: dict[str, int]) -> list[GradedAnswer]:
    """Of 400 questions about as many contexts, of either kind, so many right; ``full`` answers all."""
    counts = {"closed_book": 0, "whole_blocks": 400, "full": 400, "reordered_0": 200} | modes
    return [
        answer(mode, c, 0, c < right, kind)
        for mode, right in counts.items()
        for c in range(400)
        for kind in ("spread", "single")
    ]


@pytest.mark.parametrize(
    ("modes", "mode"),
    [
        ({"reordered_0": 400, "epic_20": 0, "cacheclip_20": 400}, "reordered"),
        ({"epic_20": 398, "cacheclip_20": 399}, "cacheclip"),
        ({"epic_20": 399, "cacheclip_20": 380}, "epic"),
        ({"epic_20": 300, "cacheclip_20": 320}, "full"),
    ],
)
def test_the_verdict_is_the_mode_that_computes_least_and_surely_loses_no_more_than_it_may(
    modes: dict[str, int], mode: str
) -> None:
    kept = kept_of(modes)
    of_it = findings(kept, PLAN)
    order = [(False, c) for c in random.Random(0).sample(range(400), 400)]
    of_modes = scores(of_it, PLAN, decide(kept, PLAN, order, 0.02))
    verdict = judge(of_modes, 0.02, "m", "p", "exact", evidence=evidence(of_it))
    assert verdict.mode == mode
    assert verdict.ratio == (0.2 if mode in ("epic", "cacheclip") else None)
    assert (verdict.kv_context, verdict.recompute) == (KvContext.NONE, True)
    assert verdict.asked["single"].num_questions == 400
    assert verdict.asked["single"].right["full"] == (1, 1, 1)
    assert (verdict.tolerance, verdict.model, verdict.prefix, verdict.encoding) == (0.02, "m", "p", "exact")


def test_there_is_no_verdict_without_findings() -> None:
    with pytest.raises(InvalidRequest, match="no question has been asked"):
        judge([], 0.02, "m", "p", "exact")


def full_and_reordered(*kinds: tuple[float, float]) -> list[Score]:
    """Right answers of each, kind by kind, of 100."""
    return [
        Score(mode, right, (full - right) / 100, kind=str(i))
        for i, (full, reordered) in enumerate(kinds)
        for mode, right in (("full", full), ("reordered", reordered))
    ]


def recomputing(*gains: tuple[float, float], loss: float = 0.0) -> list[Score]:
    """``cacheclip`` at 20 %, by the interval of what it gains over ``reordered``, kind by kind."""
    return [Score("cacheclip", 90, loss, 0.2, low, high, kind=str(i)) for i, (low, high) in enumerate(gains)]


@pytest.mark.parametrize(
    ("gains", "mode", "recompute"),
    [
        (((-0.08, -0.02), (0.05, 0.15)), "full", False),  # destroys on one kind what it wins on the other
        (((-0.02, 0.02), (-0.01, 0.03)), "full", False),  # wins nothing for certain
        (((-0.01, 0.02), (0.05, 0.15)), "cacheclip", True),
    ],
)
def test_over_conditioned_kv_recomputing_must_win_somewhere_and_destroy_nowhere(
    gains: tuple[tuple[float, float], ...], mode: str, recompute: bool
) -> None:
    asked = [*full_and_reordered((95, 90), (95, 90)), *recomputing(*gains)]
    verdict = judge(asked, 0.01, "m", "p", "exact", KvContext.DOCUMENT)
    assert (verdict.mode, verdict.recompute, verdict.kv_context) == (mode, recompute, KvContext.DOCUMENT)
    assert judge(asked, 0.01, "m", "p", "exact").mode == "cacheclip"  # alone it is as it was


def test_over_conditioned_kv_full_must_earn_what_it_computes() -> None:
    """It is no upper mark there: it reads the retrieved chunks alone."""
    knows = full_and_reordered((46, 95), (95, 46), (40, 94))
    assert judge(knows, 0.01, "m", "p", "exact", KvContext.DOCUMENT).mode == "reordered"
    assert judge(knows, 0.01, "m", "p", "exact").mode == "full"
    knows_little = full_and_reordered((60, 62), (95, 46))
    assert judge(knows_little, 0.01, "m", "p", "exact", KvContext.HEADER).mode == "full"


# --- what is kept ------------------------------------------------------------------------------------------


def test_a_ledger_goes_on_where_a_killed_run_ended(tmp_path: Path) -> None:
    path, settings = tmp_path / "answers.jsonl", {"seed": 1, "chars": (1, 2)}
    Ledger(path, settings).add([answer("full", 0, 0, True), answer("full", 0, 1, False)])
    with path.open("a") as file:
        file.write('[{"mode": "full", "con')
    again = Ledger(path, settings)
    assert again.holds("spread", "full", 0)
    assert not again.holds("spread", "full", 1)
    assert not again.holds("single", "full", 0)
    again.add([answer("full", 1, 0, True)])
    assert Ledger(path, settings).answers == [
        answer("full", 0, 0, True),
        answer("full", 0, 1, False),
        answer("full", 1, 0, True),
    ]


def test_answers_of_other_settings_are_not_mixed_in(tmp_path: Path) -> None:
    Ledger(tmp_path / "answers.jsonl", {"seed": 1, "ratio": 0.2})
    with pytest.raises(InvalidRequest, match=re.escape("answers with ratio 0.2, not 0.1")):
        Ledger(tmp_path / "answers.jsonl", {"seed": 1, "ratio": 0.1})


def test_forms_and_controls_are_named_or_refused() -> None:
    assert parse_clips("budget/stitched, paper/each") == (
        ClipSetting(),
        ClipSetting(Grouping.PAPER, Reading.EACH),
    )
    assert [clip.label for clip in parse_clips("budget/stitched,paper/each")] == [
        "cacheclip",
        "cacheclip/paper/each",
    ]
    assert parse_clips("") == ()
    with pytest.raises(InvalidRequest, match="budget\\|paper\\|sliding/stitched\\|each"):
        parse_clips("best/stitched")
    with pytest.raises(InvalidRequest, match=f"'full' is not one of {', '.join(CONTROLS)}"):
        parse_controls("random,full")
    assert {"random", "epic", "cacheblend", "query_attention"} <= set(CONTROLS)
