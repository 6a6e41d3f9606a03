"""The files of the store are for nobody but its own user, whoever wrote them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.kv_store.tiers.memory_directory import MemoryDirectory
from shared.kv_format import ProgressWriter
from shared.kv_types import Manifest, ManifestChunk
from shared.request import RequestContext
from tests.kv_chunks import chunk_bytes, chunk_id_of
from tests.kv_stores import KnownNodes, agent_on, in_pieces

A, B = (chunk_id_of(n) for n in range(2))
CTX = RequestContext.create(tenant="acme")


@pytest.fixture(autouse=True)
def everybody_may_read() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def usable_by_others(root: Path) -> list[Path]:
    return [path for path in (root, *root.rglob("*")) if path.stat().st_mode & 0o077]


async def test_chunks_manifests_and_pins_are_private(tmp_path: Path) -> None:
    store = agent_on(tmp_path / "kv", "home", KnownNodes())
    data = chunk_bytes(A)
    await store.put(CTX, A, len(data), in_pieces(data))
    given = Path(await store.stage(CTX)) / "given"
    given.write_bytes(chunk_bytes(B))
    await store.adopt(CTX, B, "", str(given))
    chunks = tuple(ManifestChunk(c, (1,)) for c in (A, B))
    await store.put_manifest(CTX, Manifest("acme", "books", "1", chunks=chunks))
    await store.pin(CTX, "books")
    assert len(list((tmp_path / "kv").rglob("*.arrow"))) == 2
    assert usable_by_others(tmp_path / "kv") == []


async def test_an_earlier_versions_directory_is_private_once_it_is_opened(tmp_path: Path) -> None:
    store = agent_on(tmp_path / "kv", "home", KnownNodes())
    data = chunk_bytes(A)
    await store.put(CTX, A, len(data), in_pieces(data))
    for path in [tmp_path / "kv", *(tmp_path / "kv").rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    store = agent_on(tmp_path / "kv", "home", KnownNodes())
    assert usable_by_others(tmp_path / "kv") == []
    assert [s.exists for s in await store.stat(CTX, [A])] == [True]


def test_memory_and_what_says_how_far_a_chunk_has_arrived_are_private(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "left").write_bytes(b"x")
    assert MemoryDirectory.claim(tmp_path / "memory") is not None
    progress = ProgressWriter(tmp_path / "memory" / "progress", num_layers=2)
    assert usable_by_others(tmp_path / "memory") == []
    progress.close(complete=True)
