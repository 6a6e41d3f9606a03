"""Makes of what an archive holds what it is where it is brought: identities name the tenant."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from cluster.archive.items import renamed
from cluster.archive.tar import Head
from services.kv_store.documents.manifest_json import decode
from shared.errors import CorruptData, ModelMismatch
from shared.generation.described import ModelDescription
from shared.identity import chunk_identity, ids_hash, kv_owner
from shared.kv_format import verify_chunk
from shared.kv_format.renaming import rename_chunk
from shared.kv_items import Item
from shared.kv_types import Manifest


def check_model(head: Head, model: ModelDescription) -> None:
    for fingerprint, prefix_ids in head.models:
        if (fingerprint, prefix_ids) != (model.fingerprint, model.prefix_ids):
            raise ModelMismatch(
                f"the export holds KV of another model or prefix (fingerprint {fingerprint[:12]}…) "
                "than the one being served "
                f"({model.fingerprint[:12]}…); serve that model to import it, or ingest the documents "
                "themselves"
            )


class Place(NamedTuple):
    """Whose a chunk of the archive is, and the identity of what it is computed behind, there and here."""

    owner: str
    parent: str = ""
    new_parent: str = ""


def adapted(path: Path, chunk_id: str, place: Place, model: ModelDescription, owner: str) -> str:
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


def read_manifest(data: bytes) -> Manifest:
    try:
        return decode(data).without_auxiliary()
    except ValueError as error:
        raise CorruptData(
            f"a document of the archive is damaged ({error}); export the collection again"
        ) from None


def moved(manifest: Manifest, head: Head, tenant: str, scope: str, collection: str) -> Manifest:
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
    collection = collection or manifest.collection
    return replace(manifest, tenant=tenant, collection=collection, chunks=tuple(chunks), kv_scope=scope)


def moved_item(item: Item, head: Head, tenant: str, collection: str) -> Item:
    """As ``tenant`` keeps it: principals of one name are others in another tenant."""
    stored_by = item.stored_by if tenant == head.tenant else ""
    return replace(renamed(item, head.collection, collection), stored_by=stored_by)
