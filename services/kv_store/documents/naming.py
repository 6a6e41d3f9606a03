"""Says which KV a document may not name: whoever refers to KV may read it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from services.kv_store.documents.catalog import Document
from services.kv_store.documents.documents import Documents
from shared.errors import CorruptData, FailedPrecondition, NewerFormat, NotFound
from shared.kv_stores import ReadableChunks
from shared.kv_types import Manifest
from shared.principals.principal import Principal, Role
from shared.request import RequestContext

MOST_READ = 8
"""Documents whose texts are compared, for each auxiliary id."""


async def check_named(store: ReadableChunks, ctx: RequestContext, manifest: Manifest) -> None:
    """Of a manifest that a caller made: it may name KV that follows from its own token ids, and KV of
    documents that he may read. KV that is no document's yet is known by its identity alone, whosever it is.

    Raises:
        FailedPrecondition: it names other KV, whether that is there or not.
    """
    if ctx.principal.may(Role.INTERNAL):
        return
    others = sorted(set(manifest.kv_ids) - manifest.derived_ids)
    if unknown := set(others).difference(await store.readable(ctx, others) if others else ()):
        raise not_stored(len(unknown), manifest)


def not_stored(num_missing: int, manifest: Manifest) -> FailedPrecondition:
    return FailedPrecondition(
        f"{num_missing} of {len(manifest.kv_ids)} chunks of the document are not stored; prefill them again"
    )


def unreadable_ids(documents: Documents, manifest: Manifest, who: Principal) -> set[str]:
    """Ids of the manifest that only documents have which ``who`` may not read, or another tenant's. Not
    those that follow from its own token ids, nor those of auxiliary KV over texts of its own chunks."""
    having = documents.having(manifest.kv_ids)
    unreadable = {kv_id for kv_id, found in having.items() if not _shown(found, manifest.tenant, who, kv_id)}
    unreadable = unreadable and unreadable - manifest.derived_ids
    return {kv_id for kv_id in unreadable if not _has_its_text(documents, manifest, kv_id, having[kv_id])}


def _shown(having: Sequence[Document], tenant: str, who: Principal, kv_id: str) -> bool:
    """Nobody has it, or the tenant alone does, in a document that ``who`` may read."""
    if any(document.tenant != tenant for document in having):
        return False
    return not having or any(document.shows(who, kv_id) for document in having)


def _has_its_text(
    documents: Documents, manifest: Manifest, auxiliary_id: str, having: Sequence[Document]
) -> bool:
    """Chunks of the manifest with this auxiliary KV have the text that those of its tenant's documents have,
    which is the same in all of them."""
    texts = _texts(manifest, auxiliary_id)
    if not texts or "" in texts or any(document.tenant != manifest.tenant for document in having):
        return False
    for document in having[:MOST_READ]:
        with suppress(NotFound, CorruptData, NewerFormat):  # it changed meanwhile, or is damaged
            if texts <= _texts(documents.get(*document.key), auxiliary_id):
                return True
    return False


def _texts(manifest: Manifest, auxiliary_id: str) -> set[str]:
    return {chunk.text for chunk in manifest.chunks if chunk.auxiliary_id == auxiliary_id}
