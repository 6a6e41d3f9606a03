"""Settings of the ingestion service."""

from __future__ import annotations

from dataclasses import dataclass, field

from shared.config import check_above_zero, check_least
from shared.deployment import DeploymentConfig
from shared.prompt_config import PromptConfig


@dataclass(frozen=True, slots=True)
class IngestionConfig:
    """
    model: directory or hub id of the generator's model; only its tokenizer and template are read.
    chunk_tokens: most token ids per chunk, the template's text around it included.
    prefill_batch: chunks per call to the generator.
    parallel_documents: documents of one run that are worked on at the same time.
    run_deadline_s: how long a run may take where the caller names no deadline.
    step_timeout_s: how long one call to another service may take; a prefill call gets it once per chunk.
    selector: the application that makes auxiliary KV; empty: there is none. Filled in where `selector.model`
    is set.
    addresses: of applications that another cluster serves; filled in from `applications`.
    prompt: of the generator's model; filled in from the shared section.
    """

    model: str
    chunk_tokens: int = 512
    prefill_batch: int = 32
    parallel_documents: int = 4
    max_document_bytes: int = 64 * 2**20
    run_deadline_s: float = 24 * 3600.0
    step_timeout_s: float = 120.0
    selector: str = ""
    addresses: dict[str, str] = field(default_factory=dict)
    prompt: PromptConfig = field(default_factory=PromptConfig)
    deployment: DeploymentConfig = field(default_factory=DeploymentConfig)

    def __post_init__(self) -> None:
        if not 16 <= self.chunk_tokens <= 8192:
            raise ValueError(
                "chunk_tokens: must be 16 to 8192 (a row of the index holds no more), got "
                f"{self.chunk_tokens}"
            )
        check_least(self, 1, "prefill_batch", "parallel_documents", "max_document_bytes")
        check_above_zero(self, "run_deadline_s", "step_timeout_s")
