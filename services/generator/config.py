"""Settings of the generator."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from shared.deployment import DeploymentConfig
from shared.engine_config import EngineConfig


@dataclass(frozen=True, slots=True)
class GeneratorConfig:
    """``model``: a directory or Hugging Face id. ``reuse`` and ``max_tokens`` apply to requests that name none.

    ``engine.num_threads`` 0 means all CPUs that this process may use. ``kv_store`` is the application that keeps KV; empty: none,
    everything is computed here and forgotten with the process. ``kv_encoding``: how new KV is stored (see
    ``docs/encodings.md``); what is stored already is read as it is.
    """

    model: str
    engine: EngineConfig = field(default_factory=EngineConfig)
    reuse: Literal["full", "reordered", "composite"] = "reordered"
    max_tokens: int = 256
    max_tokens_limit: int = 8192
    max_chunks: int = 1024
    max_questions: int = 64
    kv_store: str = "kv_store"
    kv_encoding: Literal["exact", "int8", "int4"] = "exact"
    deployment: DeploymentConfig = field(default_factory=DeploymentConfig)

    def __post_init__(self) -> None:
        if not self.model:
            raise ValueError("model: a directory or Hugging Face id is required")
        for name in ("max_tokens", "max_tokens_limit", "max_chunks", "max_questions"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: must be at least 1, got {getattr(self, name)}")
        if self.max_tokens > self.max_tokens_limit:
            raise ValueError(f"max_tokens: {self.max_tokens} is above max_tokens_limit ({self.max_tokens_limit})")
