"""Writes the Grafana dashboards: `python -m cluster.dashboards helm/kvquilt/files/dashboards`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_OF = 'namespace=~"$namespace",model_name=~"$model"'
_WIDTH, _HEIGHT, _PER_ROW = 8, 7, 3
_SCHEMA = 39  # of Grafana 10


@dataclass(frozen=True, slots=True)
class Panel:
    """``lines``: expression and legend of each; ``{of}`` in an expression stands for the chosen namespace and
    model."""

    title: str
    unit: str
    lines: tuple[tuple[str, str], ...]
    about: str = ""


def _quantiles(metric: str, by: str = "") -> tuple[tuple[str, str], ...]:
    labels = f"le, {by}" if by else "le"
    legend = f"{{{{{by}}}}} " if by else ""
    return tuple(
        (
            f"histogram_quantile({q}, sum by ({labels}) (rate({metric}_bucket{{of}}[$__rate_interval])))",
            f"{legend}p{int(q * 100)}",
        )
        for q in (0.5, 0.95)
    )


def _rate(metric: str, by: str, matchers: str = "") -> tuple[tuple[str, str], ...]:
    also = f",{matchers}" if matchers else ""
    inside = "{of}" if not also else "{of" + also + "}"
    return ((f"sum by ({by}) (rate({metric}{inside}[$__rate_interval]))", f"{{{{{by}}}}}"),)


def _sum(metric: str, by: str) -> tuple[tuple[str, str], ...]:
    return ((f"sum by ({by}) ({metric}{{of}})", f"{{{{{by}}}}}"),)


def _per_second(metric: str, legend: str = "per second") -> tuple[tuple[str, str], ...]:
    return ((f"sum(rate({metric}{{of}}[$__rate_interval]))", legend),)


def _share(part: str, whole: str) -> str:
    return f"sum(rate({part}{{of}}[$__rate_interval])) / sum(rate({whole}{{of}}[$__rate_interval]))"


QUESTIONS = (
    Panel("Questions", "reqps", _rate("kvquilt_answers_total", "code"), "By what came of them."),
    Panel("Time to first token", "s", _quantiles("kvquilt_answer_time_to_first_token_seconds")),
    Panel("Time to the whole answer", "s", _quantiles("kvquilt_answer_seconds")),
    Panel(
        "Time to first token by mode", "s", _quantiles("kvquilt_answer_time_to_first_token_seconds", "mode")
    ),
    Panel("Retrieval", "s", _quantiles("kvquilt_retrieve_seconds")),
    Panel("Under way", "short", (("sum(kvquilt_answers_running{of})", "questions"),)),
    Panel(
        "Prompt tokens not computed",
        "percentunit",
        (
            (
                _share("kvquilt_prompt_tokens_cached_total", "kvquilt_prompt_tokens_total"),
                "from memory or store",
            ),
        ),
    ),
    Panel("Services ready", "bool", (("min by (service) (kvquilt_service_ready{of})", "{{service}}"),)),
    Panel("Verdict of mode auto", "short", _sum("kvquilt_verdict", "state")),
    Panel("Calls that failed", "reqps", _rate("kvquilt_rpcs_total", "code", 'code!="OK"')),
    Panel("Documents ingested", "reqps", _rate("kvquilt_ingested_documents_total", "outcome")),
    Panel(
        "Tokens ingested",
        "short",
        _per_second("kvquilt_ingested_tokens_total"),
    ),
)
ENGINE = (
    Panel(
        "Requests",
        "short",
        (
            ("sum(kvquilt_num_requests_running{of})", "running"),
            ("sum(kvquilt_num_requests_waiting{of})", "waiting"),
        ),
    ),
    Panel(
        "KV in use", "percentunit", (("max by (replica) (kvquilt_kv_cache_usage_perc{of})", "{{replica}}"),)
    ),
    Panel("Time to first token", "s", _quantiles("kvquilt_time_to_first_token_seconds")),
    Panel("Between tokens", "s", _quantiles("kvquilt_inter_token_latency_seconds")),
    Panel("Queue", "s", _quantiles("kvquilt_request_queue_time_seconds")),
    Panel("Prefill", "s", _quantiles("kvquilt_request_prefill_time_seconds")),
    Panel("Decode", "s", _quantiles("kvquilt_request_decode_time_seconds")),
    Panel("Loading of KV", "s", _quantiles("kvquilt_load_seconds")),
    Panel("Loading of KV by tier", "s", _quantiles("kvquilt_tier_load_seconds", "tier")),
    Panel("KV loaded by tier", "Bps", _rate("kvquilt_loaded_bytes_total", "tier")),
    Panel("Selection of tokens", "s", _quantiles("kvquilt_select_seconds")),
    Panel("Prompt tokens by source", "short", _rate("kvquilt_prompt_tokens_by_source_total", "source")),
    Panel(
        "Generated tokens",
        "short",
        _per_second("kvquilt_generation_tokens_total"),
    ),
    Panel("Requests with earlier turns", "reqps", _rate("kvquilt_conversation_turns_total", "outcome")),
    Panel("Requests by mode", "reqps", _rate("kvquilt_requests_total", "mode")),
    Panel("Share of the context computed anew", "percentunit", _quantiles("kvquilt_recompute_ratio")),
    Panel("Branches per request", "short", _quantiles("kvquilt_forest_width")),
    Panel("Answers by why they ended", "reqps", _rate("kvquilt_request_success_total", "finished_reason")),
    Panel("Questions routed by why", "reqps", _rate("kvquilt_route_decisions_total", "reason")),
    Panel("Choosing a replica", "s", _quantiles("kvquilt_route_seconds")),
    Panel("Chunks that were in memory", "short", _rate("kvquilt_routed_chunks_total", "outcome")),
    Panel(
        "Chunks that were expected in vain",
        "percentunit",
        ((_share("kvquilt_route_stale_total", "kvquilt_routed_chunks_total"), "share"),),
    ),
    Panel("Reports of what replicas hold", "short", _rate("kvquilt_route_reports_total", "outcome")),
    Panel(
        "Paused to make room",
        "reqps",
        _per_second("kvquilt_num_preemptions_total", "requests"),
    ),
)
STORE = (
    Panel("KV by tier", "bytes", _sum("kvquilt_store_bytes", "tier")),
    Panel("Chunks by tier", "short", _sum("kvquilt_store_chunks", "tier")),
    Panel(
        "Room on disk",
        "percentunit",
        (("kvquilt_store_room_bytes{of} / kvquilt_store_disk_bytes{of}", "{{replica}}"),),
    ),
    Panel("Opened chunks by tier", "short", _rate("kvquilt_chunk_hits_total", "tier")),
    Panel(
        "Opened chunks that were on the node",
        "percentunit",
        ((_share("kvquilt_chunk_hits_total", "kvquilt_chunk_opens_total"), "share"),),
    ),
    Panel("Chunks fetched by source", "short", _rate("kvquilt_chunk_fetches_total", "source")),
    Panel("Bytes fetched by source", "Bps", _rate("kvquilt_chunk_fetched_bytes_total", "source")),
    Panel("Evictions", "short", _per_second("kvquilt_evictions_total")),
    Panel("What else happens to chunks", "short", _rate("kvquilt_chunk_events_total", "event")),
    Panel(
        "Documents",
        "short",
        (
            ("sum(kvquilt_store_documents{of})", "documents"),
            ("sum(kvquilt_store_damaged_manifests{of})", "damaged"),
        ),
    ),
    Panel("Pinned", "bytes", _sum("kvquilt_store_pinned_bytes", "tier")),
    Panel("Memory of processes", "bytes", _sum("process_resident_memory_bytes", "application")),
)
DASHBOARDS = {
    "questions": ("kvquilt: questions", QUESTIONS),
    "engine": ("kvquilt: engine", ENGINE),
    "store": ("kvquilt: store", STORE),
}


def dashboard(name: str) -> dict[str, Any]:
    """As Grafana imports it."""
    title, panels = DASHBOARDS[name]
    return {
        "uid": f"kvquilt-{name}",
        "title": title,
        "tags": ["kvquilt"],
        "schemaVersion": _SCHEMA,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": [_panel(number, panel) for number, panel in enumerate(panels)],
    }


def _variables() -> list[dict[str, Any]]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    datasource = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    return [
        datasource,
        *(
            {
                "name": name,
                "type": "query",
                "datasource": source,
                "query": f'label_values(process_start_time_seconds{{model_name!=""}}, {label})',
                "includeAll": True,
                "allValue": ".*",
                "multi": True,
                "refresh": 2,
                "current": {"text": "All", "value": "$__all"},
            }
            for name, label in (("namespace", "namespace"), ("model", "model_name"))
        ),
    ]


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(number, _PER_ROW)
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + i), "expr": _filled(expression), "legendFormat": legend}
            for i, (expression, legend) in enumerate(panel.lines)
        ],
    }


def _filled(expression: str) -> str:
    return expression.replace("{of", "{" + _OF)


def main(arguments: Sequence[str]) -> None:
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    for name in DASHBOARDS:
        (folder / f"{name}.json").write_text(written(name), encoding="utf-8")


def written(name: str) -> str:
    """The file's text."""
    return json.dumps(dashboard(name), indent=1) + "\n"


if __name__ == "__main__":
    main(sys.argv[1:])
