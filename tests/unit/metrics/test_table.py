"""The list of metrics follows Prometheus's rules, and vLLM's words."""

from __future__ import annotations

from collections import Counter

import pytest

from cluster.compose import APPLICATIONS
from cluster.config import load_quilt
from shared.errors import ConfigError
from shared.metrics import table
from shared.metrics.config import MOST_TENANTS
from shared.metrics.metric import MetricKind, MetricSpec

UNITS = ("seconds", "bytes", "tokens", "ratio")
VLLM = {  # of vLLM 0.33, as notes on the field list them
    "num_requests_running",
    "num_requests_waiting",
    "num_requests_waiting_by_reason",
    "kv_cache_usage_perc",
    "cache_config_info",
    "num_preemptions",
    "spec_decode_num_drafts",
    "spec_decode_num_draft_tokens",
    "spec_decode_num_accepted_tokens",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "external_prefix_cache_queries",
    "external_prefix_cache_hits",
    "prompt_tokens",
    "prompt_tokens_by_source",
    "prompt_tokens_cached",
    "generation_tokens",
    "request_success",
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_inference_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_prefill_kv_computed_tokens",
}


def test_no_name_stands_twice_in_the_list() -> None:
    assert [name for name, num in Counter(one.name for one in table.ALL).items() if num > 1] == []


def test_vllms_names_are_all_there_and_the_generators() -> None:
    assert {one.name for one in table.ALL if one.vllm} == VLLM
    assert all(one.applications == ("generator",) for one in table.ALL if one.vllm)


@pytest.mark.parametrize("metric", table.ALL, ids=lambda one: one.name)
def test_a_metric_says_what_it_is(metric: MetricSpec) -> None:
    assert metric.help[0].isupper()
    assert metric.help.endswith(".")
    assert metric.unit
    assert set(metric.applications) <= {*APPLICATIONS, "node"}
    if metric.unit in ("seconds", "bytes") or metric.unit == "ratio":
        words = {"ratio": ("ratio", "perc")}.get(metric.unit, (metric.unit,))
        assert metric.name.endswith(words)
    if metric.kind is MetricKind.GAUGE:
        assert len(metric.series) == 1


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"port": 70000}, "metrics.port: must be 0 to 65535"),
        ({"port": 9000}, "metrics.port: is 9000, like grpc_port or http_port"),
        ({"tenants": MOST_TENANTS + 1}, "metrics.tenants: at most"),
        ({"tenants": -1}, "metrics.tenants: must not be negative"),
        ({"prot": 1}, "metrics.prot"),
    ],
)
def test_bad_settings_are_named(values: dict[str, int], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_quilt({"metrics": values}, {})


def test_the_settings_and_the_models_name_reach_every_service() -> None:
    config = load_quilt({"model": "demo", "metrics": {"port": 9464}}, {})
    for name in APPLICATIONS:
        own = getattr(config, name).deployment.metrics
        assert (own.port, own.model_name) == (9464, "demo")
