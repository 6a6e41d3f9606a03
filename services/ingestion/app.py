"""Builds the ingestion application."""

from __future__ import annotations

from typing import Any

from ray import serve

from services.ingestion.calls import CallPolicy
from services.ingestion.config import IngestionConfig
from services.ingestion.handlers import IngestHandlers
from services.ingestion.recipe import Recipe
from services.ingestion.service import IngestionService
from services.ingestion.upsert import DocumentStore
from shared import log
from shared.clients import generation, kv_store, retrieval
from shared.clients.serve_transport import ServeTransport
from shared.config import load, to_dict
from shared.prompt import PromptTokenizer


class Ingestion(IngestHandlers):
    """One replica: the model's tokenizer, and clients of generator, kv_store and retrieval."""

    def __init__(self, args: dict[str, Any]) -> None:
        config = load(IngestionConfig, args)
        log.configure("ingestion", config.deployment.log.level, config.deployment.log.format)
        super().__init__(build_service(config), config.run_deadline_s)

    def __del__(self) -> None:
        if hasattr(self, "_service"):
            self._service.close()


def build_service(config: IngestionConfig) -> IngestionService:
    tokenizer = PromptTokenizer.of_model(config.model)
    store = DocumentStore(
        generator=generation.GenerationClient(ServeTransport("generator")),
        manifests=kv_store.KvStoreClient(ServeTransport("kv_store")),
        index=retrieval.RetrievalClient(ServeTransport("retrieval")),
        policy=CallPolicy(timeout_s=config.step_timeout_s),
        prefill_batch=config.prefill_batch,
    )
    return IngestionService(config, None if tokenizer is None else Recipe(tokenizer, config.chunk_tokens), store)


def build(args: dict[str, Any]) -> serve.Application:
    config = load(IngestionConfig, args)
    return serve.deployment(name="ingestion", **config.deployment.serve_options())(Ingestion).bind(to_dict(config))
