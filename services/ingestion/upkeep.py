"""Upkeep of documents that are stored already: their index (from the manifests) and their KV (from the
manifests' token ids).

Both runs look at every document anew when its turn comes, under the document's lock, so they may run while
documents come and go; and both find at once what is as it should be, so an interrupted run goes on when it is
started again.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial

from services.ingestion.run import run_documents
from services.ingestion.upsert import DocumentStore, Report
from shared.documents import Stage, UpsertProgress
from shared.errors import ModelMismatch, NotFound
from shared.kv_types import Manifest
from shared.locks import Locks
from shared.readers import check_reads_everything
from shared.request import RequestContext, check_name

log = logging.getLogger(__name__)


class DocumentUpkeep:
    """Documents are named by their id, or as ``collection/document_id`` in a run over all collections."""

    def __init__(self, store: DocumentStore, locks: Locks, parallel: int) -> None:
        self._store, self._locks, self._parallel = store, locks, parallel

    async def rebuild(self, ctx: RequestContext, collection: str) -> AsyncGenerator[UpsertProgress, None]:
        """Makes the index say what the manifests of ``collection`` (empty: of all) say, and nothing else.
        What was indexed with another embedder is searched until the whole collection is indexed with the
        configured one.

        Raises:
            NotFound: neither manifests nor the index know the collection.
            PermissionDenied: it is to be indexed with another embedder, and the caller does not read all of
            it.
        """
        _check_collection(collection)
        keys = dict.fromkeys([m.cursor(collection) async for m in self._store.summaries(ctx, collection)])
        indexed, outdated = await self._indexed(ctx, collection, {_split(collection, key)[0] for key in keys})
        keys |= dict.fromkeys(indexed)
        if outdated:
            check_reads_everything(ctx.principal, "indexing a collection with another embedder")
        if collection and not keys:
            raise unknown(collection)

        async def work(ctx: RequestContext, key: str, report: Report) -> None:
            name, document_id = _split(collection, key)
            async with self._locks.hold(ctx.tenant, name, document_id):
                manifest = await self._store.stored(ctx, name, document_id)
                if manifest is not None and manifest.chunks:
                    anew = name in outdated
                    return await self._store.keep(ctx, manifest, _as(key, report), anew=anew)
                await self._store.unindex(ctx, name, [document_id])
                return report(UpsertProgress(key, Stage.REMOVED))

        failed = set()
        async with aclosing(run_documents(ctx, list(keys), work, self._parallel)) as progress:
            async for event in progress:
                if event.stage is Stage.FAILED:
                    failed.add(_split(collection, event.document_id)[0])
                yield event
        for name in sorted(outdated - failed):
            await self._store.policy.run(ctx, partial(self._store.index.adopt, collection=name))

    async def refresh(
        self, ctx: RequestContext, collection: str, chunk_ids: Sequence[str], encoding: str
    ) -> AsyncGenerator[UpsertProgress, None]:
        """Makes the KV of ``collection`` (empty: of all) whole; of ``chunk_ids`` only, if there are any; in
        ``encoding``, if named.

        Raises:
            NotFound: no such collection.
        """
        _check_collection(collection)
        named = frozenset(chunk_ids)
        model = await self._store.policy.run(ctx, self._store.generator.describe)
        found = {
            m.cursor(collection): _concerns(m, named) async for m in self._store.summaries(ctx, collection)
        }
        if collection and not found:
            raise unknown(collection)
        auxiliary = await self._store.auxiliary(ctx, model)

        async def work(ctx: RequestContext, key: str, report: Report) -> None:
            name, document_id = _split(collection, key)
            async with self._locks.hold(ctx.tenant, name, document_id):
                manifest = await self._store.stored(ctx, name, document_id)
                if manifest is None:  # deleted meanwhile
                    return report(UpsertProgress(key, Stage.REMOVED))
                if what := manifest.made_for.stored_apart_from(model.made_for):
                    raise ModelMismatch(
                        f"made for another {what} than the one being served, so its KV cannot be computed "
                        "as it was; make it anew: "
                        f"kvquilt ingest --re-encode --collection {name}"
                    )
                return await self._store.refresh(ctx, manifest, named, encoding, _as(key, report), auxiliary)

        chosen = [key for key, concerned in found.items() if concerned]
        async with aclosing(run_documents(ctx, chosen, work, self._parallel)) as progress:
            async for event in progress:
                yield event

    async def _indexed(
        self, ctx: RequestContext, collection: str, stored: set[str]
    ) -> tuple[list[str], set[str]]:
        """Keys of the documents in the index, and the collections that were indexed with another embedder."""
        store, keys, outdated = self._store, [], set()
        known = {c.name for c in await store.policy.run(ctx, store.index.list_collections)}
        for name in [collection] if collection else sorted(known | stored):
            indexed = await store.policy.run(ctx, partial(store.index.list_indexed, collection=name))
            if indexed.other_embedder:
                log.info("collection %s was indexed with another embedder: indexing it anew", name)
                outdated.add(name)
            keys += [
                document_id if collection else f"{name}/{document_id}" for document_id in indexed.document_ids
            ]
        return keys, outdated


def unknown(collection: str) -> NotFound:
    return NotFound(f"collection {collection!r} does not exist")


def _check_collection(collection: str) -> None:
    if collection:
        check_name("collection", collection)


def _split(collection: str, key: str) -> tuple[str, str]:
    """Collection and document id of a key."""
    if collection:
        return collection, key
    name, _, document_id = key.partition("/")
    return name, document_id


def _as(key: str, report: Report) -> Report:
    return lambda progress: report(replace(progress, document_id=key))


def _concerns(manifest: Manifest, chunk_ids: frozenset[str]) -> bool:
    return not chunk_ids or any(kv_id in chunk_ids for kv_id in manifest.kv_ids)
