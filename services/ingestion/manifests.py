"""Makes manifests of drafts, and of manifests what the index and the caller are told."""

from __future__ import annotations

from functools import reduce

from services.ingestion.chains import blocks_of, identified
from services.ingestion.recipe import Draft
from shared.documents import Stage, UpsertProgress
from shared.generation.described import ModelDescription
from shared.identity import kv_owner
from shared.kv_types import Manifest
from shared.readers import EVERYBODY, Readers, both
from shared.search import IndexedChunk, IndexedDocument


def manifest_of(
    tenant: str, collection: str, model: ModelDescription, draft: Draft, created_s: float
) -> Manifest:
    of = (kv_owner(tenant, model.kv_scope), model.fingerprint, model.prefix_ids)
    return Manifest(
        tenant=tenant,
        collection=collection,
        document_id=draft.document_id,
        title=draft.title,
        source_hash=draft.source_hash,
        model_fingerprint=model.fingerprint,
        prefix_ids=model.prefix_ids,
        chunks=identified(of, draft.chunks),
        metadata=draft.metadata,
        created_s=created_s,
        kv_context=draft.kv_context,
        readers=draft.readers,
        sections=draft.sections,
        kv_scope=model.kv_scope,
    )


def indexed_of(manifest: Manifest) -> IndexedDocument:
    made = manifest.made_for
    return IndexedDocument(
        document_id=manifest.document_id,
        title=manifest.title,
        model_fingerprint=manifest.model_fingerprint,
        chunks=tuple(
            IndexedChunk(
                *(c.chunk_id, c.text, c.token_ids, c.heading, c.char_start, c.char_end, c.parent_id),
                place=place,
                block=block,
                readers=manifest.readers_of(place - 1),
            )
            for place, (c, block) in enumerate(zip(manifest.chunks, blocks_of(manifest), strict=True), 1)
        ),
        metadata=manifest.metadata,
        # of a document of an earlier version nothing: its rows are as they should be
        prefix_hash=made.prefix if made.template else "",
        template_hash=made.template,
        kv_context=made.kv_context,
    )


def fewer_readers(old: Manifest, new: Manifest) -> Readers | None:
    """Those who may read all of ``new``, where somebody reads something of ``old`` who is not among them;
    None: nobody loses anything."""
    before = {old.readers_of(i) for i in range(len(old.chunks))}
    after = {new.readers_of(i) for i in range(len(new.chunks))}
    common = reduce(both, sorted(after), EVERYBODY)
    loses = before != after and any(both(readers, common) != readers for readers in before)
    return common if loses else None


def progress_of(manifest: Manifest, stage: Stage, done: int | None = None, reused: int = 0) -> UpsertProgress:
    """``done`` None: all, where the stage is a last one."""
    num_chunks = len(manifest.chunks)
    return UpsertProgress(
        document_id=manifest.document_id,
        stage=stage,
        num_chunks=num_chunks,
        num_chunks_done=done if done is not None else (0 if stage is Stage.PARSED else num_chunks),
        num_tokens=sum(len(c.token_ids) for c in manifest.chunks),
        num_chunks_reused=reused,
    )
