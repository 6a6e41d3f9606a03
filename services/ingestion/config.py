"""Settings of the ingestion service."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from shared.audit import AuditConfig
from shared.config import check_above_zero, check_least
from shared.deployment import DeploymentConfig
from shared.kv_types import KvContext
from shared.limits import RequestLimits
from shared.principals.config import AuthConfig
from shared.prompt_config import PromptConfig

DEFAULT_CONTEXT_TOKENS = 4096
LEAST_CHUNK_TOKENS, MOST_CHUNK_TOKENS = 16, 8192


@dataclass(frozen=True, slots=True)
class ParsingConfig:
    """
    Documents are read in processes of their own, at most `ingestion.parallel_documents` of them; a document
    that takes more than this is refused.

    memory_bytes: of a process.
    cpu_s, cpu_s_per_mib: seconds of computing, for every document and for every MiB of it. By the clock it
    may take four times as long.
    text_bytes: of a document's text.
    """

    memory_bytes: int = 2 << 30
    cpu_s: float = 10.0
    cpu_s_per_mib: float = 10.0
    text_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        check_least(self, 256 << 20, "memory_bytes")
        check_least(self, 1, "cpu_s", "text_bytes")
        check_least(self, 0, "cpu_s_per_mib")

    def cpu_s_for(self, num_bytes: int) -> int:
        """For a document of so many bytes."""
        return math.ceil(self.cpu_s + self.cpu_s_per_mib * num_bytes / (1 << 20))


@dataclass(frozen=True, slots=True)
class IngestionConfig:
    """
    model: directory or hub id of the generator's model; only its tokenizer and template are read.
    chunk_tokens: most token ids per chunk, the template's text around it included.
    kv_context: what a chunk's KV is computed behind, besides the prefix: the title, headings and chunks in
    front of it in its document (`document`), its title and headings alone (`header`), or nothing (`none`).
    kv_context_tokens: most token ids in front of a chunk; a longer document is parted into blocks. 0: 4,096,
    or what the model's positions leave beside a chunk.
    prefill_batch: chunks per call to the generator.
    parallel_documents: documents of one run that are worked on at the same time; and of all runs, that are
    read at the same time, in turns over the tenants.
    max_unpacked_bytes: what the packed parts of one document (.docx, .pptx, .xlsx) may unpack to.
    parsing: what reading one document may take.
    ocr_command: program and arguments, run without a shell for every page of a PDF that has no text. A PDF of
    the page is on standard input, or where `{pdf}` says; the text is taken from standard output, or from the
    file that `{text}` names, as UTF-8. Empty: such pages are only reported.
    ocr_timeout_s: how long it may take for a page.
    run_deadline_s: how long a run may take where the caller names no deadline.
    step_timeout_s: how long one call to another service may take; a prefill call gets it once per chunk.
    selector: the application that makes auxiliary KV; empty: there is none. Filled in where `selector.model`
    is set.
    addresses: of applications that another cluster serves; filled in from `applications`.
    prompt: of the generator's model; filled in from the shared section, as limits and auth are.
    """

    model: str
    chunk_tokens: int = 512
    kv_context: KvContext = KvContext.DOCUMENT
    kv_context_tokens: int = 0
    prefill_batch: int = 32
    parallel_documents: int = 4
    max_document_bytes: int = 64 * 2**20
    max_unpacked_bytes: int = 256 * 2**20
    parsing: ParsingConfig = field(default_factory=ParsingConfig)
    ocr_command: tuple[str, ...] = ()
    ocr_timeout_s: float = 60.0
    run_deadline_s: float = 24 * 3600.0
    step_timeout_s: float = 120.0
    selector: str = ""
    addresses: dict[str, str] = field(default_factory=dict)
    prompt: PromptConfig = field(default_factory=PromptConfig)
    limits: RequestLimits = field(default_factory=RequestLimits)
    auth: AuthConfig = field(default_factory=AuthConfig)
    audit: AuditConfig = field(default_factory=AuditConfig)
    deployment: DeploymentConfig = field(default_factory=DeploymentConfig)

    def __post_init__(self) -> None:
        if not LEAST_CHUNK_TOKENS <= self.chunk_tokens <= MOST_CHUNK_TOKENS:
            raise ValueError(
                f"chunk_tokens: must be {LEAST_CHUNK_TOKENS} to {MOST_CHUNK_TOKENS} (a row of the index "
                f"holds no more), got {self.chunk_tokens}"
            )
        check_least(self, 1, "prefill_batch", "parallel_documents")
        check_least(self, 1, "max_document_bytes", "max_unpacked_bytes")
        check_least(self, 0, "kv_context_tokens")
        check_above_zero(self, "run_deadline_s", "step_timeout_s", "ocr_timeout_s")
        if self.ocr_command and not self.ocr_command[0].strip():
            raise ValueError("ocr_command: must begin with the name of a program")
