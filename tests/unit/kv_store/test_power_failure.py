"""A machine that loses power, at any moment: nothing is left of what was not made durable, and what was
acknowledged is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from services.kv_store.documents.documents import Documents
from services.kv_store.node.agent import Agent
from services.kv_store.tiers.chunk_files import verified
from services.kv_store.tiers.local import LocalTier
from shared.errors import NotFound
from shared.kv_format import verify_chunk
from shared.kv_types import Manifest, ManifestChunk
from shared.request import RequestContext
from tests.kv_chunks import chunk_bytes, chunk_id_of
from tests.kv_stores import KnownNodes, agent_on, in_pieces
from tests.unit.kv_store.disks import LosingDisk, QuickDisk, power_fails

A, B = (chunk_id_of(n) for n in range(2))
SIZE = len(chunk_bytes(A))
CTX = RequestContext.create(tenant="acme")
MOMENTS = 200
survivors = pytest.mark.parametrize("names_survive", [False, True])


class Acknowledged:
    """What the last operation that returned left behind."""

    def __init__(self) -> None:
        self.state = "nothing"

    def now(self, state: str) -> None:
        self.state = state


def failures(tmp_path: Path, names_survive: bool) -> Iterator[tuple[LosingDisk, Path]]:
    """A disk that fails at every moment in turn, then one that fails after everything was done: whoever is
    asked for the next one has used this one, to its end or not."""
    for dies_at in range(MOMENTS):
        directory = tmp_path / str(dies_at)
        directory.mkdir()
        disk = LosingDisk(directory, dies_at, names_survive)
        yield disk, directory
        if disk.num_operations <= dies_at:
            return
    pytest.fail("the operations never end")


def document(document_id: str, chunk_id: str) -> Manifest:
    return Manifest("acme", "books", document_id, chunks=(ManifestChunk(chunk_id, (1, 2)),))


@survivors
def test_a_document_is_there_once_it_was_acknowledged_and_gone_once_it_was_removed(
    tmp_path: Path, names_survive: bool
) -> None:
    for disk, directory in failures(tmp_path, names_survive):
        done = Acknowledged()
        with power_fails(disk):
            documents = Documents(directory / "kv", disk)
            documents.put(document("1", A))
            done.now("first")
            documents.put(document("1", B))
            done.now("second")
            removal = documents.remove("acme", "books", "1")
            done.now("removed")
            documents.finish(removal)
        reborn = Documents(directory / "kv", QuickDisk())
        reborn.check_invariants()
        found = [m.chunks[0].chunk_id for m in reborn.page("acme", "", "", 0, False).manifests]
        assert reborn.num_damaged == 0
        assert (
            found
            in {
                "nothing": ([], [A]),
                "first": ([A], [B]),
                "second": ([B], []),
                "removed": ([],),
            }[done.state]
        )
        if done.state == "second" and not found:
            assert (B,) in [r.chunk_ids for r in reborn.pending()], "its chunks would never go"


@survivors
def test_kv_is_there_and_whole_once_it_was_acknowledged(tmp_path: Path, names_survive: bool) -> None:
    for disk, directory in failures(tmp_path, names_survive):
        done = Acknowledged()
        with power_fails(disk):
            tier = LocalTier("disk", directory / "kv", disk=disk)
            for seed in (1, 2):
                file = tier.staging.allocate(SIZE)
                file.write(0, chunk_bytes(A, seed))
                file.close()
                tier.keep(A, file.path, verified(file.path, A), truth=True)
                done.now(str(seed))
            tier.keep(B, copy_of(tier, B), verified(copy_of(tier, B), B))
            tier.demote(A, tier.version(A))
        reborn = LocalTier("disk", directory / "kv", disk=QuickDisk())
        found = reborn.open(A)
        seeds = {"nothing": (0, 1), "1": (1, 2), "2": (2,)}[done.state]
        assert (found is None and 0 in seeds) or (
            found is not None and Path(found.path).read_bytes() in [chunk_bytes(A, s) for s in seeds if s]
        )
        if (copy := reborn.open(B)) is not None:
            verify_chunk(copy.path, B)
        assert not list(reborn.staging.directory.iterdir())
        reborn.check_invariants()


def copy_of(tier: LocalTier, chunk_id: str) -> Path:
    path = tier.staging.directory / f"put-{chunk_id}"
    path.write_bytes(chunk_bytes(chunk_id))
    return path


async def test_no_document_is_there_without_its_kv(tmp_path: Path) -> None:
    for disk, directory in failures(tmp_path, names_survive=False):
        done = Acknowledged()
        with power_fails(disk):
            store = agent_on(directory / "kv", "home", KnownNodes(), disk)
            await stored(store, A)
            await store.put_manifest(CTX, document("1", A))
            await store.pin(CTX, "books")
            done.now("pinned")
            await store.delete_manifest(CTX, "books", "1")
            done.now("removed")
        reborn = agent_on(directory / "kv", "home", KnownNodes(), QuickDisk())
        manifests = (await reborn.manifest_page(CTX)).manifests
        assert len(manifests) in {"nothing": (0, 1), "pinned": (0, 1), "removed": (0,)}[done.state]
        (found,) = await reborn.open(CTX, [A])
        assert found.exists or not manifests
        if done.state == "pinned":
            assert len(await reborn.list_pins(CTX)) == 1
        await reborn.recover(CTX)
        if not manifests and done.state != "nothing":
            with pytest.raises(NotFound):
                await first(reborn, A)
        reborn.check_invariants()


async def stored(store: Agent, chunk_id: str) -> None:
    data = chunk_bytes(chunk_id)
    await store.put(CTX, chunk_id, len(data), in_pieces(data))


async def first(store: Agent, chunk_id: str) -> bytes:
    return await anext(store.get(CTX, chunk_id))


Forgetful = Callable[[Path], LosingDisk]


class ForgetsBytes(LosingDisk):
    def sync(self, path: Path) -> None:
        pass


class ForgetsNames(LosingDisk):
    def sync_dir(self, path: Path) -> None:
        pass


@pytest.mark.parametrize("disk_type", [ForgetsBytes, ForgetsNames])
async def test_a_sync_that_is_left_out_is_found(tmp_path: Path, disk_type: Forgetful) -> None:
    """Else these tests would say nothing."""
    disk = disk_type(tmp_path)
    with power_fails(disk):
        store = agent_on(tmp_path / "kv", "home", KnownNodes(), disk)
        await stored(store, A)
        await store.put_manifest(CTX, document("1", A))
    reborn = agent_on(tmp_path / "kv", "home", KnownNodes(), QuickDisk())
    assert (await reborn.manifest_page(CTX)).manifests == ()
    assert not (await reborn.open(CTX, [A]))[0].exists
