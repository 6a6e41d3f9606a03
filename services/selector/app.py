"""The replicas of the Ray Serve application ``selector``."""

from __future__ import annotations

import asyncio
import os

import ray
import torch

from services.selector.config import SelectorConfig
from services.selector.handlers import SelectionServicer
from services.selector.loading import load_selector
from services.selector.service import SelectorService
from shared import log as logs
from shared.audited import recorder_of
from shared.clients.agent_actor import own_node
from shared.clients.kv_store import KvStoreClient
from shared.clients.serve_transport import ServeTransport
from shared.principals.authentication import callers_of
from shared.private_files import keep_private
from shared.serving import ByGrpcAlone, load_or_error, metrics_of_replica
from shared.stored_segments.forgetting import Forgetting
from shared.tracing.provider import start_tracing


class SelectionApp(SelectionServicer, ByGrpcAlone):
    """One replica: the auxiliary model."""

    def __init__(self, config: SelectorConfig) -> None:
        logs.configure(self.application, config.deployment.log)
        start_tracing(self.application, config.deployment.tracing)
        keep_private()
        self.guard(config.limits, config.deployment.memory_bytes)
        self.metrics = metrics_of_replica(self.application, config.deployment.metrics, computes=True)
        self.callers = callers_of(config.auth, self.application)
        self.recorder = recorder_of(config.audit, self.application, config.auth)
        # Ray sets OMP_NUM_THREADS to the CPUs that it reserves, at least 1.
        torch.set_num_threads(config.threads or len(os.sched_getaffinity(0)))
        node_id = ray.get_runtime_context().get_node_id()
        store = own_node(config.kv_store, node_id, self.callers.identity) if config.kv_store else None
        loop = asyncio.get_running_loop()
        super().__init__(
            load_or_error(
                lambda: load_selector(config, store, node_id, loop),
                f"auxiliary model {config.model} cannot be used",
            )
        )
        if isinstance(self._loaded, SelectorService):
            self.metrics.ask(self._loaded.readings)
        if config.kv_store and isinstance(self._loaded, SelectorService):
            front = KvStoreClient(ServeTransport(config.kv_store, self.callers.identity))
            forgetting = Forgetting(self._loaded, front)
            self._forgetting = loop.create_task(forgetting.forever(config.forget_deleted_s))

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Asked by Serve where replicas come and go."""
        return self._loaded.signals() if isinstance(self._loaded, SelectorService) else {}
