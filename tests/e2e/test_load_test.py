"""The load test, as a user runs it, against the running stack."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.paths import PROJECT_ROOT
from tests.e2e.conftest import COLLECTION, K
from tests.e2e.stack import Stack, environment

pytestmark = pytest.mark.e2e


def test_it_asks_the_whole_pipeline_and_leaves_a_report(stack: Stack, tmp_path: Path) -> None:
    (tmp_path / "questions.txt").write_text(
        "Which day is market day in Tambach?\nWho is the mayor of Almwick?\n"
    )
    options = (
        "--rate 2 --duration 3 --slo ttft:60s --reuse full,reordered,cacheclip --streams 2 --quality 1 "
        f"--k {K} --generated 4"
    )
    run = subprocess.run(
        [
            *(sys.executable, "-m", "load_tests.service", "--target", stack.target, *options.split()),
            *(
                "--tenant",
                "default",
                "--collection",
                COLLECTION,
                "--questions",
                str(tmp_path / "questions.txt"),
            ),
            *("--http", stack.state.http),
            *("--json", str(tmp_path / "report.json"), "--html", str(tmp_path / "report.html")),
        ],
        cwd=PROJECT_ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    names = {m["name"] for m in report["measurements"]}
    assert {"goodput_full", "goodput_reordered", "selections_cacheclip", "selector_wait_cacheclip"} <= names
    assert {"ttft_http", "http_overhead_ms", "token_overhead_ms"} <= names
    rates = report["details"]["rates"]
    assert [rate["statuses"] for rate in rates] == [{"OK": 6}] * 3
    assert [bool(rate["selecting"]) for rate in rates] == [False, False, True]
    assert rates[2]["selecting"]["per_s"] > 0 < rates[2]["selecting"]["busy"]
    assert "<svg" in (tmp_path / "report.html").read_text()
    documents = stack.cli("documents", "-c", COLLECTION)
    assert "tambach" in documents.stdout, "a collection that was there before is left alone"
