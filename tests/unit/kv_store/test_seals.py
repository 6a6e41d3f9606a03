"""A node with keys seals what it takes over, of the identity that it names, and finds out what others put in
its place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from services.kv_store.documents.documents import Documents
from services.kv_store.documents.manifest_json import decode, encode
from services.kv_store.documents.sealed_json import checksum_of, key_id_of
from services.kv_store.node.agent import Agent
from services.kv_store.tiers.chunk_names import blob_of
from shared.errors import InvalidRequest, NewerFormat
from shared.identity import chunk_identity, ids_hash
from shared.kv_format import SealKey, SealKeys, inspect_chunk, write_chunk
from shared.kv_format.reader import frame_of
from shared.kv_format.writer import read_ends, sealed_tail
from shared.kv_reports import VerifyProgress
from shared.kv_types import Manifest, ManifestChunk, Origin
from shared.request import RequestContext
from tests.dict_blobs import DictBlobs
from tests.kv_chunks import chunk_bytes, chunk_id_of, header_of, kv_of, origin_of
from tests.kv_stores import KnownNodes, agent_on, in_pieces

CTX = RequestContext.create(tenant="acme", deadline_ms=36_000_000)
OLD, NEW = SealKey(b"o" * 32), SealKey(b"n" * 32)
KEYS = SealKeys([OLD])
A, B = chunk_id_of(0), chunk_id_of(1)
DOCUMENT = Manifest("acme", "books", "1", chunks=(ManifestChunk(A, (1,)),))
objects_too = pytest.mark.parametrize("objects", [None, DictBlobs], ids=["disk only", "object store"])
Objects = Callable[[], DictBlobs] | None


def node(directory: Path, keys: SealKeys | None = KEYS, objects: DictBlobs | None = None) -> Agent:
    return agent_on(directory, "home", KnownNodes(), objects=objects, keys=keys)


async def put(agent: Agent, chunk_id: str, seed: int = 0) -> None:
    data = chunk_bytes(chunk_id, seed)
    await agent.put(CTX, chunk_id, len(data), in_pieces(data), origin_of(chunk_id))


async def stored(agent: Agent, chunk_id: str) -> Path:
    (opened,) = await agent.open(CTX, [chunk_id])
    return Path(opened.path)


async def verified(agent: Agent, repair: bool = False, seal: bool = False) -> list[VerifyProgress]:
    return [progress async for progress in agent.verify(CTX, repair, seal)]


def forge(path: Path) -> None:
    """Other KV in the place of a sealed file, with checksums that fit, and the MAC that was there."""
    with open(path, "rb") as file:
        mac, header = frame_of(file.fileno()).seal.mac, inspect_chunk(path).header
    path.unlink()
    write_chunk(path, header, *kv_of(header, seed=7))
    with open(path, "r+b") as file:
        seal = frame_of(file.fileno()).seal
        _, footer = read_ends(file.fileno(), seal.layout)
        file.seek(seal.layout.tail_offset)
        file.write(sealed_tail(replace(seal, mac=mac), footer))
        file.truncate()


@objects_too
async def test_what_comes_in_is_sealed_wherever_it_is_kept(tmp_path: Path, objects: Objects) -> None:
    bucket = objects() if objects else None
    agent = node(tmp_path, objects=bucket)
    await put(agent, A)
    path = Path(await agent.stage(CTX)) / "mine"
    path.write_bytes(chunk_bytes(B))
    await agent.adopt(CTX, B, "", str(path), origin=origin_of(B))
    for chunk_id in (A, B):
        assert inspect_chunk(await stored(agent, chunk_id), KEYS).key_id == OLD.id.hex()
    last = (await verified(agent))[-1]
    assert (last.num_copies, last.num_unsealed) == (2 if bucket is None else 4, 0)
    agent.check_invariants()


async def test_a_forged_file_is_not_read_and_verify_names_it(tmp_path: Path) -> None:
    agent = node(tmp_path)
    await put(agent, A)
    forge(await stored(agent, A))
    assert not (await agent.open(CTX, [A]))[0].exists
    again = node(tmp_path / "other")
    await put(again, A)
    forge(await stored(again, A))
    (damaged,) = [d for progress in await verified(again) for d in progress.damaged]
    assert "forged" in damaged.reason


async def test_repair_brings_a_good_copy_in_the_place_of_a_forged_object(tmp_path: Path) -> None:
    bucket = DictBlobs()
    agent = node(tmp_path, objects=bucket)
    await put(agent, A)
    name = blob_of(A)
    forged = tmp_path / "forged.arrow"
    forged.write_bytes(b"".join(bucket.read(name)))
    forge(forged)
    bucket.put(name, forged.read_bytes())
    (damaged,) = [d for progress in await verified(agent, repair=True) for d in progress.damaged]
    assert (damaged.tier, damaged.restored) == ("objects", True)
    assert [d for progress in await verified(agent) for d in progress.damaged] == []


@objects_too
async def test_what_an_earlier_version_stored_opens_is_counted_and_can_be_sealed(
    tmp_path: Path, objects: Objects
) -> None:
    bucket = objects() if objects else None
    earlier = node(tmp_path, None, bucket)
    await put(earlier, A)
    document = Manifest("acme", "books", "1", chunks=(ManifestChunk(A, (1,)),))
    await earlier.put_manifest(CTX, document)
    await earlier.close()

    agent = node(tmp_path, KEYS, bucket)
    await agent.recover(CTX)
    assert (await agent.open(CTX, [A]))[0].exists
    assert await agent.get_manifest(CTX, "books", "1") == document
    found = await verified(agent)
    assert (found[-1].num_unsealed, found[0].num_unsealed_documents) == (1, 1)
    sealing = await verified(agent, seal=True)
    assert (sealing[-1].num_sealed, sealing[0].num_sealed_documents) == (1, 1)
    after = await verified(agent)
    assert (after[-1].num_unsealed, sum(p.num_unsealed_documents for p in after)) == (0, 0)
    strict = node(tmp_path, SealKeys([OLD], required=True), bucket)
    await strict.recover(CTX)
    assert (await strict.open(CTX, [A]))[0].exists
    assert await strict.get_manifest(CTX, "books", "1") == document


async def test_where_seals_are_required_a_file_without_one_is_not_read(tmp_path: Path) -> None:
    await put(node(tmp_path, None), A)
    agent = node(tmp_path, SealKeys([OLD], required=True))
    assert not (await agent.open(CTX, [A]))[0].exists


async def test_where_seals_are_required_what_comes_in_is_stored_with_one(tmp_path: Path) -> None:
    agent = node(tmp_path, SealKeys([OLD], required=True))
    await put(agent, A)
    assert (await agent.open(CTX, [A]))[0].exists
    await agent.put_manifest(CTX, DOCUMENT)
    again = node(tmp_path, SealKeys([OLD], required=True))
    assert (await again.open(CTX, [A]))[0].exists
    assert await again.get_manifest(CTX, DOCUMENT.collection, DOCUMENT.document_id) == DOCUMENT


async def test_a_new_key_takes_over_and_the_old_one_can_go(tmp_path: Path) -> None:
    await put(node(tmp_path), A)
    both = node(tmp_path, SealKeys([NEW, OLD]))
    await put(both, B)
    assert [(p.num_unsealed, p.num_sealed) for p in (await verified(both, seal=True))[-1:]] == [(0, 1)]
    alone = node(tmp_path, SealKeys([NEW]))
    assert all(chunk.exists for chunk in await alone.open(CTX, [A, B]))


async def test_files_of_a_key_that_is_gone_are_left_alone(tmp_path: Path) -> None:
    agent = node(tmp_path)
    await put(agent, A)
    path = await stored(agent, A)
    other = node(tmp_path, SealKeys([NEW]))
    assert not (await other.open(CTX, [A]))[0].exists
    assert [d for p in await verified(other, repair=True) for d in p.damaged] == []
    assert path.exists()
    assert (await node(tmp_path).open(CTX, [A]))[0].exists


@objects_too
async def test_documents_of_a_key_that_is_gone_are_told_of(tmp_path: Path, objects: Objects) -> None:
    bucket = objects() if objects else None
    agent = node(tmp_path / "here", objects=bucket)
    await put(agent, A)
    await agent.put_manifest(CTX, DOCUMENT)
    assert "secret" not in (await agent.health(CTX)).detail
    place = tmp_path / ("here" if bucket is None else "anew")
    other = node(place, SealKeys([NEW]), bucket)
    assert (await other.manifest_page(CTX)).manifests == ()
    health = await other.health(CTX)
    assert (health.ready, health.facts["documents"]) == (True, "0")
    assert "1 documents were stored by a later version of kvquilt or with a secret" in health.detail
    with pytest.raises(NewerFormat, match="with a secret that is not here"):
        await other.put_manifest(CTX, DOCUMENT)
    both = node(place, SealKeys([NEW, OLD]), bucket)
    assert len((await both.manifest_page(CTX)).manifests) == 1
    assert (await both.health(CTX)).detail == ""


# ---- identities of what is adopted


async def adopt(agent: Agent, chunk_id: str, data: bytes, **options: object) -> bool:
    path = Path(await agent.stage(CTX)) / "mine"
    path.write_bytes(data)
    try:
        return await agent.adopt(CTX, chunk_id, "", str(path), **options)  # type: ignore[arg-type]
    finally:
        assert not path.exists()


@pytest.mark.parametrize(
    ("tenant", "origin"),
    [("other", origin_of(A)), ("acme", Origin((1, 2))), ("acme", Origin((9,), origin_of(A).parent_id))],
    ids=["another tenant", "another parent", "another prefix"],
)
async def test_an_adopted_file_must_be_what_its_identity_names(
    tmp_path: Path, tenant: str, origin: Origin
) -> None:
    agent = node(tmp_path)
    path = Path(await agent.stage(CTX)) / "mine"
    path.write_bytes(chunk_bytes(A))
    ctx = RequestContext.create(tenant=tenant)
    with pytest.raises(InvalidRequest, match="not the identity"):
        await agent.adopt(ctx, A, "", str(path), origin=origin)
    assert not path.exists()
    assert not (await agent.open(CTX, [A]))[0].exists


async def test_other_tokens_under_a_stored_identity_replace_nothing(tmp_path: Path) -> None:
    agent = node(tmp_path)
    await put(agent, A)
    before = (await stored(agent, A)).read_bytes()
    header = replace(header_of(chunk_id=A), token_ids=(1, 2, 3), ids_hash=ids_hash((1, 2, 3)))
    write_chunk(tmp_path / "forged", header, *kv_of(header))
    forged = (tmp_path / "forged").read_bytes()
    for origin in (origin_of(A), Origin(stored=True)):
        with pytest.raises(InvalidRequest):
            await adopt(agent, A, forged, replace=True, origin=origin)
    assert (await stored(agent, A)).read_bytes() == before


async def test_without_an_origin_a_file_replaces_the_same_chunk_in_another_encoding_only(
    tmp_path: Path,
) -> None:
    agent = node(tmp_path)
    same = Origin(stored=True)
    with pytest.raises(InvalidRequest, match=r"^origin: "):
        await adopt(agent, A, chunk_bytes(A), origin=same)
    await put(agent, A)
    header = header_of(chunk_id=A, encoding="int8")
    write_chunk(tmp_path / "converted", header, *kv_of(header))
    assert await adopt(agent, A, (tmp_path / "converted").read_bytes(), replace=True, origin=same)
    assert inspect_chunk(await stored(agent, A), KEYS).header.encoding == "int8"


def test_the_chunks_of_these_tests_are_what_they_say() -> None:
    header, origin = header_of(chunk_id=A), origin_of(A)
    of = (header.model_fingerprint, origin.prefix_ids, header.token_ids, origin.parent_id)
    assert chunk_identity("acme", *of) == A


# ---- manifests and pins


DOCUMENT = Manifest("acme", "books", "1", "Title", chunks=(ManifestChunk(A, (1,), text="Sunday"),))


@pytest.mark.parametrize("readers", [(), ("hr",)])
def test_every_manifest_is_sealed_and_json_that_who_has_no_key_reads(readers: tuple[str, ...]) -> None:
    document = replace(DOCUMENT, readers=readers)
    data = encode(document, KEYS)
    assert KEYS.is_current(key_id_of(data))
    assert decode(data) == decode(data, SealKeys([OLD], required=True)) == document


def test_a_forged_manifest_is_damaged_and_restored_by_its_second_copy(tmp_path: Path) -> None:
    documents = Documents(tmp_path, keys=KEYS)
    documents.put(DOCUMENT)
    (path,) = (tmp_path / "manifests").rglob("*.json")
    forged = replace(DOCUMENT, chunks=(replace(DOCUMENT.chunks[0], text="Monday"),))
    path.write_bytes(with_mac_of(encode(DOCUMENT, KEYS), encode(forged)))
    assert [(d.name, d.restored) for d in documents.verify(repair=True)] == [("acme/books/1", True)]
    assert documents.get("acme", "books", "1") == DOCUMENT


def with_mac_of(sealed: bytes, forged: bytes) -> bytes:
    """The forged manifest with the MAC of the honest one, and a checksum that fits."""
    mac = sealed[sealed.index(b'"mac"') : sealed.index(b'","version"') + 2]
    body = mac + forged[forged.index(b'"version"') : -2]
    return b'{"xxh3_64":"' + checksum_of(body) + b'",' + body + b"}\n"
