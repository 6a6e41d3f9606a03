"""What others' benchmarks are given to ask, and how what they wrote is read."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from load_tests.rulers.__main__ import findings
from load_tests.rulers.harnesses import Harnesses, Ruled
from load_tests.rulers.workloads import write_prompts, write_questions
from shared.errors import ConfigError

FULL, REUSED = "tiny:full", "tiny:reordered"


def test_every_question_has_its_own_document_among_its_passages(tmp_path: Path) -> None:
    write_questions(path := tmp_path / "questions.json", 12, 4, seed=3)
    records = json.loads(path.read_text())
    assert len(records) == 12
    assert all(len(record["ctxs"]) == 4 for record in records)
    own = [[i for i, passage in enumerate(r["ctxs"]) if r["answers"][0] in passage["text"]] for r in records]
    assert all(own)
    assert len({places[0] for places in own}) > 1


def test_prompts_paste_the_same_documents_in_orders_of_their_own(tmp_path: Path) -> None:
    write_prompts(path := tmp_path / "prompts.jsonl", 20, 6, 3, 80, lambda text: len(text.split()), seed=1)
    prompts = [json.loads(line)["prompt"] for line in path.read_text().splitlines()]
    assert len(prompts) == len(set(prompts)) == 20
    beginnings = {prompt[:60] for prompt in prompts}
    assert 3 < len(beginnings) <= 6
    assert all(prompt.endswith("?") for prompt in prompts)


def harness(tmp_path: Path, program: str) -> Harnesses:
    """Both programs are ``program``, which runs with the harness's arguments."""
    (tmp_path / "tools" / "bin").mkdir(parents=True)
    (tmp_path / "scratch").mkdir()
    for name in ("lmcache", "guidellm"):
        file = tmp_path / "tools" / "bin" / name
        file.write_text(f"#!{sys.executable}\nimport json, pathlib, sys\nargs = sys.argv\n{program}\n")
        file.chmod(0o755)
    harnesses = Harnesses(tmp_path / "tools", tmp_path / "scratch", "http://127.0.0.1:1")
    harnesses.check()
    return harnesses


LMCACHE = """
out = pathlib.Path(args[args.index("--output-dir") + 1])
results = {"total_requests": 4, "failed_requests": FAILED, "p50_ttft_ms": 12.5, "mean_ttft_ms": 20}
(out / "bench_summary.json").write_text(json.dumps({"results": results}))
if "--rag-output" in args:
    summary = {"parse_rate": 0.5, "f1_mean": 0.25}
    pathlib.Path(args[args.index("--rag-output") + 1]).write_text(json.dumps({"summary": summary}))
"""
GUIDELLM = """
report = next(a for a in args if a.startswith("kind=json,path=")).partition("path=")[2]
times = {"time_to_first_token_ms": {"successful": {"median": 30, "mean": 40}}}
errored = [{"info": {"error": "400 Bad Request"}}][:FAILED]
told = {"benchmarks": [{"requests": {"errored": errored}, "metrics": times}]}
pathlib.Path(report).write_text(json.dumps(told))
"""


def test_lmcaches_figures_are_read(tmp_path: Path) -> None:
    harnesses = harness(tmp_path, LMCACHE.replace("FAILED", "0"))
    times = {"p50_ttft_ms": 12.5, "mean_ttft_ms": 20}
    assert harnesses.permutator(FULL, 4, 512, 10) == Ruled("lmcache", "long-doc-permutator", FULL, times)
    quality = harnesses.rag_quality(FULL, tmp_path / "questions.json", 3, 16)
    assert quality.figures == times | {"parse_rate": 0.5, "f1_mean": 0.25}


def test_requests_that_fail_are_an_error(tmp_path: Path) -> None:
    harnesses = harness(tmp_path, LMCACHE.replace("FAILED", "3"))
    assert harnesses.permutator(FULL, 4, 512, 10).error == "3 of 4 requests failed"


def test_guidellms_figures_and_errors_are_read(tmp_path: Path) -> None:
    good = harness(tmp_path / "good", GUIDELLM.replace("FAILED", "0"))
    figures = good.guidellm(FULL, tmp_path / "prompts.jsonl", 3, 16).figures
    assert figures == {"p50_ttft_ms": 30, "mean_ttft_ms": 40}
    bad = harness(tmp_path / "bad", GUIDELLM.replace("FAILED", "1"))
    assert bad.guidellm(FULL, tmp_path / "prompts.jsonl", 3, 16).error == "400 Bad Request"


def test_what_does_not_run_is_quoted(tmp_path: Path) -> None:
    harnesses = harness(tmp_path, "sys.exit('RuntimeError: no such option')")
    assert harnesses.permutator(FULL, 4, 512, 10).error == "RuntimeError: no such option"


def test_harnesses_that_are_not_installed_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="make rulers"):
        Harnesses(tmp_path, tmp_path, "").check()


def test_findings_set_reuse_beside_full(capsys: pytest.CaptureFixture[str]) -> None:
    ruled = [
        Ruled("lmcache", "rag-qa-quality", FULL, {"p50_ttft_ms": 30.0, "f1_mean": 0.5}),
        Ruled("guidellm", "synchronous", FULL, error="refused"),
        Ruled("lmcache", "rag-qa-quality", REUSED, {"p50_ttft_ms": 10.0, "f1_mean": 0.25}),
        Ruled("guidellm", "synchronous", REUSED, {"p50_ttft_ms": 9.0}),
    ]
    found = {m.name: m for m in findings(ruled, FULL)}
    assert found.keys() == {
        "lmcache_rag_qa_quality_reordered_p50_ttft",
        "lmcache_rag_qa_quality_reordered_f1_mean",
    }
    ttft, f1 = (found[f"lmcache_rag_qa_quality_reordered_{name}"] for name in ("p50_ttft", "f1_mean"))
    assert (ttft.value, ttft.unit, ttft.baseline, ttft.ratio) == (10.0, "ms", 30.0, 3.0)
    assert (f1.value, f1.baseline, f1.ratio) == (0.25, 0.5, 0.5)
    assert "guidellm synchronous tiny:full: refused" in capsys.readouterr().out
