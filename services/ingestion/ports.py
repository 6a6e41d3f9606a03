"""Declares what ingestion needs of the other services, beside ``shared.kv_stores.ManifestStore``: the clients
in ``shared/clients``, or fakes. All raise ``shared.errors``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from shared.generation.described import ModelDescription, PrefilledChunk
from shared.generation.pieces import Piece
from shared.generation.selection import AuxiliaryDescription, EncodedChunk, SelectionChunk
from shared.request import RequestContext
from shared.search import CollectionInfo, IndexChange, IndexedDocument, IndexedIds


class PrefillPort(Protocol):
    async def describe(self, ctx: RequestContext) -> ModelDescription: ...

    def prefill(
        self, ctx: RequestContext, chunks: Sequence[Piece], *, encoding: str = ""
    ) -> AsyncGenerator[PrefilledChunk, None]:
        """One value per chunk, in order, each once its KV is durable, and in ``encoding`` unless that is
        empty."""
        ...


class EncoderPort(Protocol):
    async def describe(self, ctx: RequestContext) -> AuxiliaryDescription: ...

    def encode(
        self, ctx: RequestContext, chunks: Sequence[SelectionChunk]
    ) -> AsyncGenerator[EncodedChunk, None]:
        """One value per chunk, in order, each once its auxiliary KV is durable."""
        ...


class Index(Protocol):
    async def index(
        self, ctx: RequestContext, collection: str, document: IndexedDocument, anew: bool = False
    ) -> IndexChange:
        """Returns once exactly these chunks are searchable; where they were before it costs a lookup.
        ``anew``: the whole collection is being indexed, and searched as before until ``adopt``."""
        ...

    async def adopt(self, ctx: RequestContext, collection: str) -> int:
        """Searches what the configured embedder indexed from now on."""
        ...

    async def restrict(
        self, ctx: RequestContext, collection: str, document_id: str, readers: Sequence[str]
    ) -> int:
        """Lets only those find the document, until it is indexed again, who are among ``readers`` as
        well."""
        ...

    async def unindex(self, ctx: RequestContext, collection: str, document_ids: Sequence[str]) -> int: ...

    async def list_indexed(self, ctx: RequestContext, collection: str) -> IndexedIds: ...

    async def list_collections(self, ctx: RequestContext) -> list[CollectionInfo]: ...
