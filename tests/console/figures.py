"""Works out, from what the API told, the figures that the console should show."""

from __future__ import annotations

import re
import urllib.request
from typing import Any

FIGURES = {
    "process_resident_memory_bytes": "memory",
    "kvquilt_answers_running": "running",
    "kvquilt_num_requests_running": "running",
    "kvquilt_num_requests_waiting": "waiting",
    "kvquilt_selector_waiting": "waiting",
    "kvquilt_resident_chunks": "chunks",
}


def parts_of(told: dict[str, Any]) -> dict[str, int]:
    """Tokens of the prompt by where their KV came from, as the API's figures have it of a mode that computes
    the same tokens in every layer. What no chunk has of those that existed is the prefix."""
    existed = told["usage"]["prompt_tokens_details"]["cached_tokens"]
    parts = {"computed": told["kvquilt"]["tokens"]["recomputed"]}
    for chunk in told["kvquilt"]["context"]:
        if chunk["origin"] != "computed":
            used = chunk["num_tokens"] - chunk["selected_tokens"]
            parts[chunk["origin"]] = parts.get(chunk["origin"], 0) + used
            existed -= used
    parts["resident"] = parts.get("resident", 0) + existed
    return {origin: tokens for origin, tokens in parts.items() if tokens}


def replicas_of(address: str) -> dict[tuple[str, str], dict[str, float]]:
    """Of each process, by its service and name, what `/metrics` tells."""
    with urllib.request.urlopen(f"{address}/metrics") as response:
        text = response.read().decode()
    found: dict[tuple[str, str], dict[str, float]] = {}
    for name, inner, value in re.findall(r"^(\w+)\{(.*)\} (\S+)$", text, re.MULTILINE):
        labels = dict(re.findall(r'(\w+)="([^"]*)"', inner))
        if name in FIGURES and labels.get("application"):
            figures = found.setdefault((labels["application"], labels["replica"]), {})
            figures[FIGURES[name]] = float(value)
    return found


def number(text: str) -> int:
    return int(text.replace(",", ""))


def span_of(ms: float) -> str:
    return f"{ms / 1000:.2f} s" if ms >= 1000 else f"{ms:.1f} ms"
