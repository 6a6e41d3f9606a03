"""The replicas of the Ray Serve application ``retrieval``."""

from __future__ import annotations

import asyncio

from services.retrieval.config import RetrievalConfig
from services.retrieval.embedder import EmbedderSettings
from services.retrieval.handlers import RetrievalHandlers
from services.retrieval.index import MilvusIndex
from services.retrieval.milvus import connect
from services.retrieval.reranker import CrossEncoder, Reranking
from services.retrieval.service import RetrievalService
from services.retrieval.transformer_embedder import TransformerEmbedder, load_embedder
from shared import log as logs
from shared.audited import recorder_of
from shared.errors import KvquiltError
from shared.principals.authentication import callers_of
from shared.private_files import keep_private
from shared.serving import ByGrpcAlone, load_or_error, metrics_of_replica
from shared.tracing.provider import start_tracing


class Retrieval(RetrievalHandlers, ByGrpcAlone):
    """One replica: its own embedder, its connection to Milvus.

    While Milvus does not answer it says so, and goes on trying.
    """

    def __init__(self, config: RetrievalConfig) -> None:
        logs.configure(self.application, config.deployment.log)
        start_tracing(self.application, config.deployment.tracing)
        keep_private()
        self.guard(config.limits, config.deployment.memory_bytes)
        self.metrics = metrics_of_replica(self.application, config.deployment.metrics)
        self.callers = callers_of(config.auth, self.application)
        self.recorder = recorder_of(config.audit, self.application, config.auth)
        super().__init__(_try_to_build(config))
        self._opening = asyncio.get_running_loop().create_task(self._keep_opening(config))

    async def _keep_opening(self, config: RetrievalConfig) -> None:
        while isinstance(self._loaded, KvquiltError) and self._loaded.retryable:
            self._loaded = await asyncio.to_thread(_try_to_build, config)

    def __del__(self) -> None:
        if hasattr(self, "_opening"):
            self._opening.cancel()
            if isinstance(self._loaded, RetrievalService):
                self._loaded.close()


def _try_to_build(config: RetrievalConfig) -> RetrievalService | KvquiltError:
    return load_or_error(lambda: build_service(config), "no index")


def build_service(config: RetrievalConfig) -> RetrievalService:
    def load(settings: EmbedderSettings) -> TransformerEmbedder:
        return load_embedder(settings, config.embedder_threads)

    settings = EmbedderSettings(config.embedder, config.query_prefix, config.document_prefix)
    embedder = load(settings)
    reranking = None
    if config.reranker:
        reranking = Reranking(CrossEncoder(config.reranker, config.embedder_threads), config.rerank_depth)
    milvus = connect(config.milvus_uri, config.milvus_token, config.startup_timeout_s)
    index = MilvusIndex(milvus, embedder.identity, embedder.dim, settings)
    return RetrievalService(embedder, index, config.default_k, load, config.dense_weight, reranking)
