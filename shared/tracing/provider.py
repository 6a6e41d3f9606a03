"""Decides, once per process, where spans go: to a collector by OTLP, into files, to both, or nowhere.

Exporters run in threads of their own. A collector that does not answer costs spans, never a request.
"""

from __future__ import annotations

import atexit
import importlib.metadata
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, SynchronousMultiSpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from shared.tracing.config import TracingConfig
from shared.tracing.kept import KeptSpan, SpanFile
from shared.tracing.names import ERROR_TYPE
from shared.tracing.spans import Recording, record_by

log = logging.getLogger(__name__)

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_HTTP_PATH = "/v1/traces"
_KEEP_EVERY_MS = 200
"""So that who has asked finds the spans of the answer soon."""


def start_tracing(
    service: str, config: TracingConfig, environ: Mapping[str, str] = os.environ
) -> SpanProcessor | None:
    """From now on the spans of this process are those of ``service``, and go where ``config`` says. Returns
    what sends them, for whoever ends it before the process ends; None: nothing does."""
    exporters: list[BatchSpanProcessor] = []
    if exports := has_endpoint(config, environ):
        exporters.append(BatchSpanProcessor(otlp_exporter(config, environ)))
    if config.directory and config.keep_bytes:
        try:
            file = SpanFile(Path(config.directory), service, config.keep_bytes)
        except OSError as error:
            log.warning("spans are not kept in tracing.directory: %s", error.strerror)
        else:
            kept = KeepingExporter(file, service)
            exporters.append(BatchSpanProcessor(kept, schedule_delay_millis=_KEEP_EVERY_MS))
    if not exporters or environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        record_by(None)
        return None
    processor = SynchronousMultiSpanProcessor()  # type: ignore[no-untyped-call]
    for exporter in exporters:
        processor.add_span_processor(exporter)
    atexit.register(processor.shutdown)
    share = config.sample if config.sample is not None else float(exports)
    record_by(Recording(processor, resource_of(service), share, config.content))
    return processor


def has_endpoint(config: TracingConfig, environ: Mapping[str, str]) -> bool:
    return bool(config.endpoint) or any(environ.get(name) for name in ENDPOINTS)


def otlp_exporter(config: TracingConfig, environ: Mapping[str, str]) -> SpanExporter:
    """Makes the exporter. What is not in the settings it takes from OpenTelemetry's own variables."""
    named = next((environ[name] for name in _PROTOCOLS if environ.get(name)), "grpc")
    endpoint = config.endpoint.rstrip("/")
    if (config.protocol or named).startswith("http"):
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as OverHttp

        whole = endpoint if endpoint.endswith(_HTTP_PATH) or not endpoint else endpoint + _HTTP_PATH
        return OverHttp(whole or None)
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as OverGrpc

    return OverGrpc(endpoint or None)


def resource_of(service: str) -> Resource:
    """Returns the attributes that all spans of the process have."""
    return Resource.create(
        {
            "service.namespace": "kvquilt",
            "service.name": f"kvquilt-{service}",
            "service.version": importlib.metadata.version("kvquilt"),
        }
    )


class KeepingExporter(SpanExporter):
    """Keeps spans in a file of this machine."""

    def __init__(self, file: SpanFile, service: str) -> None:
        self._file, self._service = file, service

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._file.write([kept_of(span, self._service) for span in spans])
        return SpanExportResult.SUCCESS


def kept_of(span: ReadableSpan, service: str) -> KeptSpan:
    attributes = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in (span.attributes or {}).items()
    }
    assert span.context is not None
    return KeptSpan(
        f"{span.context.trace_id:032x}",
        f"{span.context.span_id:016x}",
        f"{span.parent.span_id:016x}" if span.parent else "",
        service,
        span.name,
        span.start_time or 0,
        span.end_time or 0,
        str(attributes.get(ERROR_TYPE, "")),
        attributes,
    )
