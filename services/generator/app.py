"""The replicas of the Ray Serve application ``generator``."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from functools import partial

import ray
import torch
from ray import serve

from services.generator.config import GeneratorConfig
from services.generator.handlers import GenerationServicer
from services.generator.loading import load_generator
from services.generator.service import Generator
from services.generator.warming import HottestChunks, of_another
from shared import log as logs
from shared.audited import recorder_of
from shared.clients.agent_actor import NoticeCalls, own_node
from shared.clients.kv_store import KvStoreClient
from shared.clients.selection import SelectionClient
from shared.clients.serve_transport import ServeTransport
from shared.principals.authentication import callers_of
from shared.private_files import keep_private
from shared.serving import ByGrpcAlone, load_or_error, metrics_of_replica
from shared.stored_segments.forgetting import Forgetting
from shared.tracing.provider import start_tracing

# The engine's thread lets go of the interpreter for microseconds at a time and is back before the event loop
# has woken up, so that every token waits at each of its hops until the interpreter is taken from the engine
# by force: after 5 ms unless told otherwise.
SWITCH_INTERVAL_S = 0.0005
log = logging.getLogger(__name__)


class GenerationApp(GenerationServicer, ByGrpcAlone):
    """One replica: the model and its engine."""

    def __init__(self, config: GeneratorConfig) -> None:
        logs.configure(self.application, config.deployment.log)
        start_tracing(self.application, config.deployment.tracing)
        keep_private()
        self.guard(config.limits, config.deployment.memory_bytes)
        self.metrics = metrics_of_replica(self.application, config.deployment.metrics, computes=True)
        self.callers = callers_of(config.auth, self.application)
        self.recorder = recorder_of(config.audit, self.application, config.auth)
        # Ray sets OMP_NUM_THREADS to the CPUs that it reserves, at least 1: right for a hundred actors, wrong
        # for an engine.
        torch.set_num_threads(config.engine.num_threads or len(os.sched_getaffinity(0)))
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        chooser = config.selector.application
        selector = SelectionClient(ServeTransport(chooser, self.callers.identity)) if chooser else None
        node_id = ray.get_runtime_context().get_node_id()
        store = own_node(config.kv_store, node_id, self.callers.identity) if config.kv_store else None
        loop = asyncio.get_running_loop()
        super().__init__(
            load_or_error(
                lambda: load_generator(config, store, node_id, loop, selector, self.metrics),
                f"model {config.model} cannot be served",
            )
        )
        if config.kv_store and isinstance(self._loaded, Generator):
            front = KvStoreClient(ServeTransport(config.kv_store, self.callers.identity))
            forgetting = Forgetting(self._loaded, front)
            self._forgetting = loop.create_task(forgetting.forever(config.forget_deleted_s))
        self._replica_id = serve.get_replica_context().replica_tag
        if config.kv_store and config.warm_share and isinstance(self._loaded, Generator):
            self._warming = loop.create_task(self._warm(self._loaded))
        if config.kv_store and config.routing == "chunks" and isinstance(self._loaded, Generator):
            self._telling = loop.create_task(self._tell(self._replica_id, node_id, self._loaded))

    async def hottest(self) -> HottestChunks | None:
        """Asked by other replicas; None: this one serves nothing."""
        if not isinstance(self._loaded, Generator):
            return None
        chunks = await self._loaded.hottest()
        return HottestChunks(self._replica_id, self._loaded.model.fingerprint, chunks)

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Asked by Serve where replicas come and go."""
        return self._loaded.signals() if isinstance(self._loaded, Generator) else {}

    async def _warm(self, generator: Generator) -> None:
        """By what another replica tells. It goes by itself: nothing waits for it or fails with it."""
        context = serve.get_replica_context()
        handle = serve.get_deployment_handle(context.deployment, context.app_name)

        async def ask() -> HottestChunks | None:
            told: HottestChunks | None = await handle.hottest.remote()
            return told

        try:
            await generator.warm(await of_another(ask, self._replica_id, generator.model.fingerprint))
        except Exception:  # Ray's and Serve's have no common kind
            log.exception("no chunks are loaded in advance")

    async def _tell(self, replica_id: str, node_id: str, generator: Generator) -> None:
        notices = NoticeCalls()
        teller = generator.teller(replica_id, partial(notices.tell, node_id))
        await teller.forever()
