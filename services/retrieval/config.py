"""Settings of the retrieval service."""

from __future__ import annotations

from dataclasses import dataclass, field

from shared.config import check_least
from shared.deployment import DeploymentConfig


@dataclass(frozen=True, slots=True)
class RetrievalConfig:
    """
    milvus_uri: absolute path of a directory for the embedded Milvus, or ``http(s)://host:port`` of a server.
    milvus_token: ``user:password`` or API key of a server.
    embedder: "minilm" (all-MiniLM-L6-v2, comes with the installation), or the path of any
    sentence-transformers model.
    embedder_threads: 0 uses the CPUs that the process may run on.
    default_k: hits per query where the caller names no number.
    startup_timeout_s: how long to wait for a Milvus server, or for the previous owner of the embedded
    directory to let go.
    """

    milvus_uri: str
    milvus_token: str = ""
    embedder: str = "minilm"
    embedder_threads: int = 0
    default_k: int = 8
    startup_timeout_s: float = 60.0
    deployment: DeploymentConfig = field(default_factory=DeploymentConfig)

    def __post_init__(self) -> None:
        if not self.milvus_uri:
            raise ValueError("milvus_uri: must be a directory or an http(s) address")
        check_least(self, 1, "default_k")
        check_least(self, 0, "embedder_threads")
        if self.embedded and max(self.deployment.num_replicas, self.deployment.max_replicas) > 1:
            raise ValueError(
                "deployment.num_replicas: the embedded Milvus has one owner; use 1, or a Milvus server "
                "by milvus_uri"
            )

    @property
    def embedded(self) -> bool:
        return not self.milvus_uri.startswith(("http://", "https://"))
