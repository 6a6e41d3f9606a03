"""One stack for the whole session, with a few of the demo's documents in it."""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.local import launcher
from cluster.local.processes import session_members
from cluster.paths import DEMO_ASSETS
from shared.engine import load_model
from shared.generation.modes import ReuseMode
from shared.identity import ids_hash
from shared.kv_types import KvContext
from shared.prompt import PromptTokenizer
from shared.prompt_config import PromptConfig
from shared.verdict import Verdict
from shared.verdicts import keep_verdict
from tests.e2e import stack as stacks
from tests.e2e.stack import Stack
from tests.generation_server import save_byte_tokenizer
from tests.oracles import tiny_model

COLLECTION = "towns"
K = "3"
STALL_S = 8
"""After which callers who take nothing are cut."""
SECRET = "root:planted-in-the-settings"
"""The embedded index needs no token."""
_TOLD_LINES = 60


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Shows what went wrong in the services last beside a test of theirs that failed."""
    report = yield
    stack = getattr(item, "funcargs", {}).get("stack")
    if report.when == "call" and report.failed and isinstance(stack, Stack):
        with open(stack.state.log_path, encoding="utf-8", errors="replace") as log:
            wrong = deque((line for line in log if "ERROR" in line or "WARNING" in line), _TOLD_LINES)
        report.sections.append(("warnings and errors of the services", "".join(wrong)))
    return report


@pytest.fixture(scope="session")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's towns: six documents of four formats."""
    folder = tmp_path_factory.mktemp("documents") / "towns"
    shutil.copytree(DEMO_ASSETS / "documents" / "towns", folder)
    return folder


@pytest.fixture(scope="session")
def auxiliary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that knows nothing, with a token per byte."""
    folder = tmp_path_factory.mktemp("auxiliary")
    tiny_model("llama", vocab_size=300).save_pretrained(folder)
    save_byte_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def verdict(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """By which mode auto is reordered."""
    directory, path = DEMO_ASSETS / "model", tmp_path_factory.mktemp("verdict") / "verdict.json"
    prompts = PromptTokenizer.of_model(str(directory), PromptConfig())
    assert prompts is not None
    made_for = (load_model(str(directory)).fingerprint, ids_hash(prompts.prefix_ids), "exact")
    verdict = Verdict(ReuseMode.REORDERED, 0.03, *made_for, kv_context=KvContext.DOCUMENT)
    keep_verdict(path, replace(verdict, agreement=0.98))
    return path


@pytest.fixture(scope="session")
def stack(
    tmp_path_factory: pytest.TempPathFactory, documents: Path, auxiliary: Path, verdict: Path
) -> Iterator[Stack]:
    settings: dict[str, object] = {
        "ingestion": {"chunk_tokens": 96},
        "selector": {"model": str(auxiliary)},
        "generator": {"verdict": str(verdict)},
        "gateway": {"shadow": {"share": 1.0}},
        "retrieval": {"milvus_token": SECRET},
        "internal_calls": True,  # test_another_cluster's gateway uses it
        "limits": {"stall_s": STALL_S},
    }
    running = stacks.start(tmp_path_factory.mktemp("stack") / "data", **settings)
    try:
        ingested = running.cli("ingest", str(documents), "-c", COLLECTION)
        assert ingested.returncode == 0, ingested.stdout + ingested.stderr
        yield running
    finally:
        launcher.stop(running.data_dir)
    assert session_members(running.state.pid) == []
