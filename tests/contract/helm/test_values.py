"""Bad values are refused before anything is installed, with a message that names the value."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helm import Helm, profile

NO_STORE = {"minio.enabled": False}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"generater": {}}, "additional properties 'generater' not allowed"),
        ({"generator.replica": 2}, "at '/generator': additional properties 'replica' not allowed"),
        ({"minio.persistence.sizes": "1Gi"}, "at '/minio/persistence': additional properties 'sizes' not allowed"),
        ({"config.gatewai": {}}, "at '/config': additional properties 'gatewai' not allowed"),
        (
            {"config.gateway.deployment.replicas": 2},
            "at '/config/gateway/deployment': additional properties 'replicas'",
        ),
        ({"generator.replicas": 0}, "at '/generator/replicas': minimum: got 0, want 1"),
        ({"generator.replicas": 1001}, "at '/generator/replicas': maximum: got 1,001, want 1,000"),
        ({"generator.replicas": "two"}, "at '/generator/replicas': got string, want integer"),
        ({"services.replicas": 0}, "at '/services/replicas': minimum: got 0, want 1"),
        ({"config.gateway.deployment.num_replicas": 0}, "at '/config/gateway/deployment/num_replicas': minimum: got 0, want 1"),
        ({"generator.gpus": 2}, "at '/generator/gpus': maximum: got 2, want 1"),
        ({"generator.shmSize": "lots"}, "at '/generator/shmSize'"),
        ({"objects.endpoint": "https://s3.example"}, "at '/objects/endpoint'"),
        ({"objects.bucket": "UPPER"}, "at '/objects/bucket'"),
        ({"service.type": "Ingress"}, "at '/service/type'"),
        (NO_STORE, "objects.endpoint: an object store is required"),
        ({"objects.endpoint": "s3:9000"}, "objects.endpoint: two object stores"),
        ({"objects.existingSecret": "keys"}, "objects.existingSecret: is for objects.endpoint"),
        ({"milvus.existingSecret": "keys"}, "milvus.existingSecret: the embedded Milvus has no users"),
        ({"model.existingClaim": "models"}, "model.path: say where model.existingClaim is to be mounted"),
        ({"model.subPath": "a"}, "model.subPath: is a folder of model.existingClaim"),
        ({"services.replicas": 2}, "services.replicas: is 2, but the embedded Milvus lives in one pod"),
        (
            {"config.retrieval.deployment.num_replicas": 2},
            "config.retrieval.deployment.num_replicas: is 2, but the embedded",
        ),
        (
            {"config.retrieval.deployment.max_replicas": 3},
            "config.retrieval.deployment.max_replicas: is 3, but the embedded",
        ),
        ({"config.generator.engine.device": "cuda"}, "generator.gpus: is 0, but config.generator.engine.device is cuda"),
        (
            {"config.generator.engine.device": "cpu", "generator.gpus": 1},
            "config.generator.engine.device: is cpu, but generator.gpus is 1",
        ),
        ({"config.gateway.deployment.num_gpus": 1}, "config.gateway.deployment.num_gpus: only generators use GPUs"),
        (
            {"config.generator.deployment.num_gpus": 1},
            "num_gpus: the chart decides it; set generator.gpus",
        ),
        ({"config.generator.deployment.num_replicas": 2}, "the chart decides it; set generator.replicas"),
        ({"config.model": "/m"}, "config.model: the chart decides it; set model.path"),
        (
            {"config.kv_store.objects.endpoint": "s3"},
            "kv_store.objects.endpoint: the chart decides it; set objects.endpoint",
        ),
        ({"config.kv_store.objects.secure": False}, "config.kv_store.objects.secure: the chart decides it; set objects.secure"),
        (
            {"config.retrieval.milvus_token": "a:b"},
            "retrieval.milvus_token: the chart decides it; set milvus.existingSecret",
        ),
        (
            {"config.kv_store.deployment.drain_s": 31},
            "terminationGracePeriodSeconds: is 45, but config.kv_store.deployment.drain_s is 31",
        ),
        ({"extraEnv": [{"name": "RAY_AUTH_MODE", "value": "disabled"}]}, "extraEnv: RAY_AUTH_MODE is set by the chart"),
        ({"fullnameOverride": "a" * 41}, "fullnameOverride: the name"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else None,
)
def test_a_bad_value_is_refused_and_named(values: dict[str, Any], message: str, helm: Helm) -> None:
    assert message in helm.refusal(profile("dev-cpu"), **values)


def test_the_chart_alone_says_that_it_needs_an_object_store(helm: Helm) -> None:
    assert "objects.endpoint: an object store is required" in helm.refusal()
