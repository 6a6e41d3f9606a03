"""Settings of the gateway."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from shared.answer import Refusal
from shared.audit import AuditConfig
from shared.config import check_above_zero, check_least
from shared.deployment import DeploymentConfig
from shared.generation.modes import ReuseMode
from shared.generation.orders import AskedMode
from shared.kv_types import KvContext
from shared.limits import RequestLimits
from shared.principals.config import AuthConfig
from shared.search import ContextOrder


@dataclass(frozen=True, slots=True)
class RefusalConfig:
    """
    mode: off, lenient or strict, where the request names none.
    lenient, strict: the evidence, 0 to 1, below which a question is refused: the mean of the best chunk's
    cosine and of the share of the question's words that it holds. For the embedder that comes with the
    installation; docs/retrieval.md has what they cost, and how to choose others.
    text: the answer then.
    """

    mode: Refusal = Refusal.OFF
    lenient: float = 0.35
    strict: float = 0.45
    text: str = "The documents do not say."

    def __post_init__(self) -> None:
        for name in ("lenient", "strict"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}: must be 0 to 1, got {getattr(self, name)}")
        if self.strict < self.lenient:
            raise ValueError(f"strict: {self.strict} is below lenient ({self.lenient})")
        if not self.text.strip():
            raise ValueError("text: must not be empty")


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """
    model: the name by which OpenAI's clients ask for the model; filled in from `model`.
    embedder: the name by which they ask for vectors; filled in from `retrieval.embedder`.
    max_body_bytes: of a request; what is larger is refused.
    max_upload_bytes: of a file that is uploaded; `ingestion.max_document_bytes` bounds what can be ingested.
    """

    model: str = ""
    embedder: str = "minilm"
    max_body_bytes: int = 1 << 20
    max_upload_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        check_least(self, 1, "max_body_bytes", "max_upload_bytes")


@dataclass(frozen=True, slots=True)
class ResponsesConfig:
    """Answers of `/v1/responses` that are kept, so that others go on from them (docs/http.md).

    store: whether one is kept whose request does not say.
    kept_s: seconds after which one is gone.
    most_bytes: of a tenant's; the oldest go first. 0: none are kept.
    """

    store: bool = False
    kept_s: float = 30 * 86_400.0
    most_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        check_above_zero(self, "kept_s")
        check_least(self, 0, "most_bytes")


class FollowUpSearch(enum.StrEnum):
    """REWRITE: by the question as the served model writes it to stand alone; JOINED: by it and what the user
    said before; LAST: by the question as it is."""

    REWRITE = "rewrite"
    JOINED = "joined"
    LAST = "last"


@dataclass(frozen=True, slots=True)
class FollowUpsConfig:
    """What is searched by where a question follows others (docs/http.md).

    search: `rewrite`, `joined` or `last`.
    most_turns: of the conversation, the last ones, that the question is written anew by or joined with.
    max_tokens: of a question that is written anew.
    timeout_s: seconds that this may take, and half of what is left until the deadline; then the question is
    searched by as it is.
    """

    search: FollowUpSearch = FollowUpSearch.JOINED
    most_turns: int = 6
    max_tokens: int = 48
    timeout_s: float = 5.0

    def __post_init__(self) -> None:
        check_least(self, 1, "most_turns", "max_tokens")
        check_above_zero(self, "timeout_s")


@dataclass(frozen=True, slots=True)
class PastedConfig:
    """Text in messages that becomes their context, where neither a collection nor documents are named.

    enabled: whether it is looked for.
    least_chars: from which on text that no document has is prefilled once and kept for the tenant.
    known_bytes: of hashes of ingested documents that a replica keeps, over all tenants.
    refresh_s: seconds after which it is looked which documents there are now.
    wait_s: how long the first question may wait until the documents are known.
    """

    enabled: bool = True
    least_chars: int = 1024
    known_bytes: int = 64 << 20
    refresh_s: float = 30.0
    wait_s: float = 2.0

    def __post_init__(self) -> None:
        check_least(self, 64, "least_chars")
        check_least(self, 0, "known_bytes")
        check_above_zero(self, "refresh_s", "wait_s")


@dataclass(frozen=True, slots=True)
class FeedbackConfig:
    """
    directory: where ratings are kept, a file for each tenant; empty: they are refused. Filled in from
    `data_dir`.
    remembered: how many answers a replica remembers, so that they can be rated.
    most_ratings: of a tenant; the oldest go first.
    max_comment_chars: of a comment.
    """

    directory: str = ""
    remembered: int = 1000
    most_ratings: int = 10_000
    max_comment_chars: int = 4000

    def __post_init__(self) -> None:
        check_least(self, 1, "remembered", "most_ratings", "max_comment_chars")


@dataclass(frozen=True, slots=True)
class ShadowConfig:
    """Questions that mode `auto` answered by the model's verdict are asked again of the reference, `full`
    over whole blocks, while the generator has nothing else to do (docs/gate.md).

    share: of these questions, 0 (none) to 1.
    tolerance: how far the mean agreement of both answers (F1 of their words) may lie below what it was when
    the verdict was made; where it is certain that it lies further below, the verdict is suspended.
    alpha: the chance that it is suspended although agreement is as it should be, for each window.
    window: questions after which counting begins anew.
    most_waiting: questions that wait for idle time, in memory; the oldest go first.
    most_wait_s: seconds after which one that waits is dropped.
    """

    share: float = 0.0
    tolerance: float = 0.1
    alpha: float = 0.05
    window: int = 500
    most_waiting: int = 32
    most_wait_s: float = 600.0

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:  # True for NaN
            raise ValueError(f"share: must be 0 to 1, got {self.share}")
        for name in ("tolerance", "alpha"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name}: must be above 0 and below 1, got {getattr(self, name)}")
        check_least(self, 1, "window", "most_waiting")
        check_above_zero(self, "most_wait_s")


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """
    k: chunks in a context when the request names none; max_k: most it may name.
    order: of the chunks in a context: `best_first`, or `best_last`, the best one next to the question, where
    small models read best.
    max_questions: most questions over one context.
    max_running, max_waiting: requests that a replica answers at once, and that wait for it, in turns over the
    tenants; what would come too late for its deadline is refused at once.
    reuse: where the request names none.
    refusal: of questions that the documents hold too little evidence for.
    http: of the requests of OpenAI's clients (docs/http.md).
    responses: those that are kept (docs/http.md).
    follow_ups: what is searched by where a question follows others (docs/http.md).
    pasted: text in messages that becomes their context (docs/pasted-text.md).
    feedback: what users say of answers (docs/gate.md).
    shadow: whether answers by the model's verdict still agree with the reference's (docs/gate.md).
    rrf_constant: of reciprocal-rank fusion of several questions' rankings; larger values weigh the top of
    the rankings less.
    status_timeout_s: how long a service may take to say that it is well.
    names_chunks: whether questions tell the generator's router which chunks they are about; filled in from
    `generator.routing`.
    kv_context: what chunks are computed behind, to name collections of which it is not so; filled in from
    `ingestion.kv_context`.
    kv_store: the application that is told, as soon as chunks are retrieved, to bring their KV nearer; empty:
    nobody is told.
    selector: the application that selects tokens; empty: there is none. Filled in where `selector.model` is
    set.
    addresses: of applications that another cluster serves; filled in from `applications`.
    limits: of requests; filled in from the shared section, as is auth: who may make them.
    """

    k: int = 8
    max_k: int = 64
    order: ContextOrder = ContextOrder.BEST_FIRST
    max_questions: int = 32
    max_running: int = 64
    max_waiting: int = 512
    reuse: AskedMode = ReuseMode.REORDERED
    refusal: RefusalConfig = field(default_factory=RefusalConfig)
    http: HttpConfig = field(default_factory=HttpConfig)
    responses: ResponsesConfig = field(default_factory=ResponsesConfig)
    follow_ups: FollowUpsConfig = field(default_factory=FollowUpsConfig)
    pasted: PastedConfig = field(default_factory=PastedConfig)
    feedback: FeedbackConfig = field(default_factory=FeedbackConfig)
    shadow: ShadowConfig = field(default_factory=ShadowConfig)
    rrf_constant: int = 60
    status_timeout_s: float = 3.0
    names_chunks: bool = False
    kv_context: KvContext = KvContext.DOCUMENT
    kv_store: str = "kv_store"
    selector: str = ""
    addresses: dict[str, str] = field(default_factory=dict)
    limits: RequestLimits = field(default_factory=RequestLimits)
    auth: AuthConfig = field(default_factory=AuthConfig)
    audit: AuditConfig = field(default_factory=AuditConfig)
    deployment: DeploymentConfig = field(default_factory=DeploymentConfig)

    def __post_init__(self) -> None:
        check_least(self, 1, "k", "max_k", "max_questions", "max_running", "rrf_constant")
        check_least(self, 0, "max_waiting")
        check_above_zero(self, "status_timeout_s")
        if self.k > self.max_k:
            raise ValueError(f"k: {self.k} is above max_k ({self.max_k})")
        if self.shadow.share and not self.kv_store:
            raise ValueError(
                "shadow.share: the reference reads whole blocks, which the KV store knows; name its "
                "application in kv_store"
            )
