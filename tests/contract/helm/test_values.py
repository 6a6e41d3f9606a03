"""Bad values are refused before anything is installed, with a message that names the value."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from cluster.paths import PROJECT_ROOT
from tests.helm import CHART, Helm, profile

NO_STORE = {"minio.enabled": False}
FREE = {
    "config",
    "resources",
    "labels",
    "probes.liveness",
    "probes.readiness",
}  # Kubernetes' own maps, and the quilt.yaml


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"generater": {}}, "additional properties 'generater' not allowed"),
        ({"generator.replica": 2}, "at '/generator': additional properties 'replica' not allowed"),
        (
            {"minio.persistence.sizes": "1Gi"},
            "at '/minio/persistence': additional properties 'sizes' not allowed",
        ),
        ({"config.gatewai": {}}, "at '/config': additional properties 'gatewai' not allowed"),
        (
            {"config.gateway.deployment.replicas": 2},
            "at '/config/gateway/deployment': additional properties 'replicas'",
        ),
        (
            {"config.generator.engine.dtyp": "float32"},
            "at '/config/generator/engine': additional properties 'dtyp' not allowed",
        ),
        (
            {"config.ingestion.chunk_tokens": "many"},
            "at '/config/ingestion/chunk_tokens': got string, want integer",
        ),
        ({"generator.replicas": 0}, "at '/generator/replicas': minimum: got 0, want 1"),
        ({"generator.replicas": 1001}, "at '/generator/replicas': maximum: got 1,001, want 1,000"),
        ({"generator.replicas": "two"}, "at '/generator/replicas': got string, want integer"),
        ({"services.replicas": 0}, "at '/services/replicas': minimum: got 0, want 1"),
        (
            {"config.gateway.deployment.num_replicas": 0},
            "config.gateway.deployment.num_replicas: 0 needs a max_replicas",
        ),
        (
            {"config.gateway.deployment.num_replicas": -1},
            "at '/config/gateway/deployment/num_replicas': minimum: got -1, want 0",
        ),
        ({"generator.gpus": 2}, "at '/generator/gpus': maximum: got 2, want 1"),
        ({"generator.shmSize": "lots"}, "at '/generator/shmSize'"),
        ({"objects.endpoint": "https://s3.example"}, "at '/objects/endpoint'"),
        ({"objects.bucket": "UPPER"}, "at '/objects/bucket'"),
        ({"service.type": "Ingress"}, "at '/service/type'"),
        (NO_STORE, "objects.endpoint: an object store is required"),
        ({"objects.endpoint": "s3:9000"}, "objects.endpoint: two object stores"),
        ({"objects.existingSecret": "keys"}, "objects.existingSecret: is for objects.endpoint"),
        ({"milvus.existingSecret": "keys"}, "milvus.existingSecret: the embedded Milvus has no users"),
        ({"milvus.enabled": True, "milvus.uri": "http://m:1"}, "milvus.uri: two of them"),
        ({"model.existingClaim": "models"}, "model.path: say where model.existingClaim is to be mounted"),
        (
            {"model": {"existingClaim": "models", "path": "org/model"}},
            "model.path: say where model.existingClaim is to be mounted",
        ),
        ({"model.subPath": "a"}, "model.subPath: is a folder of model.existingClaim"),
        ({"model.pull.model": "Qwen/Qwen3-0.6B"}, "at '/model/pull/model'"),
        ({"model.pull.model": "a/b@v1"}, "model.pull.model: is brought to a folder of a claim"),
        (
            {"model": {"existingClaim": "m", "path": "/m", "subPath": "a/../b", "pull": {"model": "a/b@v1"}}},
            'model.subPath: "a/../b" is no name of a folder',
        ),
        ({"model.pull.existingSecret": "hub"}, "model.pull.existingSecret: is for model.pull.model"),
        ({"services.replicas": 2}, "services.replicas: is 2, but the embedded Milvus lives in one pod"),
        (
            {"config.retrieval.deployment.num_replicas": 2},
            "config.retrieval.deployment.num_replicas: is 2, but the embedded",
        ),
        (
            {"config.retrieval.deployment.max_replicas": 3},
            "config.retrieval.deployment.max_replicas: is 3, but the embedded",
        ),
        (
            {"config.generator.engine.device": "cuda"},
            "generator.gpus: is 0, but config.generator.engine.device is cuda",
        ),
        (
            {"config.generator.engine.device": "cpu", "generator.gpus": 1},
            "config.generator.engine.device: is cpu, but generator.gpus is 1",
        ),
        (
            {"config.gateway.deployment.num_gpus": 1},
            "config.gateway.deployment.num_gpus: only generators use GPUs",
        ),
        (
            {"config.generator.deployment.num_gpus": 1},
            "num_gpus: the chart decides it; set generator.gpus",
        ),
        ({"config.generator.deployment.num_replicas": 2}, "the chart decides it; set generator.replicas"),
        (
            {"config.generator.deployment.max_replicas": 3, "generator.replicas": 2},
            "max_replicas: is 3, but each has a pod of its own, and generator.replicas is 2",
        ),
        (
            {"config.generator.deployment": {"num_replicas": 2, "max_replicas": 1}},
            "num_replicas: is 2, but each has a pod of its own, and generator.replicas is 1",
        ),
        ({"selector.placement": "heads"}, "at '/selector/placement'"),
        (
            {"selector.placement": "generators", "config.selector.model": ""},
            "selector.placement: is generators, but there is no selector; set config.selector.model",
        ),
        (
            {"selector.placement": "generators", "config.selector.deployment.max_replicas": 2},
            "config.selector.deployment.max_replicas: there is one selector for each generator",
        ),
        ({"config.model": "/m"}, "config.model: the chart decides it; set model.path"),
        (
            {"config.kv_store.objects.endpoint": "s3"},
            "kv_store.objects.endpoint: the chart decides it; set objects.endpoint",
        ),
        (
            {"config.generator.selector.application": "other"},
            "config.generator.selector.application: the chart decides it; set config.selector.model",
        ),
        (
            {"config.kv_store.objects.secure": False},
            "config.kv_store.objects.secure: the chart decides it; set objects.secure",
        ),
        (
            {"config.retrieval.milvus_token": "a:b"},
            "retrieval.milvus_token: the chart decides it; set milvus.existingSecret",
        ),
        (
            {"config.kv_store.deployment.drain_s": 31},
            "terminationGracePeriodSeconds: is 45, but config.kv_store.deployment.drain_s is 31",
        ),
        (
            {"extraEnv": [{"name": "RAY_AUTH_MODE", "value": "disabled"}]},
            "extraEnv: RAY_AUTH_MODE is set by the chart",
        ),
        ({"fullnameOverride": "a" * 41}, "fullnameOverride: the name"),
        (
            {
                "networkPolicy.operator": [
                    {"namespaceSelector": {}, "podSelector": {"matchLabels": {"a": "b"}}}
                ]
            },
            "networkPolicy.operator[0]: admits every pod of any namespace that carries the operator's label",
        ),
        (
            {"auth.mode": "open", "auth.existingSecret": "keys"},
            "auth.mode: open asks nobody for keys, tokens or certificates",
        ),
        (
            {"tls.clientCaSecret": "ca"},
            "tls.clientCaSecret: client certificates need TLS",
        ),
        ({"config.auth.mode": "open"}, "config.auth.mode: the chart decides it; set auth.mode"),
        ({"networkPolicy.operator": [{"podSelector": {}}]}, "networkPolicy.operator[0]: admits everybody"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else None,
)
def test_a_bad_value_is_refused_and_named(values: dict[str, Any], message: str, helm: Helm) -> None:
    assert message in helm.refusal(profile("dev-cpu"), **values)


def at(*names: str, address: str = "gpus.example:9000") -> dict[str, Any]:
    """Another cluster serves them."""
    return {f"config.applications.{name}": {"address": address} for name in names}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (at("gateway"), "config.applications.gateway: only kv_store, generator,"),
        (at("retrieval", address="https://a:1"), "config.applications.retrieval.address: must be host:port"),
        (
            at("generator"),
            "generator.address: needs config.applications.kv_store.address",
        ),
        (at("kv_store"), "kv_store.address: needs config.applications.generator.address"),
        (at("selector"), "config.applications.selector.address: needs config.applications.kv_store.address"),
        (
            at("ingestion", "kv_store", "generator"),
            "config.applications.ingestion.address: needs config.applications.retrieval.address",
        ),
        (
            at("retrieval") | {"config.retrieval.default_k": 3},
            "config.retrieval.default_k: has no effect, since config.applications.retrieval.address is set",
        ),
        (at("retrieval") | {"milvus.uri": "http://m:1"}, "milvus.uri, milvus.existingSecret: have no effect"),
        (
            at("retrieval") | {"milvus.enabled": True},
            "milvus.enabled, milvus.uri, milvus.existingSecret: have",
        ),
        (
            at("kv_store", "generator") | {"minio.enabled": True},
            "objects.endpoint, minio.enabled: have no effect",
        ),
        (
            at("kv_store", "generator") | {"generator.replicas": 2},
            "generator.gpus, generator.replicas: have no effect",
        ),
        (
            at("kv_store", "generator") | {"config.selector.model": "a/b"},
            "config.selector.model: a selector keeps KV in the store of its own cluster",
        ),
        ({"config.gateway.addresses": {"generator": "a:1"}}, "the chart decides it; set config.applications"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else None,
)
def test_what_another_cluster_cannot_serve_is_refused_and_named(
    values: dict[str, Any], message: str, helm: Helm
) -> None:
    values |= {} if "config.applications.kv_store" in values else {"objects.endpoint": "s3.example"}
    assert message in helm.refusal(**values)


def test_the_chart_alone_says_that_it_needs_an_object_store(helm: Helm) -> None:
    assert "objects.endpoint: an object store is required" in helm.refusal()


def test_every_value_is_documented() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    text = (PROJECT_ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    missing = [name for name in values if f"`{name}" not in text]
    assert missing == []


def test_the_default_values_and_the_schema_name_the_same() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    assert set(_leaves(values)) == set(_settings(schema["properties"], schema["definitions"]))


def _leaves(values: dict[str, Any], path: str = "") -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, dict) and value and f"{path}{name}" not in FREE and name not in FREE:
            yield from _leaves(value, f"{path}{name}.")
        else:
            yield f"{path}{name}"


def _settings(properties: dict[str, Any], definitions: dict[str, Any], path: str = "") -> Iterator[str]:
    for name, schema in properties.items():
        if "properties" in schema and f"{path}{name}" not in FREE and name not in FREE:
            yield from _settings(schema["properties"], definitions, f"{path}{name}.")
        elif name != "global":
            yield f"{path}{name}"
