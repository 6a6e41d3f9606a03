"""Runs other people's benchmarks against an address, and reads what they wrote."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shared.errors import ConfigError

_TIMEOUT_S = 1800.0
_ERROR_CHARS = 300
LMCACHE, GUIDELLM = "lmcache", "guidellm"


@dataclass(frozen=True, slots=True)
class Ruled:
    """What a harness said of one arm. ``figures``: by name, with the unit as the name's end; empty where
    ``error`` says why it did not run."""

    harness: str
    workload: str
    arm: str
    figures: Mapping[str, float] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True, slots=True)
class Harnesses:
    """``tools``: the directory of the environment that they are installed in. ``scratch``: a directory in
    which every model's name leads to its tokenizer, as they want it. ``address``: of the system, with the
    scheme."""

    tools: Path
    scratch: Path
    address: str

    def check(self) -> None:
        """
        Raises:
            ConfigError: they are not installed.
        """
        for name in (LMCACHE, GUIDELLM):
            if not (self.tools / "bin" / name).exists():
                raise ConfigError(f"--tools: there is no {self.tools / 'bin' / name}; run `make rulers`")

    def permutator(self, model: str, contexts: int, context_tokens: int, permutations: int) -> Ruled:
        """LMCache's: the same long documents in many orders."""
        of = (LMCACHE, "long-doc-permutator", model)
        out = self._out(of)
        options = {
            "--ldp-num-contexts": contexts,
            "--ldp-context-length": context_tokens,
            "--ldp-system-prompt-length": 0,
            "--ldp-num-permutations": permutations,
            "--ldp-max-output-length": 1,
        }
        error = self._lmcache(of, out, options)
        return Ruled(*of, {} if error else _times(out / "bench_summary.json"), error)

    def rag_quality(self, model: str, questions: Path, num: int, max_tokens: int) -> Ruled:
        """LMCache's: whether answers over reused KV are right. ``parse_rate``: the share of answers between
        the tags that it asks for."""
        of = (LMCACHE, "rag-qa-quality", model)
        out = self._out(of)
        options = {
            "--rag-dataset": questions,
            "--rag-num-samples": num,
            "--rag-max-output-length": max_tokens,
            "--rag-output": out / "quality.json",
        }
        if error := self._lmcache(of, out, options):
            return Ruled(*of, error=error)
        summary = _json(out / "quality.json")["summary"]
        quality = {name: float(summary[name]) for name in ("parse_rate", "f1_mean")}
        return Ruled(*of, _times(out / "bench_summary.json") | quality)

    def guidellm(self, model: str, prompts: Path, num: int, max_tokens: int) -> Ruled:
        """GuideLLM's, one prompt after the other."""
        of = (GUIDELLM, "synchronous", model)
        report = self._out(of) / "report.json"
        command = [
            "run",
            *("--backend", f"kind=openai_http,target={self.address},model={model},max_tokens={max_tokens}"),
            *("--profile", "kind=synchronous"),
            *("--constraint", f"kind=max_requests,count={num}"),
            *("--tokenizer", f"kind=huggingface_auto,model={model}"),
            *("--data", f"kind=json_file,path={prompts}"),
            *("--output", f"kind=json,path={report}"),
            "--disable-console-interactive",
        ]
        if error := self._run(GUIDELLM, command):
            return Ruled(*of, error=error)
        (benchmark,) = _json(report)["benchmarks"]
        if failed := benchmark["requests"]["errored"]:
            return Ruled(*of, error=_short(str(failed[0]["info"]["error"])))
        metrics = benchmark["metrics"]
        return Ruled(
            *of,
            {
                "p50_ttft_ms": float(metrics["time_to_first_token_ms"]["successful"]["median"]),
                "mean_ttft_ms": float(metrics["time_to_first_token_ms"]["successful"]["mean"]),
            },
        )

    def _lmcache(self, of: tuple[str, str, str], out: Path, options: Mapping[str, object]) -> str:
        """Returns why it did not run; empty: it did."""
        _, workload, model = of
        command = [
            *("bench", "engine", "--engine-url", self.address, "--model", model, "--workload", workload),
            *("--tokens-per-gb-kvcache", "50000", "--no-interactive", "--quiet", "--json"),
            *("--output-dir", str(out)),
            *(str(part) for pair in options.items() for part in pair),
        ]
        if error := self._run(LMCACHE, command):
            return error
        results = _json(out / "bench_summary.json")["results"]
        failed = results["failed_requests"]
        return f"{failed} of {results['total_requests']} requests failed" if failed else ""

    def _run(self, name: str, arguments: Sequence[str]) -> str:
        """Returns the end of what it said if it failed."""
        run = subprocess.run(
            [str(self.tools / "bin" / name), *arguments],
            cwd=self.scratch,
            env=os.environ | {"LMCACHE_DISABLE_BANNER": "1", "HF_HUB_OFFLINE": "1"},
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        if not run.returncode:
            return ""
        said = [line for line in (run.stderr or run.stdout).splitlines() if line.strip()]
        return _short(said[-1] if said else f"it ended with {run.returncode}")

    def _out(self, of: tuple[str, str, str]) -> Path:
        folder = self.scratch / "-".join(of).replace(":", "-")
        folder.mkdir()
        return folder


def _times(summary: Path) -> dict[str, float]:
    results = _json(summary)["results"]
    return {name: float(results[name]) for name in ("p50_ttft_ms", "mean_ttft_ms")}


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _short(text: str) -> str:
    return text if len(text) <= _ERROR_CHARS else f"{text[:_ERROR_CHARS]} …"
