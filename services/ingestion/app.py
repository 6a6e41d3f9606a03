"""The replicas of the Ray Serve application ``ingestion``."""

from __future__ import annotations

from services.ingestion.calls import CallPolicy
from services.ingestion.config import IngestionConfig
from services.ingestion.formats.ocr import OcrCommand
from services.ingestion.formats.reading import ParserSettings
from services.ingestion.handlers import IngestHandlers
from services.ingestion.parsing.processes import ParserProcesses
from services.ingestion.recipe import Parse, Recipe, context_tokens
from services.ingestion.service import IngestionService
from services.ingestion.upsert import DocumentStore
from shared import log as logs
from shared.audited import recorder_of
from shared.clients import generation, kv_store, retrieval, selection
from shared.clients.applications import transport_to
from shared.clients.transport import Transport
from shared.principals.authentication import callers_of
from shared.principals.credentials import ServiceIdentity
from shared.private_files import keep_private
from shared.prompt import PromptTokenizer
from shared.serving import ByGrpcAlone, load_or_error, metrics_of_replica
from shared.tracing.provider import start_tracing


class Ingestion(IngestHandlers, ByGrpcAlone):
    """One replica: the model's tokenizer, and clients of generator, kv_store and retrieval."""

    def __init__(self, config: IngestionConfig) -> None:
        logs.configure(self.application, config.deployment.log)
        start_tracing(self.application, config.deployment.tracing)
        keep_private()
        self.guard(config.limits, config.deployment.memory_bytes)
        self.metrics = metrics_of_replica(self.application, config.deployment.metrics)
        self.callers = callers_of(config.auth, self.application)
        self.recorder = recorder_of(config.audit, self.application, config.auth)
        self._parsers = ParserProcesses(config.parsing)
        super().__init__(build_service(config, self._parsers, self.callers.identity), config.run_deadline_s)

    def __del__(self) -> None:
        if hasattr(self, "_service"):
            self._service.close()
            self._parsers.close()


def build_service(
    config: IngestionConfig, parse: Parse, identity: ServiceIdentity | None = None
) -> IngestionService:
    def to(application: str) -> Transport:
        return transport_to(application, config.addresses, identity)

    store = DocumentStore(
        generator=generation.GenerationClient(to("generator")),
        manifests=kv_store.KvStoreClient(to("kv_store")),
        index=retrieval.RetrievalClient(to("retrieval")),
        policy=CallPolicy(timeout_s=config.step_timeout_s),
        prefill_batch=config.prefill_batch,
        selector=selection.SelectionClient(to(config.selector)) if config.selector else None,
    )
    recipe = load_or_error(
        lambda: _recipe(config, parse), f"documents cannot be cut for model {config.model}"
    )
    return IngestionService(config, recipe, store)


def _recipe(config: IngestionConfig, parse: Parse) -> Recipe | None:
    """None: the model has no tokenizer."""
    tokenizer = PromptTokenizer.of_model(config.model, config.prompt)
    if tokenizer is None:
        return None
    room = context_tokens(config, len(tokenizer.prefix_ids))
    return Recipe(tokenizer, config.chunk_tokens, _parsers(config), config.kv_context, room, parse)


def _parsers(config: IngestionConfig) -> ParserSettings:
    ocr = OcrCommand(config.ocr_command, config.ocr_timeout_s) if config.ocr_command else None
    return ParserSettings(ocr, " ".join(config.ocr_command), config.max_unpacked_bytes)
