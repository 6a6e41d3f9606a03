"""`kvquilt eval`: whole runs with the demo model, and wrong input."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from cluster.cli.main import main
from cluster.paths import DEMO_ASSETS, DEMO_MODEL
from shared.engine import load_model
from shared.engine.model.lora_files import write_adapter
from tests.lora_adapters import random_adapter

QUICK = ["--model", "demo", "--length", "400", "--cases", "2", "--max-tokens", "6", "--processes", "1"]


@pytest.fixture(autouse=True)
def _threads_stay() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def evaluated(*args: object) -> Result:
    return CliRunner().invoke(main, ["eval", *map(str, args)], catch_exceptions=False)


def answers_in(kept: Path) -> list[dict[str, Any]]:
    return [answer for line in kept.read_text().splitlines()[1:] for answer in json.loads(line)]


def test_a_run_asks_every_task_in_every_mode_and_a_second_one_asks_nothing(tmp_path: Path) -> None:
    kept, report = tmp_path / "answers.jsonl", tmp_path / "report.json"
    command = ["--suite", "ruler", *QUICK, "--tasks", "niah_single_1,vt", "--answers", kept, "--json", report]
    modes = "full,reordered,cacheclip,query_attention"
    first = evaluated(*command, "--modes", modes)
    assert first.exit_code == 0, first.output
    asked = kept.read_bytes()
    assert evaluated(*command, "--modes", modes).exit_code == 0
    assert kept.read_bytes() == asked
    answers = answers_in(kept)
    arms = ["closed book", "full"]
    arms += [
        f"{mode} {c}"
        for c in ("document", "none")
        for mode in ("reordered", "cacheclip 20%", "query_attention 20%")
    ]
    assert list(dict.fromkeys(answer["mode"] for answer in answers)) == arms
    assert len(answers) == 2 * 2 * len(arms)
    for answer in answers:
        of_it = answer["computed"] / answer["num_tokens"] if answer["num_tokens"] else 0.0
        if answer["mode"] == "full":
            assert (answer["kl"], of_it) == (0, 1)
        elif "20%" in answer["mode"]:
            assert of_it == pytest.approx(0.2, abs=0.05)
        else:
            assert of_it == 0
        assert answer["tflop"] > 0
    by_mode = {answer["mode"]: answer["tflop"] for answer in answers if answer["task"] == "vt"}
    assert by_mode["reordered none"] < by_mode["cacheclip 20% none"] < by_mode["full"]
    told = json.loads(report.read_text())
    assert {"kl_vt_reordered_none", "time_niah_single_1_full"} <= {m["name"] for m in told["measurements"]}
    assert told["details"]["settings"]["suite"] == "ruler"
    assert "only KL is reported" in first.output  # the demo model reads no needles

    other = evaluated(*command, "--modes", modes, "--seed", "1")
    assert other.exit_code == 2
    assert "holds answers with seed 0, not 1" in other.output


def test_the_eight_variants_are_asked_by_default(tmp_path: Path) -> None:
    kept = tmp_path / "answers.jsonl"
    args = ["--modes", "reordered", "--kv-context", "none", "--answers", kept]
    assert evaluated("--suite", "cacheclip", *QUICK, *args, "--cases", "1").exit_code == 0
    answers = answers_in(kept)
    assert len({answer["task"] for answer in answers}) == 8
    assert {answer["task"] for answer in answers if answer["cut_short"] is None} == {
        "niah_single_3", "niah_multikey_3"
    }  # fmt: skip


def test_scores_are_reported_where_the_model_reads_the_documents(tmp_path: Path) -> None:
    """Questions and documents of the demo, as a file of ctxs."""
    asked = json.loads((DEMO_ASSETS / "questions.json").read_text(encoding="utf-8"))
    asked = [one for one in asked if one["document"].endswith((".txt", ".md"))][:8]
    documents = [DEMO_ASSETS / "documents" / one["document"] for one in asked]
    texts = [path.read_text(encoding="utf-8") for path in documents]
    data = tmp_path / "demo.json"
    told = [
        {
            "question": one["question"],
            "answers": [one["answer"]],
            "ctxs": [
                {"title": "", "text": text, "isgold": i == 0}
                for i, text in enumerate((texts[n], texts[n - 1]))
            ],
        }
        for n, one in enumerate(asked)
    ]
    data.write_text(json.dumps(told), encoding="utf-8")
    report, page = tmp_path / "report.json", tmp_path / "page.html"
    command = ["--suite", "ctxs", "--data", data, "--model", "demo", "--processes", "1", "--max-tokens", "24"]
    command += ["--modes", "reordered,random", "--ratios", "0.1,0.4", "--json", report, "--html", page]
    result = evaluated(*command)
    assert result.exit_code == 0, result.output
    assert "only KL" not in result.output
    measured = {m["name"]: m for m in json.loads(report.read_text())["measurements"]}
    assert measured["demo_full"]["value"] >= 0.5
    assert measured["demo_closed_book"]["value"] <= 0.2
    assert measured["demo_reordered_document"]["n"] == 8
    assert {"p_demo_random_10_none", "against_full_demo_random_40_document"} <= set(measured)
    assert 0 < measured["attention_inter_chunk"]["value"] < 1
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_retrieved_chunks_and_adapters_are_asked_besides(tmp_path: Path) -> None:
    data, kept, report = tmp_path / "demo.json", tmp_path / "answers.jsonl", tmp_path / "report.json"
    ctxs = [
        {"title": "", "text": "\n\n".join(f"The {name} stands at place {i} of the river." for i in range(40))}
        for name in ("mill", "lighthouse")
    ]
    asked = {"question": "Where stands the mill?", "answers": ["of the river"], "ctxs": ctxs}
    data.write_text(json.dumps([asked]), encoding="utf-8")
    write_adapter(random_adapter(load_model(str(DEMO_MODEL), pack=False).hf_model), tmp_path / "tuned")
    command = ["--suite", "ctxs", "--data", data, *QUICK, "--length", "2000", "--kv-context", "document"]
    command += ["--retrieve", "2"]
    result = evaluated(*command, "--adapter", tmp_path / "tuned", "--answers", kept, "--json", report)
    assert result.exit_code == 0, result.output
    answers = {answer["mode"]: answer for answer in answers_in(kept)}
    assert list(answers) == [
        "closed book",
        "full",
        "full retrieved",
        "reordered document",
        "reordered document +tuned",
        "cacheclip 20% document",
        "cacheclip 20% document +tuned",
    ]
    assert answers["reordered document"]["num_tokens"] == answers["full retrieved"]["num_tokens"]
    assert answers["full"]["num_tokens"] > answers["full retrieved"]["num_tokens"]
    assert answers["reordered document"]["kl"] != answers["reordered document +tuned"]["kl"]
    settings = json.loads(report.read_text())["details"]["settings"]
    assert settings["retrieve"] == 2
    assert set(settings["adapters"]) == {"tuned"}


def test_questions_without_documents_are_asked_once(tmp_path: Path) -> None:
    data = tmp_path / "test.jsonl"
    data.write_text('{"question": "1+1?", "answer": "#### 2"}\n' * 2, encoding="utf-8")
    kept = tmp_path / "answers.jsonl"
    result = evaluated(
        "--suite", "gsm8k", "--data", data, "--model", "demo", "--max-tokens", "4", "--answers", kept
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert [answer["mode"] for answer in answers_in(kept)] == ["full", "full"]
    assert "score" in result.output


def test_a_line_of_another_format_is_told(tmp_path: Path) -> None:
    data = tmp_path / "en.json"
    data.write_text(
        '{"id": 0, "query": "?", "answer": "x", "positive": ["x"]}\n{"id": 1}\n', encoding="utf-8"
    )
    result = evaluated("--suite", "rgb", "--data", data, "--model", "demo")
    assert result.exit_code == 2
    assert f"--data: {data}, line 2: positive: is missing; RGB holds id, query, answer" in result.output


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--suite", "rular"], "--suite: 'rular' is not one of ruler, cacheclip"),
        (["--suite", "rgb"], "--data: rgb is asked from a file that you bring; name it"),
        (["--suite", "rgb", "--data", "none.json"], "--data: there is no file none.json"),
        (["--suite", "ruler", "--data", "x.json"], "--data: ruler is made on the spot; leave it out"),
        (["--suite", "ruler", "--metric", "bleu"], "--metric: 'bleu' is not one of coverage"),
        (["--suite", "ruler", "--tasks", "niah"], "--tasks: 'niah' is not one of niah_single_1"),
        (["--suite", "cacheclip", "--tasks", "vt"], "--tasks: 'vt' is not one of niah_single_1"),
        (["--suite", "ruler", "--modes", "fast"], "--modes: 'fast' is not one of reordered"),
        (["--suite", "ruler", "--ratios", "2"], "--ratios: '2' is not a share of the tokens"),
        (["--suite", "ruler", "--kv-context", "title"], "--kv-context: 'title' is not one of document"),
        (["--suite", "ruler", "--length", "4096"], "--length: 4096 tokens exceed the model's 2048 positions"),
        (["--suite", "ruler", "--length", "100"], "--length: 100 tokens leave no room for needles"),
        (["--suite", "ruler", "--adapter", "legal"], "--adapter: 'legal' is none of generator.engine.adapte"),
        (["--suite", "ruler", "--device", "tpu"], "device: 'tpu' is not one of cpu, cuda"),
    ],
)
def test_wrong_input_is_named(args: list[str], says: str) -> None:
    result = evaluated(*args, "--model", "demo")
    assert result.exit_code == 2
    assert says in result.output


def test_cacheclip_needs_an_auxiliary_model(tmp_path: Path) -> None:
    config = tmp_path / "quilt.yaml"
    config.write_text("model: demo\nselector: {model: ''}\n", encoding="utf-8")
    result = evaluated("--suite", "ruler", "--config", config, "--modes", "full,cacheclip")
    assert result.exit_code == 2
    assert "--modes: cacheclip needs an auxiliary model" in result.output
    assert "selector.model" in result.output
    kept = tmp_path / "answers.jsonl"
    by_default = ["--length", "400", "--cases", "1", "--tasks", "vt", "--max-tokens", "2", "--answers", kept]
    assert evaluated("--suite", "ruler", "--config", config, *by_default).exit_code == 0
    assert {answer["mode"] for answer in answers_in(kept)} == {
        "closed book",
        "full",
        "reordered document",
        "reordered none",
    }
