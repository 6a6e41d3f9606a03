"""`kvquilt gate`: the verdict of a model, where it goes, and who shows it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from click.testing import CliRunner, Result

from cluster.cli.gate_command import verdict_file
from cluster.cli.main import main
from cluster.config import load_quilt
from cluster.models.listing import facts_of
from cluster.paths import DEMO_MODEL
from shared.engine import load_model
from shared.engine.model.lora import AdapterFacts
from shared.engine.model.lora_files import write_adapter
from shared.engine.model.packets import Packets, write_packets
from shared.errors import ConfigError
from shared.generation.modes import ReuseMode
from shared.identity import adapter_identity
from shared.kv_types import KvContext
from shared.packets import PacketFacts
from shared.verdict import FORM, VERDICT_FILE, Verdict
from shared.verdicts import keep_verdict, read_verdicts
from tests.lora_adapters import random_adapter

CERTAIN_SOON = ["--processes", "1", "--tolerance", "1", "--alpha", "0.5"]
QUICK = ["--questions", "12", "--modes", "reordered", *CERTAIN_SOON]
OTHER = Verdict(ReuseMode.EPIC, 0.01, "f" * 32, "0" * 32, "exact", 0.2)


@pytest.fixture(autouse=True)
def _threads_stay() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the demo model, which reads what is asked."""
    directory = tmp_path_factory.mktemp("models") / "reader"
    shutil.copytree(DEMO_MODEL, directory)
    return directory


@pytest.fixture
def gate(tmp_path: Path) -> Callable[..., Result]:
    def invoke(*args: object, **environ: str) -> Result:
        where = ["--data-dir", str(tmp_path / "data")]
        return CliRunner(env=environ).invoke(main, [*where, "gate", *map(str, args)], catch_exceptions=False)

    return invoke


Gate = Callable[..., Result]


def test_the_verdict_goes_beside_the_model_for_each_setting_of_kv_context(
    gate: Gate, model: Path, tmp_path: Path
) -> None:
    keep_verdict(model / VERDICT_FILE, OTHER)
    kept, report = tmp_path / "answers.jsonl", tmp_path / "report.json"
    first = gate("--model", model, *QUICK, "--answers", kept, "--json", report)
    assert first.exit_code == 0, first.output
    assert "generated questions; margin 100 points below full over the whole blocks" in first.output
    assert "verdict (kv_context document): reordered" in first.output
    told = {line.split()[0] for line in first.output.splitlines() if line.strip()}
    assert {"evidence", "spread", "unnamed", "cross_document", "single", "KL", "full"} <= told
    asked = kept.read_bytes()
    assert gate("--model", model, *QUICK, "--answers", kept).exit_code == 0
    assert kept.read_bytes() == asked
    several = ("--kv-context", "none", "--encoding", "int8,exact")
    others = gate("--model", model, *QUICK, *several, "--json", report)
    assert others.exit_code == 0, others.output
    advice = "ingestion.kv_context none, generator.kv_encoding int8, generator.adapter '': reordered"
    assert f"advised: {advice}" in others.output
    assert "that any of 2 is wrong has a chance of at most 1" in others.output
    assert not list((tmp_path / "data" / "gate").iterdir())  # what was kept has served its purpose
    verdicts = read_verdicts(model / VERDICT_FILE)
    made = [(v.kv_context, v.encoding) for v in verdicts]
    none = KvContext.NONE
    assert made == [(none, "exact"), (none, "int8"), (KvContext.DOCUMENT, "exact"), (none, "exact")]
    assert verdicts[3] == OTHER
    assert {(v.form, v.questions, v.alpha) for v in verdicts[:3]} == {(FORM, "generated", 0.5)}
    (exact, int8), reference = (v.asked["spread"].kl for v in verdicts[:2]), "whole_blocks"
    assert exact["full"] == int8["full"] > exact[reference] == 0
    assert exact["reordered_0"] != int8["reordered_0"]
    of_full = [a for a in answered(kept) if a["kind"] == "spread" and a["mode"] == "full"]
    tally, taken = verdicts[2].asked["spread"], {a["context"] for a in of_full}
    assert 0 < tally.num_questions <= len(of_full)
    assert 0 < tally.num_contexts <= verdicts[2].num_contexts
    assert tally.num_contexts <= len(taken)
    assert facts_of("x", model).verdict == "reordered (document), reordered (none)"
    details = json.loads(report.read_text())["details"]
    assert [(one["encoding"], one["verdict"]["mode"]) for one in details["servings"]] == [
        ("int8", "reordered"),
        ("exact", "reordered"),
    ]
    assert details["advised"] == {"kv_context": "none", "encoding": "int8", "adapter": "none"}
    of_one = json.loads((tmp_path / "report.none.int8.none.json").read_text())
    assert any("kl_to_whole_blocks_spread" in m["name"] for m in of_one["measurements"])
    assert of_one["details"]["verdict"]["asked"]["spread"]["kl"] == verdicts[1].asked["spread"].kl
    assert of_one["details"]["decision"]["num_contexts"] == verdicts[1].num_contexts


def answered(kept: Path) -> list[dict[str, Any]]:
    return [answer for line in kept.read_text().splitlines()[1:] for answer in json.loads(line)]


def test_it_is_judged_as_it_is_served(gate: Gate, model: Path, tmp_path: Path) -> None:
    config = tmp_path / "quilt.yaml"
    config.write_text(f"model: {model}\ngenerator: {{verdict: {tmp_path / 'v.json'}}}\n", encoding="utf-8")
    check = ("--check", "4", "--json", tmp_path / "report.json")
    result = gate("--config", config, *QUICK, *check, KVQUILT_INGESTION__KV_CONTEXT="header")
    assert result.exit_code == 0, result.output
    (verdict,) = read_verdicts(tmp_path / "v.json")
    assert verdict.kv_context is KvContext.HEADER
    assert "questions that it did not take" in result.output
    checked = json.loads((tmp_path / "report.json").read_text())["details"]["check"]
    assert {one["group"] for one in checked} >= {"within_documents", "cross_document"}
    assert all(one["num_questions"] >= 4 and one["holds"] for one in checked), "within 100 points"
    assert not list((tmp_path / "data" / "gate").iterdir())


def quilt(tmp_path: Path, model: Path, **settings: Any) -> Path:
    path = tmp_path / "quilt.yaml"
    path.write_text(yaml.safe_dump({"model": str(model), **settings}), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory, model: Path) -> dict[str, str]:
    """``legal`` fits the model, ``other`` was trained on another base."""
    loaded, root = load_model(str(model), pack=False), tmp_path_factory.mktemp("adapters")
    adapter = random_adapter(loaded.hf_model, strength=0.001, only=("q_proj",))
    for name, fingerprint in (("legal", loaded.fingerprint), ("other", "f" * 32)):
        write_adapter(replace(adapter, facts=AdapterFacts(fingerprint)), root / name)
    return {name: str(root / name) for name in ("legal", "other")}


def test_every_adapter_has_a_verdict_and_one_of_another_base_is_left_out_by_name(
    gate: Gate, model: Path, adapters: dict[str, str], tmp_path: Path
) -> None:
    report, path = tmp_path / "report.json", tmp_path / "v.json"
    settings = {"engine": {"adapters": adapters}, "adapter": "legal", "verdict": str(path)}
    config = quilt(tmp_path, model, generator=settings)
    result = gate("--config", config, *QUICK, "--adapter", "all", "--json", report)
    assert result.exit_code == 0, result.output
    reason = f"it was trained on a model with {'f' * 32}"
    assert "left out: kv_context document, encoding exact, adapter other: " in result.output
    assert reason in result.output
    made = {verdict.adapter for verdict in read_verdicts(path)}
    assert made == {"", adapter_identity(adapters["legal"])}
    details = json.loads(report.read_text())["details"]
    assert [one["adapter"] for one in details["servings"]] == ["none", "legal"]
    (left,) = details["left_out"]
    assert reason in left["why"]
    assert details["advised"]["adapter"] == "none"
    alone = gate("--config", config, *QUICK, "--adapter", "other")
    assert (alone.exit_code, reason in alone.output) == (1, True)


def test_beside_packets_what_is_not_served_is_left_out_by_name(
    gate: Gate, model: Path, tmp_path: Path
) -> None:
    """Random ones: they answer what they answer."""
    loaded, report = load_model(str(model)), tmp_path / "report.json"
    hidden_size = loaded.hf_model.get_input_embeddings().weight.shape[1]
    facts = PacketFacts(loaded.base_fingerprint, loaded.spec.vocab_size, 1, 1)
    write_packets(Packets(torch.zeros(2, hidden_size), facts), tmp_path / "packets")
    config = quilt(
        tmp_path,
        model,
        prompt={"packets": str(tmp_path / "packets")},
        selector={"model": ""},
        generator={"verdict": str(tmp_path / "v.json")},
    )
    few = ["--questions", "6", *CERTAIN_SOON, "--kv-context", "document,none", "--json", report]
    result = gate("--config", config, *few)
    assert result.exit_code == 0, result.output
    beside = "not served beside packets (prompt.packets)"
    assert f"left out: epic, random, query_attention, cacheblend, cacheclip: {beside}" in result.output
    assert f"left out: kv_context document, encoding exact, adapter none: kv_context document: {beside}" in (
        result.output
    )
    (verdict,) = read_verdicts(tmp_path / "v.json")
    assert (verdict.kv_context, verdict.mode) == (KvContext.NONE, ReuseMode.REORDERED)
    (left,) = json.loads(report.read_text())["details"]["left_out"]
    assert beside in left["why"]
    of_one = json.loads((tmp_path / "report.none.exact.none.json").read_text())["details"]
    assert {one["what"]: one["why"] for one in of_one["left_out"]} == dict.fromkeys(
        ("epic", "random", "query_attention", "cacheblend", "cacheclip"), beside
    )
    judged = {one["mode"] for one in of_one["decision"]["judged"]}
    assert judged == {"full", "reordered_0", "composite", "ape"}
    refused = gate("--config", config, *few[:-2], "--kv-context", "header")
    assert (refused.exit_code, "ingestion.kv_context: packets" in refused.output) == (2, True)


def test_where_there_is_no_verdict_the_report_says_why_and_others_are_judged(
    gate: Gate, model: Path, tmp_path: Path
) -> None:
    report, path = tmp_path / "report.json", tmp_path / "v.json"
    few = ["--questions", "2", "--modes", "reordered", "--processes", "1", "--verdict", path]
    result = gate("--model", model, *few, "--encoding", "exact,int4", "--json", report)
    assert (result.exit_code, path.exists()) == (2, False)
    why = "the questions are too few to tell: reordered may lose up to"
    for encoding in ("exact", "int4"):
        assert f"kv_context document, encoding {encoding}, adapter none: verdict: {why}" in result.output
        of_one = json.loads((tmp_path / f"report.document.{encoding}.none.json").read_text())["details"]
        assert (of_one["verdict"], why in of_one["no_verdict"]) == (None, True)
    assert json.loads(report.read_text())["details"]["advised"] is None
    assert len(list((tmp_path / "data" / "gate").iterdir())) == 2, "both go on by the same command"


def test_a_model_without_a_directory_needs_a_place_for_its_verdict(tmp_path: Path) -> None:
    values = {"model": "Qwen/Qwen3-0.6B", "data_dir": str(tmp_path)}
    with pytest.raises(
        ConfigError, match=r"Qwen/Qwen3-0\.6B has no directory here; name a file by --verdict"
    ):
        verdict_file(load_quilt(values, {}))
    named = load_quilt({**values, "generator": {"verdict": "v.json"}}, {})
    assert verdict_file(named) == Path("v.json")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--ratios", "2"], "--ratios: '2' is not a share of the tokens"),
        (["--kv-context", "title"], "'title' is not one of 'document', 'header', 'none'"),
        (["--tolerance", "7"], "7.0 is not in the range 0<=x<=1"),
        (["--model", "no/such.gguf"], "there is no file no/such.gguf"),
        (["--encoding", "int9"], "'int9' is not one of 'exact', 'int8', 'int4'"),
        (["--alpha", "0"], "0.0 is not in the range 0<x<1"),
        (["--questions", "0"], "0: must be at least 1, or name a file"),
        (["--questions", "mine.jsonl"], "there is no file mine.jsonl; write one question per line"),
        (["--modes", "best"], "--modes: 'best' is not one of reordered, composite, ape, epic"),
        (
            ["--adapter", "none,legal"],
            "--adapter: 'legal' is none of generator.engine.adapters (reading)",
        ),
        (["-c", "handbook"], "-c, -k: belong to --questions FILE"),
        (["--answers", "a", "--encoding", "all"], "--answers: holds those of one kv_context, encoding and"),
    ],
)
def test_wrong_input_is_named(gate: Gate, args: list[str], says: str) -> None:
    result = gate(*args)
    assert result.exit_code in (1, 2)
    assert says in result.output


def test_own_questions_need_a_system_that_holds_the_documents(gate: Gate, tmp_path: Path) -> None:
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"question": "Why?"}', encoding="utf-8")
    result = gate("--model", "demo", "--questions", questions)
    assert result.exit_code == 3
    assert "kvquilt is not running on" in result.output
    questions.write_text('{"answer": "Why?"}', encoding="utf-8")
    result = gate("--model", "demo", "--questions", questions)
    assert result.exit_code == 2
    assert "line 1: answer: unknown field; did you mean 'answers'?" in result.output


def test_where_no_questions_can_be_generated_the_remedy_is_told(gate: Gate) -> None:
    result = gate("--model", "demo", *QUICK, KVQUILT_INGESTION__CHUNK_TOKENS="24")
    assert result.exit_code == 2
    assert "no questions can be generated for this model" in result.output
    assert "give your own by --questions FILE" in result.output


def test_too_few_questions_give_no_verdict_and_what_was_answered_is_kept(
    gate: Gate, model: Path, tmp_path: Path
) -> None:
    before = (model / VERDICT_FILE).read_bytes() if (model / VERDICT_FILE).exists() else b""
    few = ["--questions", "2", "--modes", "reordered", "--processes", "1", "--kv-context", "header"]
    result = gate("--model", model, *few)
    assert result.exit_code == 2
    assert "the questions are too few to tell: reordered may lose up to" in result.output
    assert "3 are allowed; ask more, or raise --tolerance" in result.output
    assert ((model / VERDICT_FILE).read_bytes() if before else b"") == before
    (kept,) = (tmp_path / "data" / "gate").iterdir()
    asked = kept.read_bytes()
    assert gate("--model", model, *few).exit_code == 2
    assert kept.read_bytes() == asked


def test_what_the_model_cannot_read_gives_no_verdict(gate: Gate, model: Path, tmp_path: Path) -> None:
    """A model that has forgotten everything."""
    from transformers import AutoModelForCausalLM

    blank = tmp_path / "blank"
    shutil.copytree(model, blank)
    (blank / VERDICT_FILE).unlink(missing_ok=True)
    weights = AutoModelForCausalLM.from_pretrained(blank)
    for parameter in weights.parameters():
        parameter.data.mul_(0.01)
    weights.save_pretrained(blank)
    result = gate("--model", blank, *QUICK)
    assert result.exit_code == 2
    assert "no kind of question counts" in result.output
    assert not (blank / VERDICT_FILE).exists()
