"""docs/tracing.md names every stage that the services record."""

from __future__ import annotations

import re

import pytest

from cluster.paths import PROJECT_ROOT
from services.gateway.tracing import ANSWERING, PREFETCHING, RETRIEVING
from services.generator.tracing import EXPLORING, GENERATING, SELECTING

DOCS = (PROJECT_ROOT / "docs" / "tracing.md").read_text(encoding="utf-8")
RECORDED = re.compile(r"""(?:\b(?:span|traced)\([\w.]*ctx,|StageTime\()\s*"([^"]+)\"""")
NAMED = {ANSWERING, PREFETCHING, RETRIEVING, EXPLORING, GENERATING, SELECTING}


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
