"""Spans of what a test does, in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from shared.request import RequestContext
from shared.tracing.spans import Recording, record_by

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE_ID, CALLER_ID = TRACEPARENT[3:35], TRACEPARENT[36:52]


@dataclass
class RecordedSpans:
    exporter: InMemorySpanExporter

    def all(self) -> tuple[ReadableSpan, ...]:
        return self.exporter.get_finished_spans()

    def one(self, name: str) -> ReadableSpan:
        (found,) = (span for span in self.all() if span.name == name)
        return found

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all() if span.name == name]

    def names(self) -> set[str]:
        return {span.name for span in self.all()}

    def parent(self, name: str) -> str:
        """The name of the span that the one with this name stands below; the caller's is ``caller``."""
        parent = self.one(name).parent
        if parent is None:
            return ""
        above = {f"{span.context.span_id:016x}": span.name for span in self.all()}
        return above.get(f"{parent.span_id:016x}", "caller")

    def attributes(self, name: str) -> dict[str, Any]:
        return dict(self.one(name).attributes or {})


@contextmanager
def recorded_spans(share: float = 0.0, content: bool = False) -> Iterator[RecordedSpans]:
    """``share``: of the requests whose caller does not say whether they are traced."""
    exporter = InMemorySpanExporter()
    before = record_by(Recording(SimpleSpanProcessor(exporter), Resource.get_empty(), share, content))
    try:
        yield RecordedSpans(exporter)
    finally:
        record_by(before)


def traced(request_id: str = "r1", tenant: str = "") -> RequestContext:
    """Of a caller who wants a trace."""
    return RequestContext.create(request_id, tenant, traceparent=TRACEPARENT)
