"""Settings of the generator."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from shared.audit import AuditConfig
from shared.config import check_above_zero, check_least
from shared.deployment import DeploymentConfig
from shared.engine_config import EngineConfig
from shared.generation.modes import Chooser, ReuseMode
from shared.generation.orders import AskedMode
from shared.generation.selection import Grouping, Reading
from shared.kv_types import KvContext
from shared.limits import RequestLimits
from shared.principals.config import AuthConfig
from shared.prompt_config import PromptConfig
from shared.routing.settings import RoutingSettings
from shared.scaling import ScalingConfig
from shared.sharing import SharingScopes
from shared.verdict import VERDICT_FILE

LEAST_LEASE_MS = 2_000.0
FALLBACKS = tuple(mode for mode in ReuseMode if mode.row.chooser not in (Chooser.CALLER, Chooser.SELECTOR))


@dataclass(frozen=True, slots=True)
class SelectionConfig:
    """The choice of tokens under ``cacheclip``, while KV is loaded: whose it is, and how long a request
    waits.

    application: the selector's; empty: there is none, and ``cacheclip`` is refused.
    fallback: how a request goes on when the selector fails or is late; any mode whose tokens
    the engine chooses itself, or that computes none.
    deadline_share, timeout_s: late is what takes more than this part of the request's remaining time, or so
    many seconds.
    grouping, reading: where the request names none (docs/selection.md).
    """

    application: str = ""
    fallback: Annotated[ReuseMode, FALLBACKS] = ReuseMode.EPIC
    deadline_share: float = 0.25
    timeout_s: float = 5.0
    grouping: Grouping = Grouping.BUDGET
    reading: Reading = Reading.STITCHED

    def __post_init__(self) -> None:
        if not 0 < self.deadline_share <= 1:  # True for NaN
            raise ValueError(f"deadline_share: must be above 0 and at most 1, got {self.deadline_share}")
        check_above_zero(self, "timeout_s")


@dataclass(frozen=True, slots=True)
class GeneratorConfig:
    """``model``: a directory or Hugging Face id. ``reuse``, ``adapter`` (one of ``engine.adapters``, or a
    folder in ``adapters`` beside the model), ``max_tokens`` and ``stop`` (texts that end an answer) apply to
    requests that name none, ``stop`` to those without beams and thoughts. ``stop_repeated`` applies to
    these, too: an answer ends before a sentence or line that it has said already, as small models say the
    same over and over.

    ``forget_deleted_s``: how often the store is asked which resident chunks were deleted, so that they go
    from memory, too; 0: never, they go when their room is needed.

    ``warm_share``: the part of its memory for chunks that a new replica fills with what another one is asked
    for most, before it is asked itself; 0: none.

    ``engine.num_threads`` 0 means all CPUs that this process may use. ``deployment.num_gpus`` 0 means what
    ``engine.device`` needs: 1 for ``cuda``, since Ray hides GPUs that it does not reserve. ``kv_store`` is
    the application that keeps KV; empty: none, everything is computed here and forgotten with the process.
    ``kv_encoding``: how new KV is stored (see ``docs/encodings.md``); what is stored already is read as it
    is. ``kv_context``: what ingestion computes chunks behind, to tell whether a verdict still holds; filled
    in from `ingestion.kv_context`. ``routing``: which replica a question goes to, the one with the shorter
    queue of two (`queue`), the one where its chunks cost least (`chunks`, docs/routing.md), or, to compare
    with, that of its heaviest chunk's hash unless it has more than its share (`rendezvous`). ``router``: how
    `chunks` decides. ``scaling``: when autoscaling wants more replicas (docs/operations.md).
    ``verdict``: the file that ``auto`` goes by, as `kvquilt gate` writes it; empty: ``quilt.verdict.json`` in
    the model's directory, if it is there (docs/recompute.md). ``prompt``,
    ``limits``, ``auth``, ``sharing_scopes``: filled in from what is shared.
    """

    model: str
    engine: EngineConfig = field(default_factory=EngineConfig)
    reuse: AskedMode = ReuseMode.REORDERED
    adapter: str = ""
    max_tokens: int = 256
    max_tokens_limit: int = 8192
    stop: tuple[str, ...] = ()
    stop_repeated: bool = False
    max_chunks: int = 1024
    max_questions: int = 64
    kv_store: str = "kv_store"
    kv_encoding: Literal["exact", "int8", "int4"] = "exact"
    kv_context: KvContext = KvContext.DOCUMENT
    routing: Literal["queue", "chunks", "rendezvous"] = "queue"
    router: RoutingSettings = field(default_factory=RoutingSettings)
    scaling: ScalingConfig = field(default_factory=ScalingConfig)
    verdict: str = ""
    forget_deleted_s: float = 60.0
    warm_share: float = 0.5
    selector: SelectionConfig = field(default_factory=SelectionConfig)
    sharing_scopes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    prompt: PromptConfig = field(default_factory=PromptConfig)
    limits: RequestLimits = field(default_factory=RequestLimits)
    auth: AuthConfig = field(default_factory=AuthConfig)
    audit: AuditConfig = field(default_factory=AuditConfig)
    deployment: DeploymentConfig = field(default_factory=DeploymentConfig)

    @property
    def verdict_file(self) -> Path:
        """Holds the verdicts that ``auto`` goes by, where there are any."""
        return Path(self.verdict) if self.verdict else Path(self.model) / VERDICT_FILE

    def __post_init__(self) -> None:
        if self.engine.on_gpu and not self.deployment.num_gpus:
            object.__setattr__(self, "deployment", replace(self.deployment, num_gpus=1.0))
        if not self.model:
            raise ValueError("model: a directory or Hugging Face id is required")
        check_least(self, 0, "forget_deleted_s")
        if not 0 <= self.warm_share <= 1:  # True for NaN
            raise ValueError(f"warm_share: must be between 0 and 1, got {self.warm_share}")
        SharingScopes(self.sharing_scopes)
        if not all(self.stop):
            raise ValueError("stop: a text is empty")
        check_least(self, 1, "max_tokens", "max_tokens_limit", "max_chunks", "max_questions")
        if self.max_tokens > self.max_tokens_limit:
            raise ValueError(
                f"max_tokens: {self.max_tokens} is above max_tokens_limit ({self.max_tokens_limit})"
            )
        self._check_router()
        if self.adapter and self.adapter not in self.engine.adapters:
            there = ", ".join(self.engine.adapters) or "none is named there"
            raise ValueError(f"adapter: {self.adapter!r} is none of engine.adapters ({there})")
        if isinstance(self.reuse, ReuseMode) and self.reuse.deferred and not self.selector.application:
            raise ValueError(
                "reuse: cacheclip needs a selector; name its application in selector.application"
            )

    def _check_router(self) -> None:
        lease_ms, kept_ms = self.router.lease_ms, self.router.kept_ms
        if lease_ms < LEAST_LEASE_MS:
            raise ValueError(
                f"router.lease_ms: must be at least {LEAST_LEASE_MS:g}, got {lease_ms}: replicas tell what "
                "they hold, and routers ask, twice a second each, so that all would count as silent"
            )
        if kept_ms > lease_ms:
            raise ValueError(
                f"router.kept_ms: {kept_ms} is above router.lease_ms ({lease_ms}): a router would believe "
                "its own decisions for longer than what replicas say became of them"
            )
