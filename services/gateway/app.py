"""The replicas of the Ray Serve application ``gateway``."""

from __future__ import annotations

import asyncio
from functools import partial

from fastapi import FastAPI
from ray import serve

from services.gateway.config import GatewayConfig
from services.gateway.feedback import FeedbackKeeper
from services.gateway.handlers import GatewayHandlers
from services.gateway.http.mcp_route import ToolSources
from services.gateway.http.routes import http_app
from services.gateway.in_turns import InTurns
from services.gateway.kept.kept import kept_by
from services.gateway.metering import Metered, ServicesHealth
from services.gateway.pasted.recognising import Recognising
from services.gateway.pipeline import Pipeline
from services.gateway.prefetch import Prefetching
from services.gateway.reference import Reference
from services.gateway.shadow import Shadow
from shared import log
from shared.admission.turns import Turns
from shared.audited import recorder_of
from shared.clients.applications import transport_to
from shared.clients.generation import GenerationClient
from shared.clients.ingest import IngestClient
from shared.clients.kv_store import KvStoreClient
from shared.clients.retrieval import RetrievalClient
from shared.clients.service import ServiceClient
from shared.metrics.node import gather
from shared.principals.authentication import callers_of
from shared.private_files import keep_private
from shared.serving import metrics_directory, metrics_of_replica
from shared.tracing.provider import start_tracing

OTHERS = ("ingestion", "retrieval", "kv_store", "generator")


@serve.ingress()
class Gateway(GatewayHandlers):
    """One replica. Handles to the other applications of its cluster are looked up at the first call:
    applications start in any order."""

    def __init__(self, config: GatewayConfig) -> None:
        log.configure(self.application, config.deployment.log)
        start_tracing(self.application, config.deployment.tracing)
        keep_private()
        others = (*OTHERS, *filter(None, [config.selector]))
        self.callers = callers_of(config.auth, self.application)
        self.recorder = recorder_of(config.audit, self.application, config.auth)
        identity = self.callers.identity
        transports = {name: transport_to(name, config.addresses, identity) for name in others}
        store = config.kv_store
        fetcher = KvStoreClient(transport_to(store, config.addresses, identity)) if store else None
        feedback = FeedbackKeeper(config.feedback)
        generator = GenerationClient(transports["generator"])
        shadow = None
        if config.shadow.share and fetcher is not None:
            shadow = Shadow(config.shadow, generator, Reference(generator, fetcher))
        self.metrics = metrics_of_replica(self.application, config.deployment.metrics)
        retrieval = RetrievalClient(transports["retrieval"])
        pipeline = Pipeline(
            retrieval,
            generator,
            config,
            Prefetching(fetcher),
            feedback,
            shadow,
            recognising=Recognising(config.pasted, fetcher),
        )
        health = {name: ServiceClient(transport) for name, transport in transports.items()}
        loop = asyncio.get_running_loop()
        signer = identity.signer if identity else None
        self.metrics.ask(ServicesHealth(health, config.status_timeout_s, loop, signer).readings)
        self.guard(config.limits, config.deployment.memory_bytes)
        assert self.door is not None
        turns = InTurns(pipeline, Turns(config.max_running, config.max_waiting), self.door)
        answering = Metered(turns, self.metrics)
        kept, ingestion = None, IngestClient(transports["ingestion"])
        if fetcher is not None:
            kept = kept_by(
                fetcher,
                ingestion,
                retrieval,
                self.door,
                config.rrf_constant,
                responses=config.responses,
            )
        gathered = partial(gather, metrics_directory())
        self._http = http_app(
            answering,
            config.http,
            config.limits,
            self.callers,
            door=self.door,
            metrics=gathered,
            recorder=self.recorder,
            counts=self.metrics,
            embedder=retrieval,
            kept=kept,
            tools=ToolSources(retrieval, ingestion),
            state=self.state,
            tiers=None if fetcher is None else fetcher.stats,
            rate=feedback.rate,
        )
        super().__init__(
            answering, health, config.status_timeout_s, config.addresses, feedback, shadow, fetcher
        )

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Serve's name for what answers HTTP, beside the RPCs and in the same event loop."""
        return self._http
