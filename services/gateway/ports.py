"""Declares what the gateway needs of other services. ``shared.clients`` satisfies these; tests pass fakes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from shared.answer import AnswerEvent, Inquiry
from shared.clients.health import ServiceHealth
from shared.generation.described import ModelDescription
from shared.generation.orders import GenerationOrder
from shared.generation.told import GenerationEvent
from shared.kv_types import Manifest
from shared.request import RequestContext
from shared.search import EmbeddedTexts, Filter, SearchMode, SearchResult


class Answering(Protocol):
    def answer(self, ctx: RequestContext, inquiry: Inquiry) -> AsyncGenerator[AnswerEvent, None]:
        """The last event is ``AnswerDone``. Closing the generator ends the answer."""
        ...


class Retriever(Protocol):
    async def search(
        self,
        ctx: RequestContext,
        collection: str,
        queries: Sequence[str],
        k: int,
        mode: SearchMode,
        filters: Sequence[Filter],
    ) -> SearchResult:
        """
        Raises:
            NotFound: there is no such collection.
        """
        ...


class TextEmbedder(Protocol):
    async def embed(
        self, ctx: RequestContext, texts: Sequence[str], queries: bool = False
    ) -> EmbeddedTexts: ...


class Generating(Protocol):
    def generate(self, ctx: RequestContext, order: GenerationOrder) -> AsyncGenerator[GenerationEvent, None]:
        """Tokens and finished branches, then one ``DoneEvent``. Closing the generator stops the
        branches.

        Raises:
            ContextTooLong: prompt and answer do not fit the model.
            Unavailable: the generator died; what came is not the whole.
        """
        ...


class GeneratorPort(Generating, Protocol):
    async def describe(self, ctx: RequestContext) -> ModelDescription: ...

    async def suspend(self, ctx: RequestContext, verdict: str, reason: str) -> bool:
        """Mode ``auto`` no longer obeys ``verdict``; returns whether that outlives the generator.

        Raises:
            NotFound: it has no such verdict.
        """
        ...


class ChunkFetcher(Protocol):
    async def prefetch(self, ctx: RequestContext, chunk_ids: Sequence[str]) -> None:
        """Starts bringing the chunks' KV to where it will be needed, and returns at once."""
        ...


class ManifestSource(Protocol):
    async def get_manifest(self, ctx: RequestContext, collection: str, document_id: str) -> Manifest:
        """
        Raises:
            NotFound: no such document.
        """
        ...


class HealthSource(Protocol):
    async def health(self, ctx: RequestContext) -> ServiceHealth: ...
