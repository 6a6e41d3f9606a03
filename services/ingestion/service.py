"""Upsert, delete, list: which documents are worked on, and whether they may be. (``upkeep``: what is done to
stored ones.)"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import replace

from services.ingestion.checks import checked
from services.ingestion.config import IngestionConfig
from services.ingestion.mixing import mixed_collections, mixing
from services.ingestion.recipe import Draft, Recipe, is_current
from services.ingestion.run import run_documents
from services.ingestion.upkeep import DocumentUpkeep, unknown
from services.ingestion.upsert import DocumentStore, Report
from shared.admission.turns import Turns
from shared.documents import (
    SOURCE_KEY,
    DeletedDocuments,
    DocumentInfo,
    DocumentPage,
    SourceDocument,
    Stage,
    UpsertProgress,
)
from shared.errors import (
    Cancelled,
    FailedPrecondition,
    InvalidRequest,
    KvquiltError,
    NotFound,
    UnreadableDocument,
)
from shared.generation.described import ModelDescription
from shared.kv_types import KvContext, Manifest
from shared.locks import Locks
from shared.request import RequestContext, check_name
from shared.search import check_metadata
from shared.tracing.names import NUM_BYTES, NUM_CHUNKS
from shared.tracing.spans import span

log = logging.getLogger(__name__)

_NO_TOKENIZER = (
    "the model has no tokenizer: it serves requests by token ids, and documents cannot be ingested for it"
)


class IngestionService:
    """``recipe`` None: the model has no tokenizer, so nothing can be ingested; the rest works. An error: it
    cannot be loaded."""

    def __init__(
        self, config: IngestionConfig, recipe: Recipe | KvquiltError | None, store: DocumentStore
    ) -> None:
        self._config = config
        self._recipe = recipe
        self._store = store
        # one: tokenizers are not for several threads
        self._cutting = ThreadPoolExecutor(1, thread_name_prefix="cut")
        self._parsing = ThreadPoolExecutor(config.parallel_documents, thread_name_prefix="parse")
        self._turns = Turns(config.parallel_documents)
        self._locks = Locks()
        self.upkeep = DocumentUpkeep(store, self._locks, config.parallel_documents)

    async def upsert(
        self,
        ctx: RequestContext,
        collection: str,
        documents: Sequence[SourceDocument],
        dry_run: bool = False,
    ) -> AsyncGenerator[UpsertProgress, None]:
        """Adds documents, or replaces those that changed; with ``dry_run`` only says which these are.

        Raises:
            InvalidRequest: no documents, an empty id, or one that comes twice, or readers that cannot be.
            ModelMismatch: this service and the generator were given different models.
        """
        check_name("collection", collection)
        documents = checked(documents)
        recipe, model = await self._prepare(ctx)
        sources = {d.document_id: d for d in documents}
        known = {m.document_id: m async for m in self._store.summaries(ctx, collection)}
        stale = [m for d, m in known.items() if d not in sources and not is_current(m, model)]
        auxiliary = await self._store.auxiliary(ctx, model)

        def unchanged(stored: Manifest | None, source: SourceDocument) -> bool:
            """But perhaps for the readers of all of it."""
            if stored is None or stored.sections != source.sections:
                return False
            stored_apart = stored.made_for.stored_apart_from(model.made_for)
            return recipe.is_of(stored, source) and not stored_apart

        async def work(ctx: RequestContext, document_id: str, report: Report) -> None:
            source = sources[document_id]
            check_metadata(source.metadata)
            self._check_size(source)
            async with self._locks.hold(ctx.tenant, collection, document_id):
                if stale and document_id not in known:
                    raise mixing(collection, stale, model)
                if unchanged(known.get(document_id), source):
                    stored = await self._store.stored(ctx, collection, document_id)
                    # still: others may have changed it meanwhile
                    if stored is not None and unchanged(stored, source):
                        same = stored.readers == source.readers
                        if dry_run:
                            stage = Stage.UNCHANGED if same else Stage.WOULD_STORE
                            return report(UpsertProgress(document_id, stage))
                        if not same:
                            return await self._store.put_readers(ctx, stored, source.readers, report)
                        return await self._store.keep(ctx, stored, report, auxiliary)
                draft = await self._cut(ctx, recipe, source)
                if dry_run:
                    return report(_would_store(draft))
                old = known.get(document_id)
                return await self._store.put(ctx, collection, model, draft, report, auxiliary, old)

        async with aclosing(
            run_documents(ctx, list(sources), work, self._config.parallel_documents)
        ) as progress:
            async for event in progress:
                yield event

    async def re_encode(self, ctx: RequestContext, collection: str) -> AsyncGenerator[UpsertProgress, None]:
        """Makes the documents that belong to another model, or were cut by other settings, anew for the model
        being served, from their stored text.

        Raises:
            NotFound: no such collection.
        """
        check_name("collection", collection)
        recipe, model = await self._prepare(ctx)
        stored = await self._inventory(ctx, collection)
        stale = [m.document_id for m in stored if not recipe.is_current(m, model)]
        auxiliary = await self._store.auxiliary(ctx, model)

        async def work(ctx: RequestContext, document_id: str, report: Report) -> None:
            async with self._locks.hold(ctx.tenant, collection, document_id):
                manifest = await self._store.stored(ctx, collection, document_id)
                if manifest is None:
                    raise NotFound("the document was deleted meanwhile")
                if recipe.is_current(manifest, model):
                    return await self._store.keep(ctx, manifest, report, auxiliary)
                draft = await asyncio.get_running_loop().run_in_executor(
                    self._cutting, recipe.recut, manifest
                )
                return await self._store.put(ctx, collection, model, draft, report, auxiliary)

        async with aclosing(run_documents(ctx, stale, work, self._config.parallel_documents)) as progress:
            async for event in progress:
                yield event

    async def delete(
        self, ctx: RequestContext, collection: str, document_ids: Sequence[str], everything: bool
    ) -> DeletedDocuments:
        """
        Raises:
            InvalidRequest: neither documents nor ``everything``, or both.
            NotFound: ``everything`` of a collection that does not exist.
        """
        check_name("collection", collection)
        if everything == bool(document_ids):
            raise InvalidRequest(
                "document_ids: name documents, or set all to delete the whole collection, not both"
            )
        ids = (
            [m.document_id for m in await self._inventory(ctx, collection)]
            if everything
            else list(dict.fromkeys(document_ids))
        )
        not_found, num_chunks = [], 0
        for document_id in ids:
            ctx.check_deadline("deleting documents")
            async with self._locks.hold(ctx.tenant, collection, document_id):
                removed = await self._store.remove(ctx, collection, document_id)
            if removed is None:
                not_found.append(document_id)
            else:
                num_chunks += len(removed)
        return DeletedDocuments(len(ids) - len(not_found), num_chunks, tuple(not_found))

    async def list_documents(
        self, ctx: RequestContext, collection: str, start_after: str, limit: int
    ) -> DocumentPage:
        """
        Raises:
            NotFound: ``collection`` (unless empty: all) has no documents.
        """
        if collection:
            check_name("collection", collection)
        model = await self._store.generator.describe(ctx)
        page = await self._store.manifests.manifest_page(ctx, collection, start_after, limit, summary=True)
        if collection and not start_after and not page.manifests:
            raise unknown(collection)
        return DocumentPage(tuple(_info(m, model) for m in page.manifests), page.truncated)

    async def check_ready(self, ctx: RequestContext) -> str:
        """Returns what an operator should know of a service that does all it can: a model without a tokenizer
        takes no documents, and collections of the tenant are not as they would be made now.

        Raises:
            KvquiltError: why documents cannot be ingested now.
        """
        if self._recipe is None:
            return _NO_TOKENIZER
        recipe, model = await self._prepare(ctx)
        try:
            counts = await self._store.manifests.count_documents(ctx)
        except KvquiltError as error:  # the store's own health tells it
            log.info("how the stored documents were made is not known: %s", error.detail)
            return ""
        return mixed_collections(counts, replace(model.made_for, kv_context=recipe.kv_context))

    async def _cut(self, ctx: RequestContext, recipe: Recipe, source: SourceDocument) -> Draft:
        """Parses when it is the tenant's turn, in a thread of its own, which ends soon after nobody waits for
        it any more."""
        given_up = threading.Event()

        def check() -> None:
            ctx.check_deadline("reading a document")
            if given_up.is_set():
                raise Cancelled("the run was ended")

        loop = asyncio.get_running_loop()
        try:
            async with (
                ctx.until_deadline("reading a document"),
                self._turns.turn(ctx.tenant, priority=ctx.priority),
            ):
                with span(ctx, "parse", {NUM_BYTES: len(source.content)}):
                    parsed = await loop.run_in_executor(self._parsing, recipe.parse, source, check)
        finally:
            given_up.set()
        with span(ctx, "chunk") as stage:
            draft = await loop.run_in_executor(self._cutting, recipe.cut, source, parsed)
            stage.set({NUM_CHUNKS: len(draft.chunks)})
        return draft

    def close(self) -> None:
        self._parsing.shutdown(wait=False, cancel_futures=True)
        self._cutting.shutdown(wait=False, cancel_futures=True)

    async def _prepare(self, ctx: RequestContext) -> tuple[Recipe, ModelDescription]:
        if self._recipe is None:
            raise FailedPrecondition(_NO_TOKENIZER)
        if isinstance(self._recipe, KvquiltError):
            raise self._recipe
        model = await self._store.policy.run(ctx, self._store.generator.describe)
        self._recipe.check_model(model)
        return self._recipe, model

    async def _inventory(self, ctx: RequestContext, collection: str) -> list[Manifest]:
        found = [m async for m in self._store.summaries(ctx, collection)]
        if not found:
            raise unknown(collection)
        return found

    def _check_size(self, source: SourceDocument) -> None:
        if len(source.content) > self._config.max_document_bytes:
            limit = self._config.max_document_bytes
            raise UnreadableDocument(
                f"the document has {len(source.content)} bytes, more than the {limit} that are "
                "allowed; split it"
            )


def _would_store(draft: Draft) -> UpsertProgress:
    return UpsertProgress(
        draft.document_id,
        Stage.WOULD_STORE,
        num_chunks=len(draft.chunks),
        num_tokens=sum(len(c.token_ids) for c in draft.chunks),
        warnings=draft.warnings,
    )


def _info(manifest: Manifest, model: ModelDescription) -> DocumentInfo:
    return DocumentInfo(
        collection=manifest.collection,
        document_id=manifest.document_id,
        title=manifest.title,
        num_chunks=len(manifest.chunks),
        model_fingerprint=manifest.model_fingerprint,
        current=is_current(manifest, model),
        created_s=manifest.created_s,
        source=manifest.metadata.get(SOURCE_KEY, ""),
        kv_context=manifest.kv_context or KvContext.NONE.value,
        readers=manifest.readers,
        sections=manifest.sections,
    )
