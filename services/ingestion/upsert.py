"""One document, step by step. The order is the guarantee:

    quota        kv_store says whether there may be so much more
    prefill      the generator makes the KV of every chunk durable
    auxiliary    the selector, if there is one, does the same with its own
    restrict     who is to read it no longer does not find the old version any more
    manifest     kv_store refers to the chunks: they stay
    index        the chunks can be found, by those who may read them

A crash after any step leaves a document that is whole or not to be found, and running the same document again
goes on where it stopped: durable KV is not computed again, an equal manifest is not written again, an indexed
document is not embedded again.

Longer than other modules: the order of the steps is checked best in one place.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial

from services.ingestion.auxiliary import AuxiliaryRun
from services.ingestion.calls import CallPolicy
from services.ingestion.chains import pieces_of
from services.ingestion.manifests import fewer_readers, indexed_of, manifest_of, progress_of
from services.ingestion.ports import EncoderPort, Index, PrefillPort
from services.ingestion.recipe import Draft
from shared.documents import Stage, UpsertProgress
from shared.errors import Conflict, FailedPrecondition, KvquiltError, ModelMismatch, NotFound, StorageFull
from shared.generation.described import ModelDescription
from shared.generation.pieces import Piece
from shared.indexable import check_indexable
from shared.kv_stores import ManifestStore
from shared.kv_types import Manifest, ManifestChunk
from shared.readers import Readers, reads_everything
from shared.request import RequestContext
from shared.search import IndexChange

log = logging.getLogger(__name__)

Report = Callable[[UpsertProgress], None]
_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class DocumentStore:
    """The services behind a document, and how they are called. ``selector`` None: there is none."""

    generator: PrefillPort
    manifests: ManifestStore
    index: Index
    policy: CallPolicy
    prefill_batch: int
    selector: EncoderPort | None = None
    now: Callable[[], float] = time.time

    async def stored(self, ctx: RequestContext, collection: str, document_id: str) -> Manifest | None:
        try:
            return await self.policy.run(
                ctx, lambda c: self.manifests.get_manifest(c, collection, document_id)
            )
        except NotFound:
            return None

    async def summaries(self, ctx: RequestContext, collection: str) -> AsyncGenerator[Manifest, None]:
        """The documents of ``collection`` (empty: of all), without texts and token ids."""
        after, truncated = "", True
        while truncated:
            next_page = partial(
                self.manifests.manifest_page, collection=collection, start_after=after, summary=True
            )
            page = await self.policy.run(ctx, next_page)
            for manifest in page.manifests:
                yield manifest
            truncated = page.truncated
            after = page.manifests[-1].cursor(collection) if page.manifests else ""

    async def auxiliary(self, ctx: RequestContext, model: ModelDescription) -> AuxiliaryRun:
        """For one run."""
        return await AuxiliaryRun(self.selector, model, self.policy.timeout_s, self.prefill_batch).begin(ctx)

    async def keep(
        self,
        ctx: RequestContext,
        manifest: Manifest,
        report: Report,
        auxiliary: AuxiliaryRun | None = None,
        anew: bool = False,
    ) -> None:
        """For a document that has not changed: makes sure that it can be found, as a run may have ended
        just before that, and that it has the auxiliary KV, as it may be older than the auxiliary model.
        ``anew``: its whole collection is being indexed, for another embedder."""
        added = auxiliary is not None and await self._add_auxiliary(ctx, manifest, auxiliary)
        indexed = await self._index(ctx, manifest, anew)
        stage = Stage.STORED if indexed.changed or added else Stage.UNCHANGED
        told = progress_of(manifest, stage, reused=len(manifest.chunks))
        report(replace(told, warnings=indexed.warnings))

    async def put(
        self,
        ctx: RequestContext,
        collection: str,
        model: ModelDescription,
        draft: Draft,
        report: Report,
        auxiliary: AuxiliaryRun,
        old: Manifest | None = None,
    ) -> None:
        """Prefill, auxiliary, manifest, index. ``old``: what it replaces.

        Raises:
            InvalidRequest: it does not fit into the index.
            ModelMismatch: the generator serves another model than when the run began.
            StorageFull: no space for KV or manifest, or more than the tenant or the caller may have.
            Conflict: chunks vanish as fast as they are made.
        """
        manifest = manifest_of(ctx.tenant, collection, model, draft, self.now())
        await asyncio.to_thread(
            check_indexable, indexed_of(manifest)
        )  # before anything is computed and stored
        report(progress_of(manifest, Stage.PARSED))
        await self._check_quota(ctx, manifest, model)
        reused = await self._prefill(ctx, manifest, report)
        await self._restrict(ctx, old, manifest)
        manifest = await self._put_manifest(ctx, manifest, auxiliary)
        indexed = await self._index(ctx, manifest)
        told = progress_of(manifest, Stage.STORED, done=len(manifest.chunks), reused=reused)
        report(replace(told, warnings=draft.warnings + indexed.warnings))

    async def put_readers(self, ctx: RequestContext, old: Manifest, readers: Readers, report: Report) -> None:
        """Gives a stored document other readers, and nothing else anew.

        Raises:
            StorageFull: no space for the manifest.
            Conflict: chunks vanish as fast as they are made.
        """
        manifest = replace(old, readers=readers)
        await self._restrict(ctx, old, manifest)
        manifest = await self._put_manifest(ctx, manifest)
        indexed = await self._index(ctx, manifest)
        told = progress_of(manifest, Stage.STORED, reused=len(manifest.chunks))
        report(replace(told, warnings=indexed.warnings))

    async def refresh(
        self,
        ctx: RequestContext,
        manifest: Manifest,
        kv_ids: frozenset[str],
        encoding: str,
        report: Report,
        auxiliary: AuxiliaryRun,
    ) -> None:
        """Makes the KV of a stored document durable again, the auxiliary's too (which keeps its encoding); of
        ``kv_ids`` only, if there are any."""
        chosen = replace(
            manifest, chunks=tuple(c for c in manifest.chunks if not kv_ids or c.chunk_id in kv_ids)
        )
        reused = await self._prefill(ctx, chosen, report, encoding, whole=manifest)
        restored = await auxiliary.restored(ctx, manifest, kv_ids)
        added = not kv_ids and await self._add_auxiliary(ctx, manifest, auxiliary)
        num_chunks = len(chosen.chunks) + len(restored)
        reused += sum(one.existed for one in restored)
        stage = Stage.UNCHANGED if reused == num_chunks and not added else Stage.STORED
        report(replace(progress_of(chosen, stage, done=num_chunks, reused=reused), num_chunks=num_chunks))

    async def unindex(self, ctx: RequestContext, collection: str, document_ids: Sequence[str]) -> None:
        await self.policy.run(ctx, lambda c: self.index.unindex(c, collection, document_ids))

    async def remove(self, ctx: RequestContext, collection: str, document_id: str) -> list[str] | None:
        """The ids of its chunks that were removed with it, or None for an unknown document. It ceases to be
        found first, unless the index has no room to note that: then its KV makes some."""
        full: StorageFull | None = None
        try:
            await self.unindex(ctx, collection, [document_id])
        except StorageFull as error:
            full = error
        manifest = await self.stored(ctx, collection, document_id)
        try:
            removed = await self.policy.run(
                ctx, lambda c: self.manifests.delete_manifest(c, collection, document_id)
            )
        except NotFound:
            if full is not None:
                raise full from None
            return None
        if full is not None:
            await self.unindex(ctx, collection, [document_id])
        auxiliary = {c.auxiliary_id for c in manifest.chunks} if manifest else set()
        return [kv_id for kv_id in removed if kv_id not in auxiliary]

    async def _check_quota(self, ctx: RequestContext, manifest: Manifest, model: ModelDescription) -> None:
        """Before anything is computed. What it will take is told exactly by what was stored: ``_store`` looks
        again.

        Raises:
            StorageFull: the tenant, or the caller, would have more than it may.
        """
        untold = replace(manifest, chunks=tuple(replace(c, text="", heading="") for c in manifest.chunks))
        least = model.least_stored_bytes_per_token
        await self.policy.run(ctx, lambda c: self.manifests.check_quota(c, untold, least))

    async def _restrict(self, ctx: RequestContext, old: Manifest | None, new: Manifest) -> None:
        """Takes those readers from ``old``, in the index, that ``new`` does not have: before the manifest
        says so, so that a crash leaves nobody more than he is given."""
        common = None if old is None else fewer_readers(old, new)
        if common is not None:
            await self.policy.run(
                ctx, lambda c: self.index.restrict(c, new.collection, new.document_id, common)
            )

    async def _put_manifest(
        self, ctx: RequestContext, manifest: Manifest, auxiliary: AuxiliaryRun | None = None
    ) -> Manifest:
        """As it was stored: with the KV of ``auxiliary``, unless the store goes on refusing that.

        Raises:
            Conflict: chunks vanish as fast as they are made.
        """
        for left in reversed(range(_ROUNDS)):
            if auxiliary is not None:
                manifest = await auxiliary.encoded(ctx, manifest) if left else manifest.without_auxiliary()
            try:
                await self._store(ctx, manifest)
                return manifest
            except ModelMismatch:
                raise
            except FailedPrecondition as error:
                # a chunk was removed between prefill and here, with the last document that had it
                log.info("document %s: %s; prefilling again", manifest.document_id, error.detail)
                await self._prefill(ctx, manifest, lambda progress: None)
        raise Conflict("chunks of the document are being removed by other requests; run it again")

    async def _add_auxiliary(self, ctx: RequestContext, manifest: Manifest, auxiliary: AuxiliaryRun) -> bool:
        """Gives a stored document the auxiliary KV that it lacks; whether it did."""
        if not auxiliary.lacks(manifest):
            return False
        encoded = await auxiliary.encoded(ctx, manifest)
        if not encoded.auxiliary:
            return False
        try:
            await self._store(ctx, encoded)
        except KvquiltError as error:
            log.warning("document %s stays without auxiliary KV: %s", manifest.document_id, error.detail)
            return False
        return True

    async def _prefill(
        self,
        ctx: RequestContext,
        manifest: Manifest,
        report: Report,
        encoding: str = "",
        whole: Manifest | None = None,
    ) -> int:
        """Returns how many chunks were durable before. ``whole``: the document, if ``manifest`` names a part
        of its chunks."""
        durable: dict[int, bool] = {}
        told = await self._told(ctx, manifest)
        whole = whole or manifest
        index_of = {chunk.chunk_id: i for i, chunk in enumerate(whole.chunks)}
        for begin in range(0, len(manifest.chunks), self.prefill_batch):
            batch = manifest.chunks[begin : begin + self.prefill_batch]
            pieces = pieces_of(whole, [index_of[chunk.chunk_id] for chunk in batch])

            async def call(
                c: RequestContext,
                begin: int = begin,
                batch: tuple[ManifestChunk, ...] = batch,
                pieces: Sequence[Piece] = pieces,
            ) -> None:
                async with aclosing(self.generator.prefill(c, pieces, encoding=encoding)) as answers:
                    async for answer in answers:
                        if answer.chunk_id != batch[answer.index].chunk_id:
                            raise ModelMismatch(
                                "the generator's model changed while the document was ingested; run it again"
                            )
                        # of a second try only what the first did not reach
                        existed = answer.existed and (told is None or answer.chunk_id in told)
                        durable.setdefault(begin + answer.index, existed)
                        report(
                            progress_of(
                                manifest, Stage.PREFILLED, done=len(durable), reused=sum(durable.values())
                            )
                        )
                if len(durable) < begin + len(batch):
                    raise Conflict("the generator ended the prefill early; run it again")

            await self.policy.run(ctx, call, len(batch), "prefill", len(batch))
        return sum(durable.values())

    async def _told(self, ctx: RequestContext, manifest: Manifest) -> frozenset[str] | None:
        """The chunks of which the caller may know that their KV is there, as documents that it reads have
        them; None: of all."""
        if reads_everything(ctx.principal):
            return None
        ids = [chunk.chunk_id for chunk in manifest.chunks]
        return frozenset(await self.policy.run(ctx, lambda c: self.manifests.readable(c, ids)))

    async def _index(self, ctx: RequestContext, manifest: Manifest, anew: bool = False) -> IndexChange:
        document = indexed_of(manifest)
        num = len(manifest.chunks)
        index = partial(self.index.index, collection=manifest.collection, document=document, anew=anew)
        return await self.policy.run(ctx, index, max(1, num // self.prefill_batch), "index", num)

    async def _store(self, ctx: RequestContext, manifest: Manifest) -> None:
        put = partial(self.manifests.put_manifest, manifest=manifest)
        await self.policy.run(ctx, put, 1, "store", len(manifest.chunks))
