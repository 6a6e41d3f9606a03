"""A peer beside the engine in one run: both in processes of their own, the peer's a pretended one."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from load_tests.peers.__main__ import main
from shared.measuring.shapes import SMOLLM2_135M

SMALL = {"hidden": 64, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 16, "mlp": 96, "vocab": 300}
OURS_AND_THEIRS = """
from load_tests.peers.answering import answer_lines
class Same:
    version = "same 1"
    def next_token(self, ids):
        return TOKEN
    def prefill_s(self, ids):
        return 8.0
    def hit_s(self, context, question):
        return 0.5
    def decode_s(self, context, questions, steps):
        return 0.25 * steps
answer_lines(Same())
"""


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("load_tests.peers.__main__.SHAPES", {"smollm2-135m": replace(SMOLLM2_135M, **SMALL)})


def asked(tools: Path, *more: str) -> int:
    sizes = ("--context", "64", "--question", "8", "--decode", "2", "--runs", "1", "--threads", "1")
    return main(["--tools", str(tools), "--peers", "llama.cpp", "--precision", "bf16", *sizes, *more])


def tools_that_say(token: int, tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    script = OURS_AND_THEIRS.replace("TOKEN", str(token))
    (tmp_path / "peer.py").write_text(script)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -c "$(cat {tmp_path / "peer.py"})"\n')
    python.chmod(0o755)
    return tmp_path


@pytest.mark.usefixtures("small")
def test_both_are_measured_in_one_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("load_tests.peers.__main__.likeliest", lambda *_: [7])
    report = tmp_path / "peers.json"
    assert asked(tools_that_say(7, tmp_path), "--json", str(report)) == 0
    found = {m["name"]: m for m in json.loads(report.read_text())["measurements"]}
    assert found["ttft_64_bf16_llama.cpp"]["baseline"] == 8.0
    assert found["ttft_over_exact_hit_64_bf16_llama.cpp"]["baseline"] == 0.5
    assert found["decode_1_64_bf16_llama.cpp"]["baseline"] == 4
    assert found["decode_8_64_bf16_llama.cpp"]["baseline"] == 32
    assert all(m["value"] > 0 for m in found.values())
    assert json.loads(report.read_text())["details"]["versions"] == {"llama.cpp": "same 1"}


@pytest.mark.usefixtures("small")
def test_one_that_computes_another_model_is_not_measured(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert asked(tools_that_say(-1, tmp_path)) == 2
    assert "says token -1, which is none of the model's likeliest" in capfd.readouterr().err


@pytest.mark.usefixtures("small")
def test_without_its_environment_it_is_told_what_to_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert asked(tmp_path) == 2
    assert "run `make peers`" in capfd.readouterr().err
