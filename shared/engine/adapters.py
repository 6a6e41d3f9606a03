"""Finds the adapters that an engine serves, and brings them to where its model computes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from shared.engine.model.adapting import AdapterWeights
from shared.engine.model.lora import LoraAdapter
from shared.engine.model.lora_files import read_adapter
from shared.engine.model.model import LoadedModel
from shared.engine_config import EngineConfig
from shared.errors import ConfigError


def served_adapters(
    model: LoadedModel, config: EngineConfig, given: Iterable[LoraAdapter]
) -> dict[str, AdapterWeights]:
    """By name: those that ``config`` names directories of, and those given.

    Raises:
        ConfigError: one is not there, is of a kind that is not supported, or cannot be served so.
        CorruptData: one cannot be read.
        ModelMismatch: one was made for another model.
    """
    read = [read_adapter(Path(directory), name) for name, directory in config.adapters.items()]
    adapters = {adapter.name: model.place(adapter) for adapter in (*read, *given)}
    if adapters and config.compile:
        raise ConfigError("engine.compile: compiled layers know no adapters; leave out one")
    return adapters
