"""The Ray Serve application ``selector``."""

from __future__ import annotations

import asyncio
import logging
import os

import ray
import torch

from services.selector.config import SelectorConfig
from services.selector.handlers import SelectionServicer
from services.selector.loading import load_selector
from shared import log as logs
from shared.clients.agent_actor import own_node
from shared.errors import KvquiltError
from shared.serving import builder_of

log = logging.getLogger(__name__)


class SelectionApp(SelectionServicer):
    """A model that cannot be served is no reason to crash again and again: the replica stays, and Health says
    what is wrong."""

    def __init__(self, config: SelectorConfig) -> None:
        logs.configure(self.application, config.deployment.log)
        # Ray sets OMP_NUM_THREADS to the CPUs that it reserves, at least 1.
        torch.set_num_threads(config.threads or len(os.sched_getaffinity(0)))
        node_id = ray.get_runtime_context().get_node_id()
        store = own_node(config.kv_store, node_id) if config.kv_store else None
        try:
            super().__init__(load_selector(config, store, node_id, asyncio.get_running_loop()))
        except KvquiltError as error:
            log.error("auxiliary model %s cannot be used: %s", config.model, error.detail)
            super().__init__(error)


build = builder_of(SelectionApp, SelectorConfig)
