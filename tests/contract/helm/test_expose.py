"""From outside the cluster: Ingresses or routes of the Gateway API, with TLS, by their controller only."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from protos.kvquilt.v1 import generation_pb2, ingest_pb2, kv_store_pb2, rag_pb2, retrieval_pb2
from tests.contract.helm.test_profiles import ray_templates, strict, ways_in
from tests.helm import KUBERNETES, Helm, only, profile

DEV = profile("dev-cpu")
CRDS = Path(__file__).parents[2] / "schemas" / "gateway.networking.k8s.io.yaml"
HTTP, GRPC = "quilt.example", "grpc.quilt.example"
CONTROLLER = {
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress"}},
    "podSelector": {"matchLabels": {"app.kubernetes.io/name": "controller"}},
}
LISTENER = {"name": "edge", "namespace": "edge", "sectionName": "https"}
OPEN: dict[str, Any] = {
    "expose.controller": [CONTROLLER],
    "expose.http": {"host": HTTP, "tlsSecret": "http-cert"},
    "expose.grpc": {"host": GRPC, "tlsSecret": "grpc-cert", "annotations": {"backend": "GRPC"}},
}
INGRESS: dict[str, Any] = {"expose.kind": "Ingress", "expose.className": "nginx", **OPEN}
GATEWAY: dict[str, Any] = {"expose.kind": "Gateway", "expose.className": "envoy", **OPEN}
THEIRS: dict[str, Any] = {
    **{"expose.kind": "Gateway", "expose.parentRefs": [LISTENER], "expose.controller": [CONTROLLER]},
    **{"expose.http.host": HTTP, "expose.grpc.host": GRPC},
}
POD_TLS: dict[str, Any] = {"tls.existingSecret": "pods"}
KNOWN: dict[str, Any] = {"expose.backend": {"hostname": "quilt.rag.svc", "caConfigMap": "authorities"}}
SERVICES = (
    *(rag_pb2.DESCRIPTOR, ingest_pb2.DESCRIPTOR, retrieval_pb2.DESCRIPTOR),
    *(generation_pb2.DESCRIPTOR, kv_store_pb2.DESCRIPTOR),
)
EXPOSED = {s.full_name for file in SERVICES for s in file.services_by_name.values()}
"""Those of ``shared.surface``."""
REACHED = {"services": {8000, 9000}, "generator": {9000}}
"""Ports by component, where pods do not end TLS."""


@functools.cache
def schemas() -> dict[str, Any]:
    found = {}
    for crd in yaml.safe_load_all(CRDS.read_text(encoding="utf-8")):
        (version,) = crd["spec"]["versions"]
        schema = strict(version["schema"]["openAPIV3Schema"])
        schema["properties"]["metadata"] = {"type": "object"}
        found[crd["spec"]["names"]["kind"]] = schema
    return found


def validated(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for one in objects:
        if schema := schemas().get(one["kind"]):
            assert one["apiVersion"] == "gateway.networking.k8s.io/v1"
            jsonschema.Draft202012Validator(schema).validate(one)
        elif one["kind"] != "RayService":
            kubernetes_validate.validate(one, KUBERNETES, strict=True)
    return objects


def ports(objects: list[dict[str, Any]]) -> dict[str, int]:
    """By name, of the Services; KubeRay makes that of gRPC."""
    found = {o["metadata"]["name"]: o["spec"]["ports"][0]["port"] for o in objects if o["kind"] == "Service"}
    serve = only(objects, "RayService")["spec"]["serveService"]
    return found | {serve["metadata"]["name"]: serve["spec"]["ports"][0]["port"]}


def reached(objects: list[dict[str, Any]]) -> dict[str, set[int]]:
    """Ports that the controller reaches, by component."""
    found: dict[str, set[int]] = {}
    for component, port, peers in ways_in(objects):
        if CONTROLLER in peers:
            assert peers == [CONTROLLER], "and nobody else comes in by it"
            found.setdefault(component, set()).add(port)
    return found


def test_without_it_nothing_of_it_is_there(helm: Helm) -> None:
    objects = helm.render(DEV)
    assert not {one["kind"] for one in objects} & {"Ingress", *schemas()}
    assert not [o for o in objects if "exposed" in o["metadata"]["name"]]


@pytest.mark.parametrize("by", [{}, POD_TLS], ids=["plain", "pods end TLS"])
def test_ingresses_end_tls_for_what_is_public_and_nothing_else(helm: Helm, by: dict[str, Any]) -> None:
    objects = validated(helm.render(DEV, **INGRESS, **by))
    said = {}
    for door, host, secret in (("http", HTTP, "http-cert"), ("grpc", GRPC, "grpc-cert")):
        spec = only(objects, "Ingress", f"-{door}")["spec"]
        (rule,) = spec["rules"]
        assert (spec["ingressClassName"], rule["host"]) == ("nginx", host)
        assert spec["tls"] == [{"hosts": [host], "secretName": secret}]
        for path in rule["http"]["paths"]:
            service = path["backend"]["service"]
            assert ports(objects)[service["name"]] == service["port"]["number"]
            said[path["path"]] = service["name"]
    assert set(said) == {"/v1"} | {f"/{name}" for name in EXPOSED}
    http, grpc = said["/v1"], said["/kvquilt.v1.Rag"]
    assert (http, grpc) == (("quilt-kvquilt-tls",) * 2 if by else ("quilt-kvquilt-http", "quilt-kvquilt"))
    assert only(objects, "Ingress", "-grpc")["metadata"]["annotations"] == {"backend": "GRPC"}
    assert reached(objects) == ({"services": {9443}} if by else REACHED)


@pytest.mark.parametrize("values", [GATEWAY, THEIRS], ids=["of the chart", "there already"])
@pytest.mark.parametrize("by", [{}, POD_TLS | KNOWN], ids=["plain", "pods end TLS"])
def test_routes_hang_on_listeners_that_end_tls(
    helm: Helm, values: dict[str, Any], by: dict[str, Any]
) -> None:
    objects = validated(helm.render(DEV, **values, **by))
    made = [o for o in objects if o["kind"] == "Gateway"]
    listeners = {one["name"]: one for gateway in made for one in gateway["spec"]["listeners"]}
    assert bool(made) is (values is GATEWAY)
    for kind, door, host in (("HTTPRoute", "http", HTTP), ("GRPCRoute", "grpc", GRPC)):
        route = only(objects, kind)["spec"]
        (parent,), (rule,) = route["parentRefs"], route["rules"]
        assert route["hostnames"] == [host]
        if made:
            listener = listeners[parent["sectionName"]]
            assert parent["name"] == made[0]["metadata"]["name"]
            assert (listener["hostname"], listener["protocol"]) == (host, "HTTPS")
            assert listener["tls"] == {"mode": "Terminate", "certificateRefs": [{"name": f"{door}-cert"}]}
        else:
            assert parent == LISTENER
        (backend,) = rule["backendRefs"]
        assert ports(objects)[backend["name"]] == backend["port"]
        assert backend["name"].endswith("-tls") is bool(by)
    (http,), (grpc,) = (
        only(objects, "HTTPRoute")["spec"]["rules"],
        only(objects, "GRPCRoute")["spec"]["rules"],
    )
    assert http["matches"] == [{"path": {"type": "PathPrefix", "value": "/v1"}}]
    assert http["timeouts"] == {"request": "0s"}
    assert {match["method"]["service"] for match in grpc["matches"]} == EXPOSED
    assert reached(objects) == ({"services": {9443}} if by else REACHED)
    policies = [o["spec"] for o in objects if o["kind"] == "BackendTLSPolicy"]
    assert bool(policies) is bool(by)
    for policy in policies:
        assert [target["name"] for target in policy["targetRefs"]] == ["quilt-kvquilt-tls"]
        assert policy["validation"]["hostname"] == "quilt.rag.svc"
        assert [ref["name"] for ref in policy["validation"]["caCertificateRefs"]] == ["authorities"]


def test_what_is_not_exposed_the_controller_does_not_reach(helm: Helm) -> None:
    one = {key: value for key, value in INGRESS.items() if key != "expose.grpc"}
    objects = validated(helm.render(DEV, **one))
    assert [o["metadata"]["name"] for o in objects if o["kind"] == "Ingress"] == ["quilt-kvquilt-http"]
    assert reached(objects) == {"services": {8000}}
    assert set(ray_templates(objects)) == {"head", "services", "generator"}


def test_annotations_are_of_the_gateway_or_of_every_ingress(helm: Helm) -> None:
    issuer = {"expose.annotations": {"issuer": "letsencrypt"}}
    for kind, values in (("Ingress", INGRESS), ("Gateway", GATEWAY)):
        found = {
            (o["kind"], o["metadata"]["name"][-4:]): o["metadata"].get("annotations", {})
            for o in validated(helm.render(DEV, **values, **issuer))
            if o["kind"] in ("Ingress", "Gateway", "HTTPRoute", "GRPCRoute")
        }
        backend = {"backend": "GRPC"}
        everywhere = issuer["expose.annotations"]
        if kind == "Ingress":
            assert found == {(kind, "http"): everywhere, (kind, "grpc"): everywhere | backend}
        else:
            routes = {("HTTPRoute", "http"): {}, ("GRPCRoute", "grpc"): backend}
            assert found == {(kind, "uilt"): everywhere} | routes


def test_the_schemas_notice_an_unknown_key(helm: Helm) -> None:
    route = only(helm.render(DEV, **GATEWAY), "GRPCRoute")
    route["spec"]["rules"][0]["backendRefs"][0]["prot"] = 1
    with pytest.raises(jsonschema.ValidationError, match="prot"):
        validated([route])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (OPEN | {"expose.controller": []}, "has no effect, since expose.kind is empty"),
        ({"expose.kind": "Route"}, "at '/expose/kind'"),
        (INGRESS | {"expose.http.host": "*"}, "at '/expose/http/host'"),
        ({"expose.kind": "Ingress"}, "expose.kind: exposes nothing; set expose.http.host"),
        (INGRESS | {"auth.mode": "open"}, "expose.kind: auth.mode is open"),
        (INGRESS | {"expose.grpc.host": HTTP}, "expose.grpc.host: is expose.http.host"),
        (INGRESS | {"service.http": False}, "expose.http.host: nobody reaches HTTP"),
        (INGRESS | {"expose.http.tlsSecret": ""}, "expose.http.tlsSecret: without TLS"),
        (GATEWAY | {"expose.grpc.tlsSecret": ""}, "expose.grpc.tlsSecret: without TLS"),
        (INGRESS | {"expose.http.host": ""}, "expose.http.tlsSecret: has no effect, since expose.http.host"),
        (THEIRS | {"expose.http.tlsSecret": "a"}, "expose.http.tlsSecret: has no effect, since the Gateway"),
        (INGRESS | {"expose.parentRefs": [LISTENER]}, "expose.parentRefs: are Gateways"),
        (GATEWAY | {"expose.parentRefs": [LISTENER]}, "expose.parentRefs: the chart makes a Gateway"),
        (GATEWAY | {"expose.className": ""}, "expose.parentRefs: name the Gateway"),
        (THEIRS | {"expose.parentRefs": [{"name": "a"}]}, "expose.parentRefs[0].sectionName: name the"),
        (INGRESS | {"expose.controller": []}, "expose.controller: the network policy admits nobody"),
        (INGRESS | {"expose.controller": [{"podSelector": {}}]}, "expose.controller[0]: admits everybody"),
        (
            INGRESS | {"expose.controller": [CONTROLLER | {"namespaceSelector": {}}]},
            "expose.controller[0]: admits every pod of any namespace that carries the controller's label",
        ),
        (GATEWAY | POD_TLS, "expose.backend.hostname: the pods end TLS"),
        (GATEWAY | KNOWN, "expose.backend: is for expose.kind Gateway before pods that end TLS"),
        (INGRESS | POD_TLS | KNOWN, "expose.backend: is for expose.kind Gateway"),
    ],
)
def test_what_cannot_work_is_refused(helm: Helm, values: dict[str, Any], message: str) -> None:
    assert message in helm.refusal(DEV, **values)
