"""The quality evaluation: questions as they are said to be, statistics against slow twins, and a whole run
with tiny models."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from load_tests.quality.__main__ import main
from load_tests.quality.findings import Finding, findings, scores
from load_tests.quality.ledger import GradedAnswer, Ledger
from load_tests.quality.modes import CONTROLS, ClipSetting, parse_clips, parse_controls
from load_tests.quality.paired import Clusters, agreement, mcnemar, won_back
from load_tests.quality.trials import Shapes, draw_trial, draw_trials, is_spread
from services.training.evaluate import answers
from services.training.names import Split
from services.training.recipe import AUXILIARY, PRIMARY
from services.training.trainer import Trainer
from shared.errors import InvalidRequest
from shared.generation.selection import Grouping, Reading
from shared.measuring.judge import judge
from shared.verdict import Verdict

SHAPES = Shapes()
TINY = {
    "steps": 1,
    "tokenizer_documents": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "num_kv_heads": 2,
}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def flat(text: str) -> str:
    return " ".join(text.split()).lower()


# --- questions ---------------------------------------------------------------------------------------------


def test_only_the_first_passage_of_a_document_names_it() -> None:
    for number in range(40):
        passages = draw_trial(0, number, SHAPES).context.passages
        assert len({passage.document.name for passage in passages}) >= 2
        assert len({passage.document.kind for passage in passages}) == 1
        for _, group in itertools.groupby(passages, key=lambda passage: passage.document.name):
            first, *later = group
            assert flat(first.document.name) in flat(first.text)
            assert later
            assert not any(flat(first.document.name) in flat(passage.text) for passage in later)


def test_spread_evidence_is_the_naming_passage_and_a_later_one_that_states_the_answer() -> None:
    seen = 0
    for number in range(40):
        trial = draw_trial(0, number, SHAPES)
        for question in filter(is_spread, trial.questions):
            naming, stating = (trial.context.passages[i] for i in question.evidence)
            assert naming.document is stating.document
            assert flat(naming.document.name) in flat(question.text)
            assert flat(naming.document.name) in flat(naming.text)
            assert answers(" ".join(stating.text.split()), question.value)
            assert not stating.names_subject
            seen += 1
    assert seen >= 80


def test_another_document_answers_every_spread_question_otherwise_in_a_passage_that_does_not_name_it_either() -> (  # noqa: E501
    None
):
    for number in range(40):
        trial = draw_trial(0, number, SHAPES)
        for question in filter(is_spread, trial.questions):
            document = trial.context.passages[question.evidence[1]].document
            (key,) = [k for k, fact in document.facts.items() if fact.answer == question.answer]
            others = [
                p
                for p in trial.context.passages
                if p.document is not document and key in p.fact_keys and not p.names_subject
            ]
            assert others
            assert all(p.document.facts[key].value != question.value for p in others)


def test_single_chunk_questions_are_answered_by_the_one_passage_that_names_its_subject() -> None:
    for number in range(40):
        trial = draw_trial(0, number, SHAPES)
        for question in trial.questions:
            if not is_spread(question):
                (stating,) = question.evidence
                assert trial.context.passages[stating].names_subject
                assert answers(" ".join(trial.texts[stating].split()), question.value)


def test_trials_depend_on_seed_and_number_only_and_are_about_unseen_names() -> None:
    assert draw_trial(0, 3, SHAPES).context == draw_trial(0, 3, SHAPES).context
    assert draw_trial(0, 3, SHAPES).texts != draw_trial(1, 3, SHAPES).texts
    for passage in draw_trial(0, 3, SHAPES).context.passages:
        name = passage.document.name
        assert Split.HELD_OUT.holds(
            name if passage.document.kind == "ship" else name.removeprefix("the ").split()[0]
        )


def test_trials_are_drawn_until_enough_questions_are_spread() -> None:
    trials = list(draw_trials(0, 30, SHAPES))
    spread = [sum(map(is_spread, trial.questions)) for trial in trials]
    assert sum(spread) >= 30 > sum(spread[:-1])


# --- statistics --------------------------------------------------------------------------------------------


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


def answer(mode: str, context: int, question: int, correct: bool, spread: bool = True) -> GradedAnswer:
    return GradedAnswer(mode, context, question, spread, correct, "", num_tokens=100, selected=20)


def test_findings_compare_only_questions_that_were_asked_in_all_modes() -> None:
    modes = ("full", "reordered", "cacheclip")
    kept = [answer(mode, c, q, mode != "reordered") for mode in modes for c in range(4) for q in range(2)]
    (finding,) = findings([*kept, answer("full", 9, 0, False)], modes)
    assert (finding.num_questions, finding.num_contexts) == (8, 4)
    assert [row.correct.value for row in finding.rows] == [1, 0, 1]
    assert [(row.ahead, row.behind) for row in finding.rows] == [(0, 0), (0, 8), (0, 0)]
    assert finding.rows[1].p == pytest.approx(2 / 2**8)
    assert finding.rows[2].won_back.value == 1


def found(modes: dict[str, int]) -> list[Finding]:
    """Of 400 questions about as many contexts, of either kind, so many right; ``full`` answers all."""
    counts = {"full": 400, "reordered": 200} | modes
    kept = [
        answer(mode, c, 0, c < right, spread)
        for mode, right in counts.items()
        for c in range(400)
        for spread in (True, False)
    ]
    return findings(kept, tuple(counts))


@pytest.mark.parametrize(
    ("modes", "mode"),
    [
        ({"reordered": 400, "cacheclip": 400}, "reordered"),
        ({"epic": 398, "cacheclip": 399}, "cacheclip"),
        ({"epic": 399, "cacheclip": 380}, "epic"),
        ({"epic": 380, "cacheclip": 390}, "full"),
    ],
)
def test_the_verdict_is_the_mode_that_computes_least_and_surely_loses_no_more_than_it_may(
    modes: dict[str, int], mode: str
) -> None:
    verdict = judge(scores(found(modes)), 0.02, 0.2, "m", "p", "exact")
    assert verdict.mode == mode
    assert verdict.ratio == (0.2 if mode in modes and mode != "reordered" else None)
    assert (verdict.tolerance, verdict.model, verdict.prefix, verdict.encoding) == (0.02, "m", "p", "exact")


def test_there_is_no_verdict_without_findings() -> None:
    with pytest.raises(InvalidRequest, match="no question has been asked"):
        judge([], 0.02, 0.2, "m", "p", "exact")


# --- what is kept ------------------------------------------------------------------------------------------


def test_a_ledger_goes_on_where_a_killed_run_ended(tmp_path: Path) -> None:
    path, settings = tmp_path / "answers.jsonl", {"seed": 1, "chars": (1, 2)}
    Ledger(path, settings).add([answer("full", 0, 0, True), answer("full", 0, 1, False)])
    with path.open("a") as file:
        file.write('[{"mode": "full", "con')
    again = Ledger(path, settings)
    assert again.holds("full", 0)
    assert not again.holds("full", 1)
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
    with pytest.raises(InvalidRequest, match="budget\\|paper\\|sliding/stitched\\|each"):
        parse_clips("best/stitched")
    with pytest.raises(InvalidRequest, match=f"'full' is not one of {', '.join(CONTROLS)}"):
        parse_controls("random,full")
    assert {"random", "epic", "cacheblend", "query_attention"} <= set(CONTROLS)


# --- a whole run -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Random weights: options that name a primary and an auxiliary model."""
    directory = tmp_path_factory.mktemp("models")
    for name, recipe in (("model", PRIMARY), ("auxiliary", AUXILIARY)):
        Trainer(dataclasses.replace(recipe, vocab_size=500, num_layers=3, **TINY), directory / name).save()
    return ["--model", str(directory / "model"), "--auxiliary", str(directory / "auxiliary")]


def test_a_run_asks_every_question_in_every_mode_and_a_second_one_asks_nothing(
    tmp_path: Path, models: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    kept, report = tmp_path / "answers.jsonl", tmp_path / "report.json"
    command = [*models, "--questions", "6", "--answers", str(kept), "--json", str(report)]
    command += [
        "--cacheclip",
        "budget/stitched,paper/each",
        "--verdict",
        str(tmp_path / "verdict.json"),
        "--tolerance",
        "1",
    ]
    assert main(command) == 0
    assert "Evidence in two chunks" in capsys.readouterr().out
    of_first_run = kept.read_bytes()
    assert main(command) == 0
    assert kept.read_bytes() == of_first_run

    given = [
        GradedAnswer(**one) for line in of_first_run.decode().splitlines()[1:] for one in json.loads(line)
    ]
    by_mode = {
        mode: {(a.context, a.question): a for a in given if a.mode == mode}
        for mode in dict.fromkeys(a.mode for a in given)
    }
    assert list(by_mode) == [
        *(
            "full",
            "reordered",
            *CONTROLS,
            "cacheclip",
            "cacheclip/paper/each",
        )
    ]
    asked = {(t.number, i) for t in draw_trials(0, 6, SHAPES) for i in range(len(t.questions))}
    assert all(set(of_mode) == asked for of_mode in by_mode.values())
    for key in asked:
        taken = {mode: of_mode[key].selected for mode, of_mode in by_mode.items()}
        assert taken["full"] == by_mode["full"][key].num_tokens
        assert taken["reordered"] == 0
        assert 0.2 <= taken["cacheclip"] / taken["full"] < 0.35
        assert taken["random"] == taken["epic"] == taken["query_attention"] == taken["cacheclip"]
        assert set(by_mode["query_attention"][key].agreement) == {"stitched", "each", "first_layer"}
    assert Verdict.read(tmp_path / "verdict.json").mode == "reordered"
    names = {m["name"] for m in json.loads(report.read_text())["measurements"]}
    assert {
        "correct_spread_cacheclip",
        "won_back_single_epic",
        "p_cacheclip_and_spread_random",
        "kl_stitched",
        "kl_first_layer",
    } <= names
    (stitched,) = [m for m in json.loads(report.read_text())["measurements"] if m["name"] == "kl_stitched"]
    assert stitched["ratio"] == pytest.approx(stitched["baseline"] / stitched["value"])


def test_a_model_without_a_tokenizer_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--model", str(tmp_path), "--auxiliary", str(tmp_path)]) == 2
    assert "has no tokenizer" in capsys.readouterr().err
