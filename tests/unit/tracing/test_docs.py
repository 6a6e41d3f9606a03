"""docs/tracing.md names every stage that the services record, and shows a trace with all of an answer's."""

from __future__ import annotations

import re

import pytest

from cluster.paths import PROJECT_ROOT
from services.gateway.tracing import ANSWERING, PREFETCHING, RETRIEVING
from services.generator.tracing import EXPLORING, GENERATING, SELECTING

DOCS = (PROJECT_ROOT / "docs" / "tracing.md").read_text(encoding="utf-8")
RECORDED = re.compile(r"""(?:\b(?:span|traced)\([\w.]*ctx,|StageTime\()\s*"([^"]+)\"""")
NAMED = {ANSWERING, PREFETCHING, RETRIEVING, EXPLORING, GENERATING, SELECTING}


SHOWN = re.compile(r" *[\d.]+ +[\d.]+  \w+ +\S.*")
NAME_AT = 37
CALL = re.compile(r"(gateway|retrieval|generator|selector|kv_store)/[A-Z]\w+")


def shown() -> set[tuple[str, str]]:
    """Of the trace in the docs the name of each span, and that of the span above it."""
    pairs: set[tuple[str, str]] = set()
    above: list[str] = []
    for line in filter(SHOWN.fullmatch, DOCS.splitlines()):
        column = line[NAME_AT:]
        depth = (len(column) - len(column.lstrip())) // 2
        name = column.strip().partition("  ")[0]
        pairs.add((name, above[depth - 1] if depth else ""))
        above[depth:] = [name]
    return pairs


def stages() -> set[str]:
    """Names of spans in the sources of services and engine."""
    rooms = (PROJECT_ROOT / "services", PROJECT_ROOT / "shared" / "engine")
    sources = [path.read_text(encoding="utf-8") for room in rooms for path in room.rglob("*.py")]
    return NAMED.union(name for text in sources for name in RECORDED.findall(text))


def test_stages_are_found_in_the_sources() -> None:
    assert stages() >= {"search dense", "fuse", "queue", "select wait", "decode", "parse", "open", "fetch"}


@pytest.mark.parametrize("stage", sorted(stages()))
def test_every_stage_is_explained(stage: str) -> None:
    assert f"`{stage}`" in DOCS


def test_the_trace_that_is_shown_has_every_stage_of_an_answer_with_selection_and_no_other() -> None:
    names = {name for name, _ in shown()}
    known = {name for name in names if CALL.fullmatch(name) or name.startswith("load ")}
    elsewhere = {"explore", "fetch", "prefill", "rerank"}  # forests, other nodes, mode full, a cross-encoder
    ingesting = {"chunk", "encode auxiliary", "index", "ingest document", "look up", "parse", "store"}
    assert names - known == stages() - elsewhere - ingesting
