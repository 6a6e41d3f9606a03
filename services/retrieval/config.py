"""Settings of the retrieval service."""

from __future__ import annotations

from dataclasses import dataclass, field

from shared.audit import AuditConfig
from shared.config import check_least
from shared.deployment import DeploymentConfig
from shared.limits import RequestLimits
from shared.principals.config import AuthConfig


@dataclass(frozen=True, slots=True)
class RetrievalConfig:
    """
    milvus_uri: absolute path of a directory for the embedded Milvus, or ``http(s)://host:port`` of a server.
    milvus_token: ``user:password`` or API key of a server.
    embedder: "minilm" (all-MiniLM-L6-v2, comes with the installation), or the path of any
    sentence-transformers model. Another one than made an index: what is there is searched with the one that
    made it, until `kvquilt retrieval rebuild` has indexed it anew.
    query_prefix, document_prefix: texts that the embedder wants in front of queries and of documents
    ("query: ", "passage: " for e5); null: those that the model's own files name.
    embedder_threads: 0 uses the CPUs that the process may run on.
    default_k: hits per query where the caller names no number.
    dense_weight: what meaning (the embedder's score) counts in a hybrid search, 0 to 1; words (BM25's) count
    the rest.
    reranker: directory of a cross-encoder (a sequence classification model of one label) that puts what was
    found in order; empty: none.
    rerank_depth: how many of what was found it reads; at least those that were asked for.
    startup_timeout_s: how long to wait for a Milvus server, or for the previous owner of the embedded
    directory to let go.
    limits: of requests; filled in from the shared section, as is auth: who may make them.
    """

    milvus_uri: str
    milvus_token: str = ""
    embedder: str = "minilm"
    query_prefix: str | None = None
    document_prefix: str | None = None
    embedder_threads: int = 0
    default_k: int = 8
    dense_weight: float = 0.5
    reranker: str = ""
    rerank_depth: int = 24
    startup_timeout_s: float = 60.0
    limits: RequestLimits = field(default_factory=RequestLimits)
    auth: AuthConfig = field(default_factory=AuthConfig)
    audit: AuditConfig = field(default_factory=AuditConfig)
    deployment: DeploymentConfig = field(default_factory=DeploymentConfig)

    def __post_init__(self) -> None:
        if not self.milvus_uri:
            raise ValueError("milvus_uri: must be a directory or an http(s) address")
        check_least(self, 1, "default_k", "rerank_depth")
        check_least(self, 0, "embedder_threads")
        if not 0 <= self.dense_weight <= 1:
            raise ValueError(f"dense_weight: must be 0 to 1, got {self.dense_weight}")
        if self.embedded and max(self.deployment.num_replicas, self.deployment.max_replicas) > 1:
            raise ValueError(
                "deployment.num_replicas: the embedded Milvus has one owner; use 1, or a Milvus server "
                "by milvus_uri"
            )

    @property
    def embedded(self) -> bool:
        return not self.milvus_uri.startswith(("http://", "https://"))
