"""A real store on one node and a fake ingestion, with the gateway's HTTP in front of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from services.gateway.config import GatewayConfig, HttpConfig, ResponsesConfig
from services.gateway.http.routes import http_app
from services.gateway.kept.attaching import Attaching
from services.gateway.kept.kept import KeptThings, kept_by
from services.gateway.pipeline import Pipeline
from services.gateway.prefetch import Prefetching
from services.kv_store.node.agent import Agent
from shared.admission.entrance import Entrance
from shared.documents import DeletedDocuments, SourceDocument, Stage, UpsertProgress
from shared.errors import KvquiltError, NotFound
from shared.kv_types import Manifest
from shared.limits import RequestLimits
from shared.request import RequestContext
from shared.search import Filter, SearchHit, SearchMode, SearchResult
from tests.kv_stores import KnownNodes, agent_on
from tests.unit.gateway.fakes import FakeGenerator, hit

CTX = RequestContext.create(tenant="default", deadline_ms=36_000_000)


@dataclass
class FakeIngestion:
    """Stores documents without chunks. ``errors``: of the next runs, one each, None: none. ``gate``: runs
    wait for it, if there is one. A text that says "unreadable" is not read."""

    store: Agent
    errors: list[KvquiltError | None] = field(default_factory=list)
    gate: asyncio.Event | None = None
    asked: list[SourceDocument] = field(default_factory=list)

    async def upsert(
        self, ctx: RequestContext, collection: str, documents: Sequence[SourceDocument]
    ) -> AsyncGenerator[UpsertProgress, None]:
        self.asked += documents
        error = self.errors.pop(0) if self.errors else None
        if self.gate is not None:
            await self.gate.wait()
        if error is not None:
            raise error
        for source in documents:
            yield UpsertProgress(source.document_id, Stage.PARSED)
            if b"unreadable" in source.content:
                told = {"error": "no parser for .xyz", "error_code": "DOCUMENT_UNREADABLE"}
                yield UpsertProgress(source.document_id, Stage.FAILED, **told)
                continue
            manifest = Manifest(ctx.tenant, collection, source.document_id)
            of = {"metadata": source.metadata, "readers": source.readers, "created_s": 1.7e9}
            await self.store.put_manifest(ctx, replace(manifest, **of))  # type: ignore[arg-type]
            yield UpsertProgress(source.document_id, Stage.STORED)

    async def delete(
        self,
        ctx: RequestContext,
        collection: str,
        document_ids: tuple[str, ...] = (),
        everything: bool = False,
    ) -> DeletedDocuments:
        page = await self.store.manifest_page(ctx, collection, limit=1000)
        ids = [one.document_id for one in page.manifests] if everything else document_ids
        for document_id in ids:
            await self.store.delete_manifest(ctx, collection, document_id)
        return DeletedDocuments(len(ids), 0, ())


@dataclass
class FakeIndex:
    """``found``: by query; a query of which nothing is known belongs to an unknown collection."""

    found: dict[str, list[SearchHit]] = field(default_factory=dict)
    asked: list[tuple[str, tuple[str, ...], int, SearchMode, tuple[Filter, ...]]] = field(
        default_factory=list
    )

    async def search(
        self,
        ctx: RequestContext,
        collection: str,
        queries: Sequence[str],
        k: int,
        mode: SearchMode,
        filters: Sequence[Filter],
    ) -> SearchResult:
        self.asked.append((collection, tuple(queries), k, mode, tuple(filters)))
        if not all(query in self.found for query in queries):
            raise NotFound(f"collection {collection!r} does not exist")
        return SearchResult(tuple(tuple(self.found[query][:k]) for query in queries), SearchMode.HYBRID)


@dataclass
class World:
    """``pauses``: that attachments made. ``store_directory``: of the store."""

    store_directory: Path
    store: Agent
    ingestion: FakeIngestion
    index: FakeIndex
    kept: KeptThings
    app: FastAPI
    pauses: list[float]

    @classmethod
    def on(
        cls,
        directory: Path,
        limits: RequestLimits | None = None,
        http: HttpConfig | None = None,
        generator: FakeGenerator | None = None,
        responses: ResponsesConfig | None = None,
        **others: Any,
    ) -> World:
        """``others``: of ``http_app``."""
        limits = limits or RequestLimits()
        store = agent_on(directory, "home", KnownNodes(), limits=limits)
        ingestion, index, entrance = FakeIngestion(store), FakeIndex(), Entrance(limits.per_principal)
        pauses: list[float] = []

        async def pause(seconds: float) -> None:
            pauses.append(seconds)

        kept = kept_by(store, ingestion, index, entrance, 60, pause, responses)
        config = GatewayConfig(http=http or HttpConfig("tiny", max_upload_bytes=200_000))
        pipeline = Pipeline(index, generator or FakeGenerator({}), config, Prefetching(None))
        app = http_app(pipeline, config.http, limits, door=entrance, kept=kept, **others)
        return cls(directory, store, ingestion, index, kept, app, pauses)

    def restarted(self) -> World:
        """Another replica of the gateway over the same store."""
        entrance = Entrance()
        kept = kept_by(self.store, self.ingestion, self.index, entrance, 60)
        config = GatewayConfig(http=HttpConfig("tiny"))
        pipeline = Pipeline(self.index, FakeGenerator({}), config, Prefetching(None))
        app = http_app(pipeline, config.http, door=entrance, kept=kept)
        return replace(self, kept=kept, app=app)

    @property
    def attaching(self) -> Attaching:
        return self.kept.attaching

    async def close(self) -> None:
        await self.attaching.close()
        await self.store.close()


def near(name: str, text: str, document: str, similarity: float, **metadata: str) -> SearchHit:
    return replace(hit(name, text, document), similarity=similarity, metadata=metadata)
