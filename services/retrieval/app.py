"""Builds the retrieval application."""

from __future__ import annotations

from typing import Any

from ray import serve

from services.retrieval.config import RetrievalConfig
from services.retrieval.handlers import RetrievalHandlers
from services.retrieval.index import MilvusIndex
from services.retrieval.milvus import connect
from services.retrieval.service import RetrievalService
from services.retrieval.transformer_embedder import load_embedder
from shared import log
from shared.config import load, to_dict


class Retrieval(RetrievalHandlers):
    """One replica: its own embedder, its connection to Milvus."""

    def __init__(self, args: dict[str, Any]) -> None:
        config = load(RetrievalConfig, args)
        log.configure("retrieval", config.deployment.log.level, config.deployment.log.format)
        super().__init__(build_service(config))

    def __del__(self) -> None:
        if hasattr(self, "_service"):
            self._service.close()


def build_service(config: RetrievalConfig) -> RetrievalService:
    embedder = load_embedder(config.embedder, config.embedder_threads)
    milvus = connect(config.milvus_uri, config.milvus_token, config.startup_timeout_s)
    return RetrievalService(embedder, MilvusIndex(milvus, embedder.identity, embedder.dim), config.default_k)


def build(args: dict[str, Any]) -> serve.Application:
    config = load(RetrievalConfig, args)
    return serve.deployment(name="retrieval", **config.deployment.serve_options())(Retrieval).bind(to_dict(config))
