"""Shows the spans of a trace as a tree: when each began, how long it took, whose it is, and what it
counted."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from shared.tracing import names
from shared.tracing.kept import KeptSpan

_EVERYWHERE = (names.REQUEST_ID, names.TENANT, names.ERROR_TYPE, names.PROVIDER)
_OURS = "kvquilt."


@dataclass(frozen=True, slots=True)
class SpanNode:
    span: KeptSpan
    children: tuple[SpanNode, ...]


def spans_of(spans: Iterable[KeptSpan], wanted: str) -> list[KeptSpan]:
    """Those of the traces that have this id, or that a request with this id is part of."""
    known = list(spans)
    ids = {s.trace_id for s in known if wanted in (s.trace_id, s.attributes.get(names.REQUEST_ID))}
    return [span for span in known if span.trace_id in ids]


def trees_of(spans: Iterable[KeptSpan]) -> tuple[SpanNode, ...]:
    """In the order in which they began. A span whose parent is not here, as the caller's is not, is a
    root."""
    below: dict[str, list[KeptSpan]] = {}
    ordered = sorted(spans, key=lambda span: (span.began_ns, -span.ended_ns))
    known = {span.span_id for span in ordered}
    for span in ordered:
        below.setdefault(span.parent_id if span.parent_id in known else "", []).append(span)

    def grown(parent_id: str) -> tuple[SpanNode, ...]:
        return tuple(SpanNode(span, grown(span.span_id)) for span in below.get(parent_id, ()))

    return grown("")


def trace_lines(nodes: Sequence[SpanNode]) -> Iterator[str]:
    """A line per span: milliseconds since the first began, and that it took; its service, its name, its
    counts."""
    first_ns = min((node.span.began_ns for node in nodes), default=0)

    def lines(node: SpanNode, depth: int) -> Iterator[str]:
        span = node.span
        began, took = (span.began_ns - first_ns) / 1e6, (span.ended_ns - span.began_ns) / 1e6
        failed = f"  failed: {span.error}" if span.error else ""
        name = f"{'  ' * depth}{span.name}{failed}"
        yield f"{began:9.1f} {took:9.1f}  {span.service:15} {name:44} {counts_of(span)}".rstrip()
        for child in node.children:
            yield from lines(child, depth + 1)

    yield f"{'began':>9} {'took ms':>9}  {'service':15} {'span'}"
    for node in nodes:
        yield from lines(node, 0)


def counts_of(span: KeptSpan) -> str:
    """Returns what it says besides whose request it is of."""
    told = ((key, value) for key, value in span.attributes.items() if key not in _EVERYWHERE and value != "")
    return " ".join(f"{key.removeprefix(_OURS)}={_short(value)}" for key, value in told)


def show_trace(console: Console, spans: Sequence[KeptSpan]) -> None:
    for line in trace_lines(trees_of(spans)):
        console.print(Text(line), soft_wrap=True)


def traces_table(spans: Sequence[KeptSpan], most: int) -> Table:
    """The latest traces, the latest last."""
    table = Table("trace", "request", "tenant", "ms", "spans", "", box=None, pad_edge=False)
    by_trace: dict[str, list[KeptSpan]] = {}
    for span in spans:
        by_trace.setdefault(span.trace_id, []).append(span)
    found = sorted(by_trace.items(), key=lambda one: min(span.began_ns for span in one[1]))
    for trace_id, of_trace in found[-most:]:
        first = min(of_trace, key=lambda span: span.began_ns)
        took = (max(span.ended_ns for span in of_trace) - first.began_ns) / 1e6
        of = (str(first.attributes.get(key, "")) for key in (names.REQUEST_ID, names.TENANT))
        table.add_row(trace_id, *map(Text, of), f"{took:.1f}", str(len(of_trace)), Text(first.name))
    return table


def spans_json(spans: Iterable[KeptSpan]) -> list[dict[str, Any]]:
    return [dataclasses.asdict(span) for span in sorted(spans, key=lambda span: span.began_ns)]


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
