"""`kvquilt store export` and `import`: a collection out of one store into a file, and out of the file into
another."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Protocol

import xxhash
from rich.console import Console

from cluster.archive.tar import MANIFESTS, Archive, ArchiveWriter, Head, chunk_id_of, storing
from cluster.cli.store_upkeep import scrub_bar
from services.kv_store.documents.manifest_json import decode, encode
from services.kv_store.tiers.chunk_files import verified
from shared.errors import CorruptData, FailedPrecondition, InvalidRequest, ModelMismatch, NotFound
from shared.generation.described import ModelDescription
from shared.identity import chunk_identity, ids_hash, kv_owner
from shared.kv_format import verify_chunk
from shared.kv_format.renaming import rename_chunk
from shared.kv_stores import Store
from shared.kv_types import PIECE_BYTES, Manifest, Origin
from shared.request import RequestContext, check_name


class ArchiveStore(Store, Protocol):
    def list_manifests(self, ctx: RequestContext, collection: str = "") -> AsyncGenerator[Manifest, None]: ...


@dataclass(frozen=True, slots=True)
class Transferred:
    """Counts of what went into the file, or out of it. ``num_sent``: chunks that were not there before."""

    collection: str
    num_documents: int
    num_chunks: int
    num_sent: int


async def export_collection(
    console: Console, store: ArchiveStore, ctx: RequestContext, collection: str, target: Path
) -> Transferred:
    """
    Raises:
        NotFound: no such collection.
        FailedPrecondition: a chunk is not stored whole.
        StorageFull: no space for the file.
    """
    check_name("collection", collection)
    with storing(), tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as scratch:
        spool, chunk_file = Path(scratch) / "manifests", Path(scratch) / "chunk"
        head, chunk_ids = await _spool(store, ctx, collection, spool)
        writer = ArchiveWriter(target, head, chunk_file)
        try:
            already = len(writer.chunk_ids)
            with scrub_bar(console) as bar:
                task = bar.add_task("exporting", total=len(chunk_ids), completed=already)
                for chunk_id in chunk_ids:
                    if chunk_id not in writer.chunk_ids:
                        await _fetch(store, ctx, chunk_id, chunk_file)
                        writer.add_chunk(chunk_id, chunk_file)
                        bar.advance(task)
            with open(spool, "rb") as manifests:
                for number, line in enumerate(manifests):
                    writer.add_manifest(number, line)
            writer.finish()
        finally:
            writer.close()
    return Transferred(collection, head.num_documents, head.num_chunks, head.num_chunks - already)


async def import_collection(
    console: Console,
    store: ArchiveStore,
    ctx: RequestContext,
    model: ModelDescription,
    source: Path,
    collection: str = "",
) -> Transferred:
    """For the tenant of ``ctx``; ``collection`` empty: the one it was exported from. Chunks go in before
    their documents.

    Identities name the tenant, or the scope that it shares KV in, so for another one than the archive's every
    chunk gets the identity that it has there.

    Raises:
        InvalidRequest: the file is no export.
        ModelMismatch: its KV is of another model than the one being served.
        CorruptData: it is damaged; chunks that are in by then are collected as garbage, whole documents stay.
    """
    num_chunks = num_documents = num_sent = 0
    with Archive(source) as archive, tempfile.TemporaryDirectory() as scratch:
        head, chunk_file = archive.head, Path(scratch) / "chunk"
        collection = check_name("collection", collection or head.collection)
        _check_model(head, model)
        archive.check_complete()
        places: dict[str, _Place] = {}  # of chunks behind others, or of a scope's
        for member in archive.members():
            if member.name.startswith(MANIFESTS):
                manifest = _manifest(archive.read(member))
                moved = _moved(manifest, head, ctx.tenant, model.kv_scope, collection)
                places |= {
                    old.chunk_id: _Place(manifest.kv_owner, old.parent_id, new.parent_id)
                    for old, new in zip(manifest.chunks, moved.chunks, strict=True)
                    if old.parent_id or manifest.kv_scope
                }
        with scrub_bar(console) as bar:
            task = bar.add_task("importing", total=head.num_chunks)
            for member in archive.members():
                if chunk_id := chunk_id_of(member):
                    archive.copy_to(member, chunk_file)
                    place = places.get(chunk_id, _Place(head.tenant))
                    chunk_id = _adapted(
                        chunk_file, chunk_id, place, model, kv_owner(ctx.tenant, model.kv_scope)
                    )
                    origin = Origin(model.prefix_ids, place.new_parent)
                    num_sent += await _send(store, ctx, chunk_id, chunk_file, origin)
                    num_chunks += 1
                    bar.advance(task)
                elif member.name.startswith(MANIFESTS):
                    manifest = _manifest(archive.read(member))
                    moved = _moved(manifest, head, ctx.tenant, model.kv_scope, collection)
                    await store.put_manifest(ctx, moved)
                    num_documents += 1
    return Transferred(collection, num_documents, num_chunks, num_sent)


async def _spool(
    store: ArchiveStore, ctx: RequestContext, collection: str, spool: Path
) -> tuple[Head, list[str]]:
    """Writes the documents to a file, a line each; the chunks that they need."""
    num_documents, digest = 0, xxhash.xxh3_128()
    chunk_ids: dict[str, None] = {}
    models: dict[tuple[str, tuple[int, ...]], None] = {}
    with open(spool, "wb") as file:
        async with aclosing(store.list_manifests(ctx, collection)) as manifests:
            async for manifest in manifests:
                _check_tenant(manifest, ctx)
                # Whoever imports it may have another auxiliary model, or none; its KV is made there.
                line = encode(manifest.without_auxiliary())
                file.write(line)
                digest.update(line)
                num_documents += 1
                chunk_ids |= dict.fromkeys(c.chunk_id for c in manifest.chunks)
                models[manifest.model_fingerprint, manifest.prefix_ids] = None
    if not num_documents:
        raise NotFound(f"collection {collection!r} does not exist")
    head = Head(ctx.tenant, collection, tuple(models), num_documents, len(chunk_ids), digest.hexdigest())
    return head, list(chunk_ids)


def _check_tenant(manifest: Manifest, ctx: RequestContext) -> None:
    """
    Raises:
        InvalidRequest: the key is another tenant's than the one that the archive would name.
    """
    if manifest.tenant != ctx.tenant:
        raise InvalidRequest(f"--tenant: the key is of tenant {manifest.tenant!r}; name it")


async def _fetch(store: ArchiveStore, ctx: RequestContext, chunk_id: str, path: Path) -> None:
    try:
        with open(path, "wb") as file:
            async with aclosing(store.get(ctx, chunk_id)) as pieces:
                async for piece in pieces:
                    file.write(piece)
        verified(path, chunk_id)
    except (NotFound, CorruptData) as error:
        raise FailedPrecondition(
            f"{error.detail}; run `kvquilt store repair`, then the same export again: it goes on where "
            "it stopped"
        ) from None


def _check_model(head: Head, model: ModelDescription) -> None:
    for fingerprint, prefix_ids in head.models:
        if (fingerprint, prefix_ids) != (model.fingerprint, model.prefix_ids):
            raise ModelMismatch(
                f"the export holds KV of another model or prefix (fingerprint {fingerprint[:12]}…) "
                "than the one being served "
                f"({model.fingerprint[:12]}…); serve that model to import it, or ingest the documents "
                "themselves"
            )


class _Place(NamedTuple):
    """Whose a chunk of the archive is, and the identity of what it is computed behind, there and here."""

    owner: str
    parent: str = ""
    new_parent: str = ""


def _adapted(path: Path, chunk_id: str, place: _Place, model: ModelDescription, owner: str) -> str:
    """Verifies the file and gives it the identity that its KV has as ``owner``'s."""
    header = verify_chunk(path, chunk_id).header
    of = (header.model_fingerprint, model.prefix_ids, header.token_ids)
    is_its_own = header.chunk_id == chunk_id == chunk_identity(place.owner, *of, place.parent)
    if not is_its_own or header.prefix_hash != ids_hash(model.prefix_ids):
        raise CorruptData(
            f"chunk {chunk_id}: it is not the KV that its identity names; export the collection again"
        )
    new_id = chunk_identity(owner, *of, place.new_parent)
    if new_id != chunk_id:
        rename_chunk(path, new_id)
    return new_id


def _manifest(data: bytes) -> Manifest:
    try:
        return decode(data).without_auxiliary()
    except ValueError as error:
        raise CorruptData(
            f"a document of the archive is damaged ({error}); export the collection again"
        ) from None


def _moved(manifest: Manifest, head: Head, tenant: str, scope: str, collection: str) -> Manifest:
    """With the identities that its chunks, and what they are computed behind, have for ``tenant``; ``scope``:
    that it shares KV in."""
    of, chunks = (manifest.model_fingerprint, manifest.prefix_ids), []
    old, new = kv_owner(head.tenant, manifest.kv_scope), kv_owner(tenant, scope)
    renamed = {"": ""}
    for chunk in manifest.chunks:
        if chunk.header_ids and chunk.parent_id == chunk_identity(old, *of, chunk.header_ids):
            renamed[chunk.parent_id] = chunk_identity(new, *of, chunk.header_ids)
        parent_id = renamed.get(chunk.parent_id)
        if parent_id is None or chunk.chunk_id != chunk_identity(old, *of, chunk.token_ids, chunk.parent_id):
            raise CorruptData(f"document {manifest.document_id!r}: it names chunks that are not its own")
        chunk_id = renamed[chunk.chunk_id] = chunk_identity(new, *of, chunk.token_ids, parent_id)
        chunks.append(replace(chunk, chunk_id=chunk_id, parent_id=parent_id))
    return replace(manifest, tenant=tenant, collection=collection, chunks=tuple(chunks), kv_scope=scope)


async def _send(store: ArchiveStore, ctx: RequestContext, chunk_id: str, path: Path, origin: Origin) -> bool:
    """Whether it was not there before."""
    (stored,) = await store.stat(ctx, [chunk_id])
    size_bytes = path.stat().st_size
    return not stored.exists and not await store.put(ctx, chunk_id, size_bytes, _pieces(path), origin)


async def _pieces(path: Path) -> AsyncIterator[bytes]:
    with open(path, "rb") as file:
        while piece := file.read(PIECE_BYTES):
            yield piece
