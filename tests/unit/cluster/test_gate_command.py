"""`kvquilt gate`: the verdict of a model, where it goes, and who shows it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from cluster.cli.gate_command import verdict_file
from cluster.cli.main import main
from cluster.config import load_quilt
from cluster.models.listing import facts_of
from cluster.paths import DEMO_MODEL
from shared.errors import ConfigError
from shared.generation.modes import ReuseMode
from shared.kv_types import KvContext
from shared.verdict import VERDICT_FILE, Verdict
from shared.verdicts import keep_verdict, read_verdicts

QUICK = ["--questions", "2", "--ratios", "", "--processes", "1", "--tolerance", "1"]
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


def gate(*args: object, **environ: str) -> Result:
    return CliRunner(env=environ).invoke(main, ["gate", *map(str, args)], catch_exceptions=False)


def test_the_verdict_goes_beside_the_model_for_each_setting_of_kv_context(
    model: Path, tmp_path: Path
) -> None:
    keep_verdict(model / VERDICT_FILE, OTHER)
    kept, report = tmp_path / "answers.jsonl", tmp_path / "report.json"
    first = gate("--model", model, *QUICK, "--answers", kept, "--json", report)
    assert first.exit_code == 0, first.output
    assert "verdict (kv_context document): reordered" in first.output
    told = {line.split()[0] for line in first.output.splitlines() if line.strip()}
    assert {"evidence", "spread", "unnamed", "cross_document", "single"} <= told
    asked = kept.read_bytes()
    assert gate("--model", model, *QUICK, "--answers", kept).exit_code == 0
    assert kept.read_bytes() == asked
    isolated = gate("--model", model, *QUICK, "--kv-context", "none")
    assert isolated.exit_code == 0, isolated.output
    verdicts = read_verdicts(model / VERDICT_FILE)
    assert [v.kv_context for v in verdicts] == [KvContext.NONE, KvContext.DOCUMENT, KvContext.NONE]
    assert verdicts[2] == OTHER
    assert {v.asked["spread"].num_questions for v in verdicts[:2]} == {
        len([a for a in answered(kept) if a["kind"] == "spread" and a["mode"] == "full"])
    }
    assert facts_of("x", model).verdict == "reordered (document), reordered (none)"
    assert any("spread" in m["name"] for m in json.loads(report.read_text())["measurements"])


def answered(kept: Path) -> list[dict[str, Any]]:
    return [answer for line in kept.read_text().splitlines()[1:] for answer in json.loads(line)]


def test_it_is_judged_as_it_is_served(model: Path, tmp_path: Path) -> None:
    config = tmp_path / "quilt.yaml"
    config.write_text(f"model: {model}\ngenerator: {{verdict: {tmp_path / 'v.json'}}}\n", encoding="utf-8")
    result = gate("--config", config, *QUICK, KVQUILT_INGESTION__KV_CONTEXT="header")
    assert result.exit_code == 0, result.output
    (verdict,) = read_verdicts(tmp_path / "v.json")
    assert verdict.kv_context is KvContext.HEADER


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
    ],
)
def test_wrong_input_is_named(args: list[str], says: str) -> None:
    result = gate(*args)
    assert result.exit_code in (1, 2)
    assert says in result.output


def test_what_the_model_cannot_read_gives_no_verdict(model: Path, tmp_path: Path) -> None:
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
