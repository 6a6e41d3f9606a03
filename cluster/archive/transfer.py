"""`kvquilt store export` and `import`: a collection, or all that a tenant has, out of one store into a file,
and out of the file into another."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import xxhash
from rich.console import Console

from cluster.archive.adapting import Place, adapted, check_model, moved, moved_item, read_manifest
from cluster.archive.items import (
    content_of,
    decode_item,
    encode_item,
    items_to_move,
    must_be_put,
    put,
)
from cluster.archive.tar import (
    MANIFESTS,
    Archive,
    ArchiveWriter,
    Head,
    chunk_id_of,
    item_name_of,
    storing,
)
from cluster.cli.store_upkeep import scrub_bar
from services.kv_store.documents.manifest_json import encode
from services.kv_store.tiers.chunk_files import verified
from shared.errors import CorruptData, FailedPrecondition, InvalidRequest, NotFound
from shared.generation.described import ModelDescription
from shared.identity import kv_owner
from shared.kv_items import Item
from shared.kv_stores import Store
from shared.kv_types import PIECE_BYTES, Manifest, Origin
from shared.request import RequestContext, check_name


class ArchiveStore(Store, Protocol):
    def list_manifests(self, ctx: RequestContext, collection: str = "") -> AsyncGenerator[Manifest, None]: ...


@dataclass(frozen=True, slots=True)
class Transferred:
    """Counts of what went into the file, or out of it. ``num_sent``, ``num_items_sent``: chunks and items
    that were not there before. ``collection`` empty: all of the tenant's."""

    collection: str
    num_documents: int
    num_chunks: int
    num_sent: int
    num_items: int = 0
    num_items_sent: int = 0


async def export_collection(
    console: Console,
    store: ArchiveStore,
    ctx: RequestContext,
    collection: str,
    target: Path,
    with_items: bool = True,
) -> Transferred:
    """``collection`` empty: all that the tenant has. ``with_items``: also what front doors keep of it.

    Raises:
        NotFound: no such collection.
        FailedPrecondition: a chunk or an item is not stored whole.
        PermissionDenied: the caller does not read all items.
        StorageFull: no space for the file.
    """
    if collection:
        check_name("collection", collection)
    with storing(), tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as scratch:
        spool, chunk_file = Path(scratch) / "manifests", Path(scratch) / "chunk"
        head, chunk_ids, items = await _spool(store, ctx, collection, spool, with_items)
        writer = ArchiveWriter(target, head, chunk_file)
        try:
            already, items_already = len(writer.chunk_ids), len(writer.item_names)
            with scrub_bar(console) as bar:
                num = len(chunk_ids) + len(items)
                task = bar.add_task("exporting", total=num, completed=already + items_already)
                for item in items:
                    if item.name not in writer.item_names:
                        content = await content_of(store, ctx, item)
                        writer.add_item(item.name, encode_item(item, content))
                        bar.advance(task)
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
    counts = head.num_documents, head.num_chunks, head.num_chunks - already
    return Transferred(collection, *counts, head.num_items, head.num_items - items_already)


async def import_collection(
    console: Console,
    store: ArchiveStore,
    ctx: RequestContext,
    model: ModelDescription,
    source: Path,
    collection: str = "",
    with_items: bool = True,
    replaces: bool = False,
) -> Transferred:
    """For the tenant of ``ctx``; ``collection`` empty: the one it was exported from. Items go in first,
    chunks before their documents. ``with_items``: also what front doors kept of it; ``replaces``: in the
    place of other items of the same name.

    Items are as old as they were, and whose they were if the tenant is the same; another tenant's become the
    caller's. Identities name the tenant, or the scope that it shares KV in, so for another one than the
    archive's every chunk gets the identity that it has there.

    Raises:
        InvalidRequest: the file is no export, or holds more than one collection.
        Conflict: there is another item of the same name; nothing was changed.
        PermissionDenied: the caller does not read all items. StorageFull: there would be more than there may.
        ModelMismatch: its KV is of another model than the one being served.
        CorruptData: it is damaged; chunks that are in by then are collected as garbage, whole documents stay.
    """
    num_chunks = num_documents = num_sent = num_items = num_items_sent = 0
    with Archive(source) as archive, tempfile.TemporaryDirectory() as scratch:
        head, chunk_file = archive.head, Path(scratch) / "chunk"
        if collection and not head.collection:
            raise InvalidRequest("--collection: the archive holds all collections of a tenant; leave it out")
        if collection := collection or head.collection:
            check_name("collection", collection)
        check_model(head, model)
        archive.check_complete()
        for member in archive.members() if with_items else ():
            if name := item_name_of(member):
                item, _ = decode_item(archive.read(member), name)
                await must_be_put(store, ctx, moved_item(item, head, ctx.tenant, collection), replaces)
        places = _places(archive, ctx.tenant, model.kv_scope)
        with scrub_bar(console) as bar:
            task = bar.add_task("importing", total=head.num_chunks + head.num_items * with_items)
            for member in archive.members():
                if chunk_id := chunk_id_of(member):
                    archive.copy_to(member, chunk_file)
                    place = places.get(chunk_id, Place(head.tenant))
                    chunk_id = adapted(
                        chunk_file, chunk_id, place, model, kv_owner(ctx.tenant, model.kv_scope)
                    )
                    origin = Origin(model.prefix_ids, place.new_parent)
                    num_sent += await _send(store, ctx, chunk_id, chunk_file, origin)
                    num_chunks += 1
                    bar.advance(task)
                elif with_items and (name := item_name_of(member)):
                    item, content = decode_item(archive.read(member), name)
                    item = moved_item(item, head, ctx.tenant, collection)
                    num_items_sent += await put(store, ctx, item, content, replaces)
                    num_items += 1
                    bar.advance(task)
                elif member.name.startswith(MANIFESTS):
                    manifest = read_manifest(archive.read(member))
                    here = moved(manifest, head, ctx.tenant, model.kv_scope, collection)
                    await store.put_manifest(ctx, here)
                    num_documents += 1
    return Transferred(collection, num_documents, num_chunks, num_sent, num_items, num_items_sent)


def _places(archive: Archive, tenant: str, scope: str) -> dict[str, Place]:
    """Of chunks that are computed behind others, or are a scope's."""
    places: dict[str, Place] = {}
    for member in archive.members():
        if member.name.startswith(MANIFESTS):
            manifest = read_manifest(archive.read(member))
            here = moved(manifest, archive.head, tenant, scope, manifest.collection)
            places |= {
                old.chunk_id: Place(manifest.kv_owner, old.parent_id, new.parent_id)
                for old, new in zip(manifest.chunks, here.chunks, strict=True)
                if old.parent_id or manifest.kv_scope
            }
    return places


async def _spool(
    store: ArchiveStore, ctx: RequestContext, collection: str, spool: Path, with_items: bool
) -> tuple[Head, list[str], list[Item]]:
    """Writes the documents to a file, a line each; returns the chunks that they need, and the items."""
    document_ids: list[str] = []
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
                document_ids.append(manifest.document_id)
                chunk_ids |= dict.fromkeys(c.chunk_id for c in manifest.chunks)
                models[manifest.model_fingerprint, manifest.prefix_ids] = None
    items: list[Item] = []
    if with_items:
        async with aclosing(items_to_move(store, ctx, collection, document_ids)) as moving:
            async for item in moving:
                digest.update(encode_item(item))
                items.append(item)
    if not num_documents and not items:
        what = f"collection {collection!r} does not exist" if collection else "there is nothing to export"
        raise NotFound(f"{what} (tenant {ctx.tenant!r})")
    counts = num_documents, len(chunk_ids)
    head = Head(ctx.tenant, collection, tuple(models), *counts, digest.hexdigest(), len(items))
    return head, list(chunk_ids), items


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


async def _send(store: ArchiveStore, ctx: RequestContext, chunk_id: str, path: Path, origin: Origin) -> bool:
    """Whether it was not there before."""
    (stored,) = await store.stat(ctx, [chunk_id])
    size_bytes = path.stat().st_size
    return not stored.exists and not await store.put(ctx, chunk_id, size_bytes, _pieces(path), origin)


async def _pieces(path: Path) -> AsyncIterator[bytes]:
    with open(path, "rb") as file:
        while piece := file.read(PIECE_BYTES):
            yield piece
