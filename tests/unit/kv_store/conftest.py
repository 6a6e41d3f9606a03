"""A node's tiers, and an object store with a chunk in it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.kv_store.blobs.protocol import Blobs
from services.kv_store.node.chunks import NodeTiers
from services.kv_store.tiers.chunk_names import blob_of
from tests.dict_blobs import DictBlobs
from tests.kv_stores import tiers_in
from tests.unit.kv_store.disks import QuickDisk
from tests.unit.kv_store.large_chunks import SMALL_PARTS, A, Make, large


@pytest.fixture
def stored() -> DictBlobs:
    """What is in the object store: A, large."""
    blobs = DictBlobs()
    blobs.put(blob_of(A), large(A))
    return blobs


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    made: list[NodeTiers] = []

    def make(objects: Blobs | None, **settings: object) -> NodeTiers:
        fetch = settings.pop("fetch", SMALL_PARTS)
        disk = settings.pop("disk", None) or QuickDisk()
        made.append(tiers_in(tmp_path, disk, objects, fetch=fetch, **settings))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for tiers in made:
        await tiers.close()
    made[-1].check_invariants()
    assert not [p for p in (tmp_path / "staging").iterdir() if p.name.startswith("put-")]
