"""The Serve configuration that the chart renders is the one that ``cluster.compose`` makes of the same
quilt.yaml."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.compose import serve_config
from cluster.config import load_quilt
from cluster.paths import DEMO_MODEL
from tests.helm import Helm, only, profile, serve_config_of

EVERYTHING: dict[str, Any] = {
    "internal_calls": True,
    "auth": {
        "tokens": {"issuer": "https://id.example", "audience": "kvquilt", "jwks": "https://id.example/k"}
    },
    "log": {"level": "DEBUG", "format": "json"},
    "metrics": {"tenants": 5, "vllm_names": True},
    "limits": {"text_bytes": 1048576, "document_bytes": 1073741824},
    "tracing": {"endpoint": "http://collector:4317", "sample": 0.05},
    "prompt": {"system": "Be brief."},
    "sharing_scopes": {"shared": ["acme", "partner"]},
    "gateway": {
        "k": 4,
        "deployment": {"num_replicas": 3, "log": {"level": "ERROR"}, "tracing": {"content": True}},
    },
    "ingestion": {"chunk_tokens": 128, "deployment": {"max_replicas": 4, "target_ongoing_requests": 3}},
    "retrieval": {
        "default_k": 5,
        "deployment": {"num_replicas": 2, "max_replicas": 2, "drain_s": 5, "num_cpus": 0.5},
    },
    "kv_store": {
        "lease_s": 30,
        "quotas": {"tenants": {"a": 17179869184}},
        "deployment": {"max_queued_requests": 0},
    },
    "generator": {
        "engine": {"dtype": "float32", "resident_bytes": 17179869184},
        "kv_encoding": "int8",
        "selector": {"timeout_s": 2.0, "fallback": "reordered"},
        "deployment": {"max_ongoing_requests": 7, "max_queued_requests": -1, "num_cpus": 2},
    },
    "selector": {
        "model": "HuggingFaceTB/SmolLM2-135M",
        "threads": 2,
        "scaling": {"queued_ms": 250},
        "deployment": {"num_cpus": 2, "num_replicas": 0, "max_replicas": 2, "upscale_delay_s": 0},
    },
}
AUTH = {
    "mode": "required",
    "keys_file": "/etc/kvquilt/keys/keys.json",
    "secret_file": "/etc/kvquilt/installation/secret",
}
ON_SERVICES = {"deployment": {"resources": {"kvquilt_services": 1}}}


@pytest.mark.parametrize("config", [{}, EVERYTHING], ids=["nothing said", "everything said"])
@pytest.mark.parametrize("gpus", [0, 1])
def test_chart_and_composition_root_agree(helm: Helm, config: dict[str, Any], gpus: int) -> None:
    rendered = helm.render(
        config=config,
        model={"path": str(DEMO_MODEL)},
        objects={
            "endpoint": "s3.example:9000",
            "bucket": "a-bucket",
            "region": "eu-1",
            "prefix": "x/",
            "secure": False,
        },
        milvus={"uri": "http://milvus:19530"},
        generator={"replicas": 3, "gpus": gpus},
    )
    cuda = {"engine": {"device": "cuda"}} if gpus else {}
    decided: dict[str, Any] = {
        "data_dir": "/data",
        "model": str(DEMO_MODEL),
        "http_host": "0.0.0.0",
        "auth": AUTH,
        "kv_store": {
            "objects": {
                "endpoint": "s3.example:9000",
                "bucket": "a-bucket",
                "region": "eu-1",
                "prefix": "x/",
                "secure": False,
            },
            **ON_SERVICES,
        },
        "retrieval": {"milvus_uri": "http://milvus:19530", **ON_SERVICES},
        "ingestion": ON_SERVICES,
        "gateway": ON_SERVICES,
        "selector": {"model": config.get("selector", {}).get("model", ""), **ON_SERVICES},
        "generator": {
            "deployment": {"resources": {"kvquilt_generator": 1}, "num_replicas": 3, "num_gpus": gpus},
            **cuda,
        },
    }
    quilt = merged(config, decided)
    assert serve_config_of(rendered) == serve_config(quilt, load_quilt(quilt, {}))


@pytest.mark.parametrize("least", [{}, {"num_replicas": 0}, {"num_replicas": 2}], ids=["", "none", "two"])
def test_generators_come_and_go_within_their_pods(helm: Helm, least: dict[str, int]) -> None:
    deployment = {"max_replicas": 3, "downscale_delay_s": 60, **least}
    rendered = helm.render(
        config={"generator": {"deployment": deployment, "scaling": {"queued_ms": 250}}},
        model={"path": str(DEMO_MODEL)},
        objects={"endpoint": "s3.example:9000"},
        milvus={"uri": "http://milvus:19530"},
        generator={"replicas": 4},
    )
    applications = {one["name"]: one for one in serve_config_of(rendered)["applications"]}
    (generator,) = applications["generator"]["deployments"]
    scaling = generator["autoscaling_config"]
    assert (scaling["min_replicas"], scaling["max_replicas"]) == (least.get("num_replicas", 1), 3)
    assert scaling["policy"]["policy_kwargs"]["queued_ms"] == 250
    assert "num_replicas" not in generator
    groups = only(rendered, "RayService")["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    assert [group["replicas"] for group in groups if group["groupName"] == "generators"] == [4]


def test_selectors_stand_beside_generators(helm: Helm) -> None:
    rendered = helm.render(
        config={"selector": {"model": "/aux", "threads": 2}},
        model={"path": str(DEMO_MODEL)},
        objects={"endpoint": "s3.example:9000"},
        milvus={"uri": "http://milvus:19530"},
        generator={"replicas": 3},
        selector={"placement": "generators"},
    )
    applications = {one["name"]: one for one in serve_config_of(rendered)["applications"]}
    (selector,) = applications["selector"]["deployments"]
    assert selector["num_replicas"] == 3
    assert selector["ray_actor_options"]["resources"] == {"kvquilt_selector": 1}
    groups = only(rendered, "RayService")["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    offered = {group["groupName"]: group["rayStartParams"]["resources"] for group in groups}
    assert offered == {
        "services": "'{\"kvquilt_services\": 1000}'",
        "generators": '\'{"kvquilt_generator": 1, "kvquilt_selector": 1}\'',
    }


@pytest.mark.parametrize(
    "elsewhere",
    [
        ["retrieval"],
        ["kv_store", "generator"],
        ["kv_store", "generator", "selector", "retrieval", "ingestion"],
    ],
    ids=len,
)
def test_what_another_cluster_serves_is_left_out_and_can_be_reached(helm: Helm, elsewhere: list[str]) -> None:
    applications = {name: {"address": f"grpc://{name}.example:700{len(name)}"} for name in elsewhere}
    objects = {} if "kv_store" in elsewhere else {"objects": {"endpoint": "s3.example:9000"}}
    milvus = {} if "retrieval" in elsewhere else {"milvus": {"uri": "http://milvus:19530"}}
    rendered = helm.render(
        config={"applications": applications, "gateway": {"k": 4}},
        model={"path": str(DEMO_MODEL)},
        **objects,
        **milvus,
    )
    defaults = {"bucket": "kvquilt", "region": "us-east-1", "prefix": "", "secure": True}
    decided: dict[str, Any] = {
        "kv_store": {"objects": {"endpoint": "s3.example:9000", **defaults}, **ON_SERVICES},
        "retrieval": {"milvus_uri": "http://milvus:19530", **ON_SERVICES},
        "selector": {"model": "", **ON_SERVICES},
        "generator": {"deployment": {"resources": {"kvquilt_generator": 1}}},
        "ingestion": ON_SERVICES,
        "gateway": {"k": 4, **ON_SERVICES},
    }
    quilt: dict[str, Any] = {"data_dir": "/data", "model": str(DEMO_MODEL), "http_host": "0.0.0.0"}
    quilt |= {"applications": applications, "auth": AUTH}
    quilt |= {name: values for name, values in decided.items() if name not in elsewhere}
    assert serve_config_of(rendered) == serve_config(quilt, load_quilt(quilt, {}))
    cluster = only(rendered, "RayService")["spec"]["rayClusterConfig"]
    groups = [group["groupName"] for group in cluster["workerGroupSpecs"]]
    assert groups == ["services"] + ["generators"] * ("generator" not in elsewhere)
    assert not [o for o in rendered if o["kind"] == "PersistentVolumeClaim"]
    egress = only(rendered, "NetworkPolicy", "-ray")["spec"]["egress"]
    opened = {port["port"] for rule in egress if "to" not in rule for port in rule["ports"]}
    outside = [9000] * bool(objects) + [19530] * bool(milvus)
    assert opened == {*outside, *(7000 + len(name) for name in elsewhere)}


def test_more_or_fewer_replicas_leave_what_applications_are_built_from_alone(helm: Helm) -> None:
    def built_from(**values: Any) -> list[Any]:
        config = serve_config_of(helm.render(profile("multi-gpu-ha"), **values))
        return [(app["import_path"], app["args"]) for app in config["applications"]]

    before = built_from()
    assert built_from(**{"generator.replicas": 7}) == before
    assert (
        built_from(
            **{"config.gateway.deployment": {"num_replicas": 5, "max_ongoing_requests": 8, "drain_s": 3}}
        )
        == before
    )


def test_a_setting_of_one_service_leaves_the_others_alone(helm: Helm) -> None:
    def args(**values: Any) -> dict[str, Any]:
        config = serve_config_of(helm.render(profile("dev-cpu"), **values))
        return {app["name"]: app["args"] for app in config["applications"]}

    before, after = args(), args(**{"config.gateway.k": 5})
    assert {name for name in before if before[name] != after[name]} == {"gateway"}


def merged(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    result = dict(a)
    for key, value in b.items():
        result[key] = (
            merged(result[key], value)
            if isinstance(value, dict) and isinstance(result.get(key), dict)
            else value
        )
    return result
