"""Builds the gateway application."""

from __future__ import annotations

from fastapi import FastAPI
from ray import serve

from services.gateway.config import GatewayConfig
from services.gateway.feedback import FeedbackKeeper
from services.gateway.handlers import GatewayHandlers
from services.gateway.http.routes import http_app
from services.gateway.pipeline import Pipeline
from services.gateway.prefetch import Prefetching
from services.gateway.reference import Reference
from services.gateway.shadow import Shadow
from shared import log
from shared.clients.applications import transport_to
from shared.clients.generation import GenerationClient
from shared.clients.kv_store import KvStoreClient
from shared.clients.retrieval import RetrievalClient
from shared.clients.service import ServiceClient
from shared.private_files import keep_private
from shared.serving import builder_of

OTHERS = ("ingestion", "retrieval", "kv_store", "generator")


class Gateway(GatewayHandlers):
    """One replica. Handles to the other applications of its cluster are looked up at the first call:
    applications start in any order."""

    def __init__(self, config: GatewayConfig) -> None:
        log.configure(self.application, config.deployment.log)
        keep_private()
        others = (*OTHERS, *filter(None, [config.selector]))
        transports = {name: transport_to(name, config.addresses) for name in others}
        store = config.kv_store
        fetcher = KvStoreClient(transport_to(store, config.addresses)) if store else None
        feedback = FeedbackKeeper(config.feedback)
        generator = GenerationClient(transports["generator"])
        shadow = None
        if config.shadow.share and fetcher is not None:
            shadow = Shadow(config.shadow, generator, Reference(generator, fetcher))
        pipeline = Pipeline(
            RetrievalClient(transports["retrieval"]),
            generator,
            config,
            Prefetching(fetcher),
            feedback,
            shadow,
        )
        self._http = http_app(pipeline, config.http, config.limits)
        health = {name: ServiceClient(transport) for name, transport in transports.items()}
        self.limits = config.limits
        super().__init__(pipeline, health, config.status_timeout_s, config.addresses, feedback, shadow)

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Serve's name for what answers HTTP, beside the RPCs and in the same event loop."""
        return self._http


build = builder_of(serve.ingress()(Gateway), GatewayConfig)
