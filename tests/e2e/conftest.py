"""One stack for the whole session, with a few of the demo's documents in it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.local import launcher
from cluster.local.processes import session_members
from cluster.paths import DEMO_ASSETS
from tests.e2e import stack as stacks
from tests.e2e.stack import Stack
from tests.generation_server import save_byte_tokenizer
from tests.oracles import tiny_model

COLLECTION = "towns"
K = "3"


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
def stack(tmp_path_factory: pytest.TempPathFactory, documents: Path, auxiliary: Path) -> Iterator[Stack]:
    settings: dict[str, object] = {"ingestion": {"chunk_tokens": 96}, "selector": {"model": str(auxiliary)}}
    running = stacks.start(tmp_path_factory.mktemp("stack") / "data", **settings)
    try:
        ingested = running.cli("ingest", str(documents), "-c", COLLECTION)
        assert ingested.returncode == 0, ingested.stdout + ingested.stderr
        yield running
    finally:
        launcher.stop(running.data_dir)
    assert session_members(running.state.pid) == []
