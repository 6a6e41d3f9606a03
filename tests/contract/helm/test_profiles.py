"""Every profile against Helm's strict lint, Kubernetes' schemas, KubeRay's and Ray Serve's."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from cluster.compose import APPLICATIONS
from cluster.local.launcher import PROXY_CHECK_S
from shared import slow_readers, steady_clock
from shared.limits import RequestLimits
from tests.helm import KUBERNETES, PROFILES, Helm, only, profile, serve_config_of

CRD = Path(__file__).parents[2] / "schemas" / "ray.io_rayservices.yaml"
# The pod's "restricted" standard: https://kubernetes.io/docs/concepts/security/pod-security-standards/
RESTRICTED_VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}


@pytest.fixture(scope="module", params=PROFILES)
def objects(request: pytest.FixtureRequest, helm: Helm) -> list[dict[str, Any]]:
    return helm.render(profile(request.param))


def test_the_three_profiles_are_there() -> None:
    assert PROFILES == ("dev-cpu", "multi-gpu-ha", "single-gpu")


@pytest.mark.parametrize("name", PROFILES)
def test_helm_finds_nothing_to_complain_about(name: str, helm: Helm) -> None:
    result = helm.lint(profile(name))
    assert result.returncode == 0, result.stdout
    assert "WARNING" not in result.stdout


def test_kubernetes_schemas_accept_every_object(objects: list[dict[str, Any]]) -> None:
    kinds = set()
    for document in objects:
        if document["kind"] != "RayService":
            kubernetes_validate.validate(document, KUBERNETES, strict=True)
            kinds.add(document["kind"])
    assert kinds >= {"ServiceAccount", "NetworkPolicy", "Pod", "Job", "Role", "RoleBinding"}


def test_kuberay_accepts_the_rayservice(objects: list[dict[str, Any]]) -> None:
    jsonschema.Draft202012Validator(rayservice_schema()).validate(only(objects, "RayService"))


def test_an_unknown_key_deep_in_a_rayservice_is_noticed(helm: Helm) -> None:
    service = only(helm.render(profile("dev-cpu")), "RayService")
    service["spec"]["rayClusterConfig"]["headGroupSpec"]["template"]["spec"]["containers"][0]["imag"] = "x"
    with pytest.raises(jsonschema.ValidationError, match="imag"):
        jsonschema.Draft202012Validator(rayservice_schema()).validate(service)


@pytest.mark.parametrize("name", PROFILES)
def test_ray_serve_accepts_the_serve_configuration(name: str, helm: Helm) -> None:
    schema = ServeDeploySchema.model_validate(serve_config_of(helm.render(profile(name))))
    expected = [app for app in APPLICATIONS if app != "selector" or name == "dev-cpu"]
    assert [app.name for app in schema.applications] == expected
    assert schema.grpc_options.port == 9000


def test_kubernetes_schemas_accept_rays_pods(objects: list[dict[str, Any]]) -> None:
    for component, template in ray_templates(objects).items():
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": template["metadata"] | {"name": component},
            "spec": template["spec"],
        }
        kubernetes_validate.validate(pod, KUBERNETES, strict=True)


def test_every_pod_keeps_to_the_restricted_standard(objects: list[dict[str, Any]]) -> None:
    for name, spec in pod_specs(objects).items():
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["runAsUser"] > 0, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert not any(spec.get(key) for key in ("hostNetwork", "hostPID", "hostIPC")), name
        assert {
            kind for volume in spec["volumes"] for kind in volume if kind != "name"
        } <= RESTRICTED_VOLUMES, name
        for container in spec["containers"]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False, name
            assert context["capabilities"] == {"drop": ["ALL"]}, name
            assert context["readOnlyRootFilesystem"] is True, name


def test_only_the_scaling_job_may_talk_to_the_kubernetes_api(objects: list[dict[str, Any]]) -> None:
    with_token = {name for name, spec in pod_specs(objects).items() if spec["automountServiceAccountToken"]}
    assert with_token == {"Job"}
    assert only(objects, "Role")["rules"] == [
        {"apiGroups": ["ray.io"], "resources": ["rayclusters"], "verbs": ["list", "patch"]}
    ]
    bound = {subject["name"] for subject in only(objects, "RoleBinding")["subjects"]}
    assert bound == {only(objects, "Job")["spec"]["template"]["spec"]["serviceAccountName"]}


def test_services_of_the_namespace_never_turn_into_settings(objects: list[dict[str, Any]]) -> None:
    assert all(spec["enableServiceLinks"] is False for spec in pod_specs(objects).values())


def test_pods_outlive_the_drain_of_their_replicas(objects: list[dict[str, Any]]) -> None:
    longest = max(
        d["graceful_shutdown_timeout_s"]
        for app in serve_config_of(objects)["applications"]
        for d in app["deployments"]
    )
    for component, template in ray_templates(objects).items():
        environment = {e["name"]: e.get("value") for e in template["spec"]["containers"][0]["env"]}
        drain_s = float(environment["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"])
        assert component == "head" or longest <= drain_s < template["spec"]["terminationGracePeriodSeconds"]


@pytest.mark.parametrize("given", [{}, {"upsert_bytes": 1 << 30}, {"document_bytes": 300 << 20}], ids=str)
def test_no_pod_takes_in_messages_that_no_request_may_be(helm: Helm, given: dict[str, int]) -> None:
    rendered = helm.render(config={"limits": given}, objects={"endpoint": "s3.example:9000"})
    for template in ray_templates(rendered).values():
        environment = {e["name"]: e.get("value") for e in template["spec"]["containers"][0]["env"]}
        assert environment["RAY_SERVE_GRPC_MAX_MESSAGE_SIZE"] == str(RequestLimits(**given).largest_bytes)


def test_a_proxy_that_died_is_replaced_as_soon_as_on_one_machine(objects: list[dict[str, Any]]) -> None:
    for template in ray_templates(objects).values():
        environment = {e["name"]: e.get("value") for e in template["spec"]["containers"][0]["env"]}
        assert environment["RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S"] == PROXY_CHECK_S


def test_processes_of_ray_serve_call_what_those_on_one_machine_call(objects: list[dict[str, Any]]) -> None:
    calls = slow_readers.environment(60.0) | steady_clock.environment()
    for template in ray_templates(objects).values():
        environment = {e["name"]: e.get("value") for e in template["spec"]["containers"][0]["env"]}
        assert calls.items() <= environment.items()


def test_every_pod_notices_within_half_a_minute_that_another_one_is_cut_off(
    objects: list[dict[str, Any]],
) -> None:
    for template in ray_templates(objects).values():
        environment = {e["name"]: e.get("value") for e in template["spec"]["containers"][0]["env"]}
        keepalive = [environment[f"RAY_grpc_client_keepalive_{name}_ms"] for name in ("time", "timeout")]
        assert sum(map(int, keepalive)) <= 30_000


def test_every_resource_that_a_replica_asks_for_is_offered_by_one_group(
    objects: list[dict[str, Any]],
) -> None:
    groups = only(objects, "RayService")["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    offered = {
        name: g for g in groups for name in yaml.safe_load(g["rayStartParams"]["resources"].strip("'"))
    }
    for app in serve_config_of(objects)["applications"]:
        (deployment,) = app["deployments"]
        options = deployment["ray_actor_options"]
        (asked,) = options["resources"]
        assert offered[asked]["groupName"] == ("generators" if app["name"] == "generator" else "services")
        assert options["num_gpus"] == (
            int(offered[asked]["rayStartParams"]["num-gpus"]) if app["name"] == "generator" else 0
        )


def test_the_embedded_index_lies_with_the_services_and_nowhere_else(helm: Helm) -> None:
    mounts = {
        component: {m["mountPath"] for m in template["spec"]["containers"][0]["volumeMounts"]}
        for component, template in ray_templates(helm.render(profile("dev-cpu"))).items()
    }
    assert [component for component, paths in mounts.items() if "/index" in paths] == ["services"]
    assert all({"/data", "/dev/shm", "/tmp"} <= paths for paths in mounts.values())


def test_what_was_ingested_outlives_the_release(helm: Helm) -> None:
    claims = [o for o in helm.render(profile("dev-cpu")) if o["kind"] == "PersistentVolumeClaim"]
    assert {c["metadata"]["name"] for c in claims} == {"quilt-kvquilt-milvus", "quilt-kvquilt-minio"}
    assert all(map(kept, claims))


def test_a_second_cluster_beside_the_first_needs_a_milvus_of_its_own(helm: Helm) -> None:
    types = {
        name: only(helm.render(profile(name)), "RayService")["spec"]["upgradeStrategy"]["type"]
        for name in PROFILES
    }
    assert types == {"dev-cpu": "None", "single-gpu": "None", "multi-gpu-ha": "NewCluster"}


def test_a_milvus_in_a_pod_of_its_own_is_reached_by_retrieval_alone_and_lets_clusters_change(
    helm: Helm,
) -> None:
    objects = helm.render(profile("dev-cpu"), **{"milvus.enabled": True, "services.replicas": 2})
    service = only(objects, "Service", "-kvquilt-milvus")
    deployment = only(objects, "Deployment", "-kvquilt-milvus")
    for document in (service, deployment):
        kubernetes_validate.validate(document, KUBERNETES, strict=True)
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}, "one process at a time owns the volume"
    (volume,) = (v for v in deployment["spec"]["template"]["spec"]["volumes"] if "persistentVolumeClaim" in v)
    assert volume["persistentVolumeClaim"]["claimName"] == "quilt-kvquilt-milvus"
    assert kept(only(objects, "PersistentVolumeClaim", "-kvquilt-milvus"))

    uri = serve_config_of(objects)["applications"]
    (retrieval,) = (app["args"] for app in uri if app["name"] == "retrieval")
    assert f"http://{service['metadata']['name']}:19530" in str(retrieval)
    assert only(objects, "RayService")["spec"]["upgradeStrategy"]["type"] == "NewCluster"
    assert all("index" not in mounts_of(pod) for pod in ray_templates(objects).values())

    (policy,) = (
        o["spec"]
        for o in objects
        if o["kind"] == "NetworkPolicy" and selects(o["spec"]["podSelector"], labels)
    )
    ((peer,), ports) = (policy["ingress"][0]["from"], policy["ingress"][0]["ports"])
    assert ports == [{"protocol": "TCP", "port": 19530}]
    admitted = {
        component
        for component, template in ray_templates(objects).items()
        if selects(peer["podSelector"], template["metadata"]["labels"])
    }
    assert admitted == {"services"}
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert "egress" not in policy, "it asks nobody for anything"


def mounts_of(template: dict[str, Any]) -> set[str]:
    return {mount["name"] for mount in template["spec"]["containers"][0]["volumeMounts"]}


def kept(made: dict[str, Any]) -> bool:
    annotations: dict[str, str] = made["metadata"].get("annotations", {})
    return annotations.get("helm.sh/resource-policy") == "keep"


def test_http_has_a_service_of_its_own_for_the_pods_that_run_the_gateway(
    objects: list[dict[str, Any]],
) -> None:
    service = only(objects, "Service", "-kvquilt-http")
    kubernetes_validate.validate(service, KUBERNETES, strict=True)
    (port,) = service["spec"]["ports"]
    (matching,) = [
        template
        for template in ray_templates(objects).values()
        if service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    ]
    ports = {p["name"]: p["containerPort"] for p in matching["spec"]["containers"][0]["ports"]}
    assert (port["port"], ports[port["targetPort"]]) == (8000, 8000)
    assert matching["metadata"]["labels"]["app.kubernetes.io/component"] == "services"


@pytest.mark.parametrize("http", [True, False])
def test_callers_reach_http_only_where_there_is_a_service_for_it(helm: Helm, http: bool) -> None:
    objects = helm.render(profile("dev-cpu"), **{"service.http": http})
    reached = {
        (component, port) for component, port, peers in ways_in(objects) if {"podSelector": {}} in peers
    }
    grpc = {("services", 9000), ("generator", 9000)}
    assert reached == grpc | ({("services", 8000)} if http else set())
    named = [o["metadata"]["name"] for o in objects if o["kind"] == "Service"]
    assert ("quilt-kvquilt-http" in named) is http


def test_callers_reach_no_port_but_those_of_public_services_and_nothing_of_the_head(helm: Helm) -> None:
    """Ray's own ports, dashboard and agents are for Ray's pods and the operator."""
    everybody: list[dict[str, Any]] = [{"ipBlock": {"cidr": "0.0.0.0/0"}}]
    objects = helm.render(profile("dev-cpu"), **{"networkPolicy.callers": everybody})
    reached = {(component, port) for component, port, peers in ways_in(objects) if everybody[0] in peers}
    assert reached == {("services", 9000), ("services", 8000), ("generator", 9000)}


def test_a_pod_is_the_operator_by_its_namespace_too(objects: list[dict[str, Any]]) -> None:
    """Anybody may put a label on his pod."""
    (peer,) = only(objects, "NetworkPolicy", "-operator")["spec"]["ingress"][0]["from"]
    assert peer == {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kuberay-system"}},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": "kuberay-operator"}},
    }
    labels = [
        (component, port)
        for component, port, peers in ways_in(objects)
        if {"namespaceSelector": {}} in [{k: v for k, v in p.items() if k != "podSelector"} for p in peers]
    ]
    assert labels == []


def ways_in(objects: list[dict[str, Any]]) -> list[tuple[str, int, list[dict[str, Any]]]]:
    """Component of Ray's pods, port and who reaches it, by the policies that admit others than Ray's pods."""
    found = []
    for component, template in ray_templates(objects).items():
        for policy in (o["spec"] for o in objects if o["kind"] == "NetworkPolicy"):
            if selects(policy["podSelector"], template["metadata"]["labels"]):
                found += [
                    (component, port["port"], rule["from"])
                    for rule in policy.get("ingress", [])
                    for port in rule.get("ports", [])
                ]
    return found


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    expressions = selector.get("matchExpressions", [])
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        e["operator"] == "In" and labels.get(e["key"]) in e["values"] for e in expressions
    )


def test_disruption_budgets_are_for_groups_that_can_spare_a_pod(helm: Helm) -> None:
    budgets = [o for o in helm.render(profile("multi-gpu-ha")) if o["kind"] == "PodDisruptionBudget"]
    assert {
        b["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"]: b["spec"]["minAvailable"]
        for b in budgets
    } == {
        "services": 1,
        "generator": 3,
    }
    assert not [o for o in helm.render(profile("dev-cpu")) if o["kind"] == "PodDisruptionBudget"]


@functools.cache
def rayservice_schema() -> dict[str, Any]:
    """KubeRay's, with unknown keys refused, as the API server does when asked to be strict."""
    crd = yaml.load(CRD.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    (version,) = (v for v in crd["spec"]["versions"] if v["name"] == "v1")
    schema: dict[str, Any] = strict(version["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}
    return schema


def strict(node: Any) -> Any:
    """A schema that refuses unknown keys."""
    if isinstance(node, list):
        return [strict(item) for item in node]
    if not isinstance(node, dict):
        return node
    closed = {key: strict(value) for key, value in node.items()}
    if (
        isinstance(node.get("properties"), dict)
        and "type" in node
        and not node.get("x-kubernetes-preserve-unknown-fields")
    ):
        closed.setdefault("additionalProperties", False)
    return closed


def ray_templates(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    cluster = only(objects, "RayService")["spec"]["rayClusterConfig"]
    templates = [
        cluster["headGroupSpec"]["template"],
        *(group["template"] for group in cluster["workerGroupSpecs"]),
    ]
    return {template["metadata"]["labels"]["app.kubernetes.io/component"]: template for template in templates}


def pod_specs(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Of Ray's pods by component, of the others by kind."""
    specs = {component: template["spec"] for component, template in ray_templates(objects).items()}
    for document in objects:
        if document["kind"] == "Pod":
            specs["Pod"] = document["spec"]
        elif document["kind"] in ("Deployment", "Job"):
            specs[document["kind"]] = document["spec"]["template"]["spec"]
    for spec in specs.values():
        spec.setdefault("volumes", [])
    return specs
