"""The one YAML that configures the whole system.

Top-level settings are what several services share; each section is that service's own configuration.
``load_quilt`` fills the shared values into the sections, so that a section only needs what differs from the
rule. A model directory may bring a ``quilt.yaml`` of its own with the settings that suit the model; whatever
the operator says is stronger.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from cluster.addresses import ApplicationConfig, addresses_in
from cluster.models.names import served_name
from cluster.models.resolution import resolve_model
from cluster.models.settings import (
    SUITED,
    located_adapters,
    located_auxiliary,
    located_packets,
    model_settings,
    own_adapter,
    own_packets,
    under,
)
from cluster.paths import DEMO_MODEL, default_data_dir
from services.gateway.config import GatewayConfig
from services.generator.config import GeneratorConfig
from services.ingestion.config import IngestionConfig
from services.kv_store.config import KvStoreConfig
from services.retrieval.config import RetrievalConfig
from services.selector.config import SelectorConfig
from shared.audit import AuditConfig
from shared.config import load, merge_env
from shared.errors import ConfigError
from shared.kv_types import KvContext
from shared.limits import RequestLimits
from shared.log import LogConfig
from shared.metrics.config import MetricsConfig
from shared.principals.config import AuthConfig
from shared.prompt_config import PromptConfig
from shared.sharing import SharingScopes
from shared.tracing.config import TracingConfig

DEFAULT_GRPC_PORT = 9000
DEFAULT_HTTP_PORT = 8000
TRACES = "traces"
"""Where spans are kept, below the data directory."""
PROMPTED = ("ingestion", "generator", "selector")
"""Those that make prompts of texts."""
SHARING = ("kv_store", "generator")
"""Those that know whose the KV of a chunk is."""
DEPLOYED = ("log", "metrics", "tracing")
"""Shared settings that stand in each service's ``deployment``."""


@dataclass(frozen=True, slots=True)
class QuiltConfig:
    """
    model: a directory, a GGUF file, `demo`, `smollm2`, a pulled `ID@REVISION`, or a Hugging Face id
    (docs/models.md). `kvquilt up` takes `smollm2` where none is named; a cluster's pods, directories and ids.
    data_dir: everything that must survive: KV files, manifests of the documents, the embedded index, logs
    and traces.
    grpc_port: where every service is called.
    grpc_host: the address on which `kvquilt up` listens there; nobody is asked who he is, so think of a proxy
    before it is another one. On a cluster Ray Serve listens on all interfaces.
    http_port, http_host: where OpenAI's clients call (docs/http.md), and Ray Serve's health checks.
    tls_cert, tls_key: PEM files of a certificate (its chain behind it) and its key; `kvquilt up` then answers
    callers on both ports by TLS alone. On Kubernetes the chart's `tls`, elsewhere a proxy does.
    log: level (DEBUG, INFO, WARNING, ERROR) and format (text, json) of every service.
    metrics: of every service, for Prometheus (docs/metrics.md).
    tracing: where spans of requests go, and of how many (docs/tracing.md).
    prompt: what the model is told around documents and questions (docs/prompts.md).
    limits: of every request (docs/limits.md).
    auth: who may call (docs/authentication.md).
    audit: where it is on record who did what (docs/integrity.md).
    sharing_scopes: by the name of a scope the tenants that share the KV of equal chunks, each tenant in one
    scope at most; whoever is in none shares with nobody (docs/integrity.md#sharing-in-a-scope).
    internal_calls: whether `grpc_port` also offers what only services call, to services of other clusters
    that know this one's secret; without, no caller finds these RPCs there (docs/transport.md).
    applications: `NAME.address` is `host:port` of the cluster that serves NAME instead of this one
    (docs/transport.md).
    """

    gateway: GatewayConfig
    ingestion: IngestionConfig
    retrieval: RetrievalConfig
    kv_store: KvStoreConfig
    generator: GeneratorConfig
    selector: SelectorConfig
    data_dir: str
    model: str = str(DEMO_MODEL)
    grpc_port: int = DEFAULT_GRPC_PORT
    grpc_host: str = "127.0.0.1"
    http_port: int = DEFAULT_HTTP_PORT
    http_host: str = "127.0.0.1"
    tls_cert: str = ""
    tls_key: str = ""
    log: LogConfig = field(default_factory=LogConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    tracing: TracingConfig = field(default_factory=TracingConfig)
    prompt: PromptConfig = field(default_factory=PromptConfig)
    limits: RequestLimits = field(default_factory=RequestLimits)
    auth: AuthConfig = field(default_factory=AuthConfig)
    audit: AuditConfig = field(default_factory=AuditConfig)
    sharing_scopes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    internal_calls: bool = False
    applications: dict[str, ApplicationConfig] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("grpc_port", "http_port"):
            if not 1 <= getattr(self, name) <= 65535:
                raise ValueError(f"{name}: must be 1 to 65535, got {getattr(self, name)}")
        if self.metrics.port in (self.grpc_port, self.http_port):
            raise ValueError(
                f"metrics.port: is {self.metrics.port}, like grpc_port or http_port; they must differ"
            )
        if self.grpc_port == self.http_port:
            raise ValueError(f"http_port: is {self.http_port}, like grpc_port; they must differ")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("tls_key: goes with tls_cert; name both files, or none")
        if self.prompt.packets:
            self._check_packets()

    def _check_packets(self) -> None:
        if self.ingestion.kv_context is not KvContext.NONE:
            raise ValueError(
                "ingestion.kv_context: packets (prompt.packets) are for isolated chunks; set it to none, or "
                "leave them out"
            )
        if self.ingestion.selector:
            raise ValueError(
                "selector.model: with packets (prompt.packets) no tokens are computed anew, so nobody needs "
                "to choose any; set it to '', or leave them out"
            )

    @property
    def addresses(self) -> dict[str, str]:
        """Application → ``host:port``, of those that another cluster serves."""
        return {name: app.address for name, app in self.applications.items() if app.address}


def load_quilt(
    values: Mapping[str, Any], environ: Mapping[str, str], resolve: Callable[[str], str] | None = None
) -> QuiltConfig:
    """Defaults < the model's own ``quilt.yaml`` < ``values`` (the operator's YAML) < ``KVQUILT_*`` of
    ``environ``.

    ``resolve``: of the model; None: ``resolve_model``, which refuses what is not here, and converts GGUF
    files.

    Raises:
        ConfigError: names the setting.
    """
    merged = merge_env(values, environ)
    merged["data_dir"] = str(
        Path(merged.get("data_dir") or default_data_dir(environ)).expanduser().absolute()
    )
    named = str(merged.get("model") or DEMO_MODEL)
    merged["model"] = (resolve or partial(resolve_model, setting="model", environ=environ))(named)
    for section in (*SUITED, "tracing"):
        merged[section] = merged.get(section) or {}
        if not isinstance(merged[section], Mapping):
            raise ConfigError(f"{section}: expected a section, got {merged[section]!r}")
    addresses = addresses_in(merged)
    # a selector that ran here would have no store to keep its KV in
    elsewhere = {*addresses, *(("selector",) if "kv_store" in addresses else ())}
    suited = model_settings(merged["model"])
    for section in SUITED:
        merged[section] = under(merged[section], {} if section in elsewhere else suited.get(section, {}))
    merged["generator"] = under(located_adapters(merged["generator"], Path.cwd()), merged["generator"])
    merged["generator"] = under(merged["generator"], own_adapter(merged["generator"], merged["model"]))
    merged["prompt"] = under(located_packets(merged["prompt"], Path.cwd()), merged["prompt"])
    merged["prompt"] = under(own_packets(merged["prompt"], merged["model"]), merged["prompt"])
    load(PromptConfig, merged["prompt"], "prompt.")  # names the setting where it was written
    load(RequestLimits, merged["limits"], "limits.")
    load(MetricsConfig, merged.get("metrics") or {}, "metrics.")
    merged["tracing"] = under(merged["tracing"], {"directory": str(Path(merged["data_dir"]) / TRACES)})
    load(TracingConfig, merged["tracing"], "tracing.")
    if not merged.get("sharing_scopes"):
        merged["sharing_scopes"] = {}
    load(SharingScopes, {"sharing_scopes": merged["sharing_scopes"]})
    merged["auth"] = _auth_values(merged)
    merged["audit"] = _audit_values(merged)
    auxiliary = located_auxiliary(str(merged["selector"].get("model") or ""), merged["model"])
    merged["selector"]["model"] = auxiliary and (
        resolve or partial(resolve_model, setting="selector.model", environ=environ)
    )(auxiliary)
    merged["metrics"] = under(merged.get("metrics") or {}, {"model_name": served_name(named)})
    for section, shared in _shared_values(merged, addresses, served_name(named)).items():
        merged[section] = under(merged[section], shared)
    return load(QuiltConfig, merged)


def _shared_values(
    merged: Mapping[str, Any], addresses: Mapping[str, str], served: str
) -> dict[str, dict[str, Any]]:
    data_dir, model = Path(merged["data_dir"]), merged["model"]
    selector = "selector" if merged["selector"].get("model") or "selector" in addresses else ""
    kv_context = merged["ingestion"].get("kv_context")
    embedder = merged["retrieval"].get("embedder")
    values: dict[str, dict[str, Any]] = {
        "gateway": {
            "selector": selector,
            "addresses": addresses,
            "http": {"model": served} | ({"embedder": served_name(str(embedder))} if embedder else {}),
            "feedback": {"directory": str(data_dir / "feedback")},
        },
        "ingestion": {"model": model, "selector": selector, "addresses": addresses},
        "retrieval": {"milvus_uri": str(data_dir / "index.db")},
        "kv_store": {"directory": str(data_dir / "kv")},
        "generator": {"model": model, "selector": {"application": selector}},
        "selector": {"primary": model},
    }
    if kv_context in set(KvContext):  # else its own section says what is wrong
        for name in ("gateway", "generator"):
            values[name]["kv_context"] = kv_context
    if merged["generator"].get("routing", "queue") != "queue":
        values["gateway"]["names_chunks"] = True
    if shared := {name: merged[name] for name in DEPLOYED if merged.get(name)}:
        for section in values.values():
            section["deployment"] = shared
    for name in PROMPTED:
        values[name]["prompt"] = merged["prompt"]
    for name in SHARING:
        values[name]["sharing_scopes"] = merged["sharing_scopes"]
    for section in values.values():
        section["limits"] = merged["limits"]
        section["auth"] = merged["auth"]
        section["audit"] = merged["audit"]
    return values


def _auth_values(merged: Mapping[str, Any]) -> dict[str, Any]:
    """
    Raises:
        ConfigError: names the setting where it was written.
    """
    given = merged.get("auth") or {}
    if not isinstance(given, Mapping):
        raise ConfigError(f"auth: expected a section, got {given!r}")
    place = Path(merged["data_dir"]) / "auth"
    values = under(given, {"keys_file": str(place / "keys.json"), "secret_file": str(place / "secret")})
    load(AuthConfig, values, "auth.")
    return values


def _audit_values(merged: Mapping[str, Any]) -> dict[str, Any]:
    """Raises like ``_auth_values``."""
    given = merged.get("audit") or {}
    if not isinstance(given, Mapping):
        raise ConfigError(f"audit: expected a section, got {given!r}")
    values = under(given, {"directory": str(Path(merged["data_dir"]) / "audit")})
    load(AuditConfig, values, "audit.")
    return values
