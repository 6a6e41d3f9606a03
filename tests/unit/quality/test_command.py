"""A whole run with tiny models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cluster.gate.ledger import GradedAnswer
from cluster.gate.modes import (
    ClipSetting,
    Comparison,
)
from cluster.gate.tasks import (
    TaskKind,
    tasks_of,
)
from cluster.gate.trials import draw_trials
from load_tests.quality.__main__ import main
from shared.generation.selection import Grouping, Reading
from shared.kv_types import KvContext
from shared.verdicts import read_verdicts
from tests.unit.quality.worlds import SHAPES


def test_a_run_asks_every_question_in_every_mode_and_a_second_one_asks_nothing(
    tmp_path: Path, models: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    kept, report = tmp_path / "answers.jsonl", tmp_path / "report.json"
    command = [*models, "--questions", "3", "--many", "0", "--processes", "1", "--ratios", "0.2"]
    command += ["--likeness"]
    command += ["--answers", str(kept), "--json", str(report), "--kinds", "spread,unnamed,single"]
    command += ["--cacheclip", "budget/stitched,paper/each"]
    assert main(command) == 0
    assert "spread: Evidence in two chunks, shuffled" in capsys.readouterr().out
    of_first_run = kept.read_bytes()
    assert main(command) == 0
    assert kept.read_bytes() == of_first_run

    given = [
        GradedAnswer(**one) for line in of_first_run.decode().splitlines()[1:] for one in json.loads(line)
    ]
    plan = Comparison(clips=(ClipSetting(), ClipSetting(Grouping.PAPER, Reading.EACH)), ratios=(0.2,))
    trials = list(draw_trials(0, 3, SHAPES))
    for kind in (TaskKind.SPREAD, TaskKind.UNNAMED, TaskKind.SINGLE):
        asked = {(t.number, i) for t in trials for task in tasks_of(0, t, [kind]) for i in task.questions}
        by_mode = {
            mode: {(a.context, a.question): a for a in given if (a.kind, a.mode) == (kind, mode)}
            for mode in dict.fromkeys(a.mode for a in given if a.kind == kind)
        }
        assert set(by_mode) == {arm.label for arm in plan.arms(kind)}
        assert all(set(of_mode) == asked for of_mode in by_mode.values())
        for key in asked:
            taken = {mode: of_mode[key].selected for mode, of_mode in by_mode.items()}
            assert taken["full"] == by_mode["full"][key].num_tokens
            assert taken["reordered_0"] == 0
            assert 0.2 <= taken["cacheclip_20"] / taken["full"] < 0.35
            assert {taken[f"{mode}_20"] for mode in ("random", "epic", "query_attention")} == {
                taken["cacheclip_20"]
            }
            judged = set(by_mode["query_attention_20"][key].agreement)
            assert judged == (set() if kind is TaskKind.UNNAMED else {"stitched", "each", "first_layer"})
    assert main([*command, "--verdict", str(tmp_path / "verdict.json")]) == 2
    assert "no kind of question counts" in capsys.readouterr().err
    measured = {m["name"]: m for m in json.loads(report.read_text())["measurements"]}
    assert {
        "spread_cacheclip_20",
        "spread_reordered_0",
        "spread_whole_blocks",
        "unnamed_epic_5",
        "won_back_single_epic_20",
        "p_spread_random_20",
        "kl_stitched",
        "kl_first_layer",
    } <= set(measured)
    stitched = measured["kl_stitched"]
    assert stitched["ratio"] == pytest.approx(stitched["baseline"] / stitched["value"])


def test_without_an_auxiliary_model_the_controls_go_by_the_ratio(tmp_path: Path, models: list[str]) -> None:
    report = tmp_path / "report.json"
    command = [*models[:2], "--auxiliary", "", "--questions", "1", "--many", "1", "--kinds", "spread"]
    command += ["--controls", "epic", "--ratios", "0.4", "--documents", "5", "5", "--kv-context", "none"]
    command += ["--passage-tokens", "0", "--processes", "1"]
    assert main([*command, "--json", str(report)]) == 0
    measured = {m["name"]: m["value"] for m in json.loads(report.read_text())["measurements"]}
    assert measured["selected_spread_epic_40"] == pytest.approx(0.4, abs=0.01)
    assert "spread_many_reordered_0" in measured


def test_modes_that_recompute_nothing_are_asked_beside_reordered(
    tmp_path: Path, models: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    command = [*models, "--questions", "1", "--many", "0", "--kinds", "spread", "--ratios", ""]
    command += ["--processes", "1"]
    assert main([*command, "--others", "composite", "--json", str(report)]) == 0
    measured = {m["name"]: m["value"] for m in json.loads(report.read_text())["measurements"]}
    assert {"spread_composite", "spread_reordered_0"} <= set(measured)
    assert main([*command, "--others", "epic"]) == 2
    assert "--others: 'epic' is not one of" in capsys.readouterr().err


def test_packets_stand_around_isolated_chunks_alone(
    tmp_path: Path, models: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    command = [*models, "--questions", "1", "--packets", str(tmp_path), "--ratios", "", "--cacheclip", ""]
    assert main([*command, "--kv-context", "document"]) == 2
    assert "--packets: are for isolated chunks; say --kv-context none" in capsys.readouterr().err


def test_a_model_without_a_tokenizer_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    assert main(["--model", str(tmp_path), "--auxiliary", str(tmp_path)]) == 2
    assert "has no tokenizer" in capsys.readouterr().err


def test_the_verdict_of_a_run_says_what_it_was_made_of(
    tmp_path: Path, models: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Random weights answer nothing, so here answers are made up."""
    kept, path = tmp_path / "answers.jsonl", tmp_path / "verdict.json"
    command = [*models, "--questions", "30", "--many", "0", "--processes", "1", "--ratios", ""]
    command += ["--answers", str(kept), "--kinds", "spread,single", "--verdict", str(path)]
    command += ["--tolerance", "1"]
    assert main(command) == 2
    head, *lines = kept.read_text(encoding="utf-8").splitlines()
    right = [
        json.dumps([one | {"correct": one["mode"] != "closed_book"} for one in json.loads(line)])
        for line in lines
    ]
    kept.write_text("\n".join([head, *right, ""]), encoding="utf-8")
    assert main(command) == 0
    assert "verdict: reordered; recomputing is advised against" in capsys.readouterr().out
    (verdict,) = read_verdicts(path)
    assert (verdict.mode, verdict.kv_context, verdict.recompute) == ("reordered", KvContext.DOCUMENT, False)
    assert verdict.asked["spread"].right["whole_blocks"] == (1, 1, 1)
    assert set(verdict.asked["spread"].kl) == {"closed_book", "whole_blocks", "full", "reordered_0"}
    assert verdict.asked["spread"].kl["whole_blocks"] == 0
    assert (verdict.questions, verdict.tokenizer != "", verdict.auxiliary) == ("generated", True, "")
    assert main([*command, "--tolerance", "0.01"]) == 2
    assert "too few to tell: reordered may lose up to" in capsys.readouterr().err
