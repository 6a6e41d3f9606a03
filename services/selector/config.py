"""Settings of the selector."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from shared.audit import AuditConfig
from shared.config import check_least
from shared.deployment import DeploymentConfig
from shared.engine_config import GIB
from shared.limits import RequestLimits
from shared.principals.config import AuthConfig
from shared.prompt_config import PromptConfig
from shared.scaling import ScalingConfig


@dataclass(frozen=True, slots=True)
class SelectorConfig:
    """
    model: the auxiliary model, a directory, a folder of the model's directory (such as the demo model's
    `auxiliary` and `auxiliary-gain`) or a Hugging Face id; empty: there is no selector.
    primary: the model whose tokens are chosen; only its tokenizer and template are read.
    dtype: of the auxiliary's weights and KV; ``auto`` is bfloat16 where the processor computes it, else
    float32.
    threads: of one computation; 0: all CPUs that the process may use.
    resident_bytes: auxiliary KV that is kept in memory, least recently used first to go.
    resident_floor: the share of it that stays a tenant's when others need room, as of `generator.engine`.
    loader_threads: read the stored KV of one request; one more writes.
    max_chunks, max_questions: most that one request may have.
    max_waiting: requests that wait for the auxiliary model beyond this many are refused as overloaded.
    forget_deleted_s: how often the store is asked which resident chunks were deleted, so that they go from
    memory, too; 0: never.
    kv_store: the application that keeps auxiliary KV; empty: none, it is computed here and forgotten with the
    process.
    scaling: when autoscaling wants more replicas.
    prompt: of the primary; filled in from the shared section, as limits and auth are.
    """

    model: str = ""
    primary: str = ""
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    threads: int = 0
    resident_bytes: int = 2 * GIB
    resident_floor: float = 0.1
    loader_threads: int = 2
    max_chunks: int = 1024
    max_questions: int = 64
    max_waiting: int = 64
    forget_deleted_s: float = 60.0
    kv_store: str = "kv_store"
    scaling: ScalingConfig = field(default_factory=ScalingConfig)
    prompt: PromptConfig = field(default_factory=PromptConfig)
    limits: RequestLimits = field(default_factory=RequestLimits)
    auth: AuthConfig = field(default_factory=AuthConfig)
    audit: AuditConfig = field(default_factory=AuditConfig)
    deployment: DeploymentConfig = field(default_factory=DeploymentConfig)

    def __post_init__(self) -> None:
        check_least(self, 1, "resident_bytes", "loader_threads", "max_chunks", "max_questions", "max_waiting")
        check_least(self, 0, "threads", "forget_deleted_s")
        if not 0 <= self.resident_floor <= 1:  # False for NaN
            raise ValueError(f"resident_floor: must be from 0 to 1, got {self.resident_floor}")
