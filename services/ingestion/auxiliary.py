"""The auxiliary model's KV of documents, made durable beside the primary's and named by their manifests.

It makes answers faster and nothing else depends on it: what is not there is computed when a question asks for
it. So nothing here fails an ingestion. A selector that does not answer is not asked again in the same run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace

from services.ingestion.chains import with_parents
from services.ingestion.ports import EncoderPort
from shared.errors import DeadlineExceeded, KvquiltError, Unavailable
from shared.generation.described import ModelDescription
from shared.generation.selection import EncodedChunk, SelectionChunk, SelectionLink
from shared.kv_types import Manifest
from shared.request import RequestContext
from shared.tracing.names import NUM_CHUNKS
from shared.tracing.spans import span

log = logging.getLogger(__name__)


class AuxiliaryRun:
    """Of one run over documents. ``identity``: of the auxiliary model; empty: there is none, or none that
    answers. ``chains``: whether its KV stands behind what is in front of a chunk."""

    def __init__(
        self, selector: EncoderPort | None, model: ModelDescription, timeout_s: float, batch: int
    ) -> None:
        """``timeout_s``: how long a single chunk may take; ``batch``: chunks per call."""
        self.identity, self.chains = "", False
        self._selector, self._model, self._timeout_s, self._batch = selector, model, timeout_s, batch

    async def begin(self, ctx: RequestContext) -> AuxiliaryRun:
        if self._selector is not None:
            try:
                async with asyncio.timeout(self._timeout_s):
                    described = await self._selector.describe(ctx)
                self.identity, self.chains = described.identity, described.chains
            except (KvquiltError, TimeoutError) as error:
                log.warning(
                    "the selector does not answer; documents are ingested without auxiliary KV: %s", error
                )
        return self

    def lacks(self, manifest: Manifest) -> bool:
        """Whether the document has no KV of this auxiliary model."""
        return bool(self.identity) and manifest.auxiliary != self.identity

    async def encoded(self, ctx: RequestContext, manifest: Manifest) -> Manifest:
        """The manifest with the auxiliary KV of all its chunks, durable; or with none."""
        bare = manifest.without_auxiliary()
        identity = self.identity
        encoded = await self._encoded(ctx, manifest, range(len(manifest.chunks)))
        if encoded is None:
            return bare
        chunks = tuple(
            replace(c, auxiliary_id=one.auxiliary_id) for c, one in zip(bare.chunks, encoded, strict=True)
        )
        return replace(bare, auxiliary=identity, chunks=chunks)

    async def restored(
        self, ctx: RequestContext, manifest: Manifest, kv_ids: frozenset[str]
    ) -> list[EncodedChunk]:
        """Makes auxiliary KV that the manifest names durable again; of ``kv_ids`` only, if there are any."""
        if not self.identity or manifest.auxiliary != self.identity:
            return []
        lost = [
            i
            for i, c in enumerate(manifest.chunks)
            if c.auxiliary_id and (not kv_ids or c.auxiliary_id in kv_ids)
        ]
        return await self._encoded(ctx, manifest, lost) or []

    async def _encoded(
        self, ctx: RequestContext, manifest: Manifest, indices: Sequence[int]
    ) -> list[EncodedChunk] | None:
        """One per index, which are chunks of the document; None: the selector could not."""
        if self._selector is None or not self.identity:
            return None
        encoded: list[EncodedChunk] = []
        try:
            for begin in range(0, len(indices), self._batch):
                batch = indices[begin : begin + self._batch]
                chunks = [self._chunk(manifest, i, known) for i, known in with_parents(manifest, batch)]
                with span(ctx, "encode auxiliary", {NUM_CHUNKS: len(chunks)}) as stage:
                    encoded += await self._call(stage.ctx, self._selector, chunks)
        except KvquiltError as error:
            log.warning(
                "a document is stored without auxiliary KV, which is computed when it is asked for: %s",
                error.detail,
            )
            if isinstance(error, (Unavailable, DeadlineExceeded)):
                self.identity = ""
            return None
        return encoded

    def _chunk(self, manifest: Manifest, index: int, parent_is_known: bool) -> SelectionChunk:
        template, chunk = self._model.chunk_template, manifest.chunks[index]
        text = template.replace("{text}", chunk.text)
        if not self.chains:
            return SelectionChunk(text, chunk.token_ids)
        if parent_is_known:
            return SelectionChunk(text, chunk.token_ids, chunk.chunk_id, chunk.parent_id)
        links = zip(manifest.link_texts_of(index), manifest.links_of(index), strict=True)
        context = tuple(SelectionLink(template.replace("{text}", said), ids) for said, ids in links)
        return SelectionChunk(text, chunk.token_ids, chunk.chunk_id, context=context)

    async def _call(
        self, ctx: RequestContext, selector: EncoderPort, chunks: Sequence[SelectionChunk]
    ) -> list[EncodedChunk]:
        encoded: list[EncodedChunk] = []
        async with aclosing(selector.encode(ctx, chunks)) as answers:
            for _ in chunks:
                try:
                    async with asyncio.timeout(self._timeout_s):
                        encoded.append(await anext(answers))
                except TimeoutError:
                    raise DeadlineExceeded(
                        f"the selector did not encode a chunk within {self._timeout_s:g} s"
                    ) from None
                except StopAsyncIteration:
                    raise Unavailable("the selector ended early") from None
        return encoded
