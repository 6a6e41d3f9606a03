"""The Ray Serve application ``selector``."""

from __future__ import annotations

import asyncio
import os

import ray
import torch

from services.selector.config import SelectorConfig
from services.selector.handlers import SelectionServicer
from services.selector.loading import load_selector
from shared import log as logs
from shared.clients.agent_actor import own_node
from shared.private_files import keep_private
from shared.serving import builder_of, load_or_error


class SelectionApp(SelectionServicer):
    """One replica: the auxiliary model."""

    def __init__(self, config: SelectorConfig) -> None:
        logs.configure(self.application, config.deployment.log)
        keep_private()
        self.limits = config.limits
        # Ray sets OMP_NUM_THREADS to the CPUs that it reserves, at least 1.
        torch.set_num_threads(config.threads or len(os.sched_getaffinity(0)))
        node_id = ray.get_runtime_context().get_node_id()
        store = own_node(config.kv_store, node_id) if config.kv_store else None
        loop = asyncio.get_running_loop()
        super().__init__(
            load_or_error(
                lambda: load_selector(config, store, node_id, loop),
                f"auxiliary model {config.model} cannot be used",
            )
        )


build = builder_of(SelectionApp, SelectorConfig)
