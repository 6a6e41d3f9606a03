"""Settings of traces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shared.config import check_least

Protocol = Literal["", "grpc", "http/protobuf"]


@dataclass(frozen=True, slots=True)
class TracingConfig:
    """
    endpoint: of an OpenTelemetry collector, `http://HOST:4317` by gRPC or `http://HOST:4318` by HTTP,
    `https://` with TLS; empty: `OTEL_EXPORTER_OTLP_ENDPOINT` of the environment, and none without that.
    Headers, certificates and timeouts come from the environment alone, by OpenTelemetry's own variables
    (docs/tracing.md).
    protocol: `grpc` or `http/protobuf`; empty: `OTEL_EXPORTER_OTLP_PROTOCOL`, else `grpc`.
    sample: the share, 0 to 1, that is traced of requests whose caller does not say by `traceparent` whether
    they are; null: all where there is an endpoint, none elsewhere.
    directory: where each process keeps its spans as JSON lines, for `kvquilt trace`; empty: nowhere. Filled
    in from `data_dir`.
    keep_bytes: of these, for each service; the oldest go first. 0: none are kept.
    content: whether spans hold questions, answers and the names of documents, too.
    """

    endpoint: str = ""
    protocol: Protocol = ""
    sample: float | None = None
    directory: str = ""
    keep_bytes: int = 16 << 20
    content: bool = False

    def __post_init__(self) -> None:
        if self.sample is not None and not 0 <= self.sample <= 1:  # True for NaN
            raise ValueError(f"sample: must be 0 to 1, got {self.sample}")
        if self.endpoint and not self.endpoint.startswith(("http://", "https://")):
            raise ValueError(
                f"endpoint: must be http://HOST:PORT or https://HOST:PORT, got {self.endpoint!r}"
            )
        check_least(self, 0, "keep_bytes")
