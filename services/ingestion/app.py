"""Builds the ingestion application."""

from __future__ import annotations

import logging

from services.ingestion.calls import CallPolicy
from services.ingestion.config import IngestionConfig
from services.ingestion.handlers import IngestHandlers
from services.ingestion.recipe import Recipe
from services.ingestion.service import IngestionService
from services.ingestion.upsert import DocumentStore
from shared import log as logs
from shared.clients import generation, kv_store, retrieval, selection
from shared.clients.applications import transport_to
from shared.clients.transport import Transport
from shared.errors import KvquiltError
from shared.prompt import PromptTokenizer
from shared.serving import builder_of

log = logging.getLogger(__name__)


class Ingestion(IngestHandlers):
    """One replica: the model's tokenizer, and clients of generator, kv_store and retrieval."""

    def __init__(self, config: IngestionConfig) -> None:
        logs.configure(self.application, config.deployment.log)
        super().__init__(build_service(config), config.run_deadline_s)

    def __del__(self) -> None:
        if hasattr(self, "_service"):
            self._service.close()


def build_service(config: IngestionConfig) -> IngestionService:
    def to(application: str) -> Transport:
        return transport_to(application, config.addresses)

    store = DocumentStore(
        generator=generation.GenerationClient(to("generator")),
        manifests=kv_store.KvStoreClient(to("kv_store")),
        index=retrieval.RetrievalClient(to("retrieval")),
        policy=CallPolicy(timeout_s=config.step_timeout_s),
        prefill_batch=config.prefill_batch,
        selector=selection.SelectionClient(to(config.selector)) if config.selector else None,
    )
    return IngestionService(config, _recipe(config), store)


def _recipe(config: IngestionConfig) -> Recipe | KvquiltError | None:
    """None: the model has no tokenizer. A model that is not there is no reason to crash again and again:
    Health says it."""
    try:
        tokenizer = PromptTokenizer.of_model(config.model)
    except KvquiltError as error:
        log.error("documents cannot be cut for model %s: %s", config.model, error.detail)
        return error
    return None if tokenizer is None else Recipe(tokenizer, config.chunk_tokens)


build = builder_of(Ingestion, IngestionConfig)
