"""The composition root against Ray Serve's own schema and our own protos."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from cluster import applications
from cluster.compose import APPLICATIONS, application_args, main, serve_config
from cluster.config import DEPLOYED, load_quilt
from cluster.local.supervisor import check_gpus
from cluster.models.settings import SECTIONS
from shared import surface
from shared.config import load
from shared.deployment import DeploymentConfig
from shared.errors import ConfigError
from shared.kv_types import KvContext
from shared.limits import RequestLimits
from shared.surface import PUBLIC

PROTOS = Path(__file__).parents[3] / "protos" / "kvquilt" / "v1"


@pytest.fixture
def values(tmp_path: Path) -> dict[str, Any]:
    return {
        "data_dir": str(tmp_path),
        "log": {"level": "WARNING"},
        "tracing": {"sample": 0.25},
        "gateway": {"k": 4, "deployment": {"num_replicas": 2, "drain_s": 7.0, "log": {"format": "json"}}},
        "generator": {"engine": {"dtype": "float32"}, "deployment": {"max_replicas": 3, "num_gpus": 1}},
        "selector": {"model": "HuggingFaceTB/SmolLM2-135M", "threads": 1},
    }


def compose(values: dict[str, Any]) -> dict[str, Any]:
    return serve_config(values, load_quilt(values, {}))


def args_of(values: dict[str, Any]) -> dict[str, Any]:
    return {app["name"]: app["args"] for app in compose(values)["applications"]}


def test_ray_serve_accepts_the_composed_config(values: dict[str, Any]) -> None:
    schema = ServeDeploySchema.model_validate(compose(values))
    assert [app.name for app in schema.applications] == list(APPLICATIONS)
    assert schema.grpc_options.enable_reflection
    assert schema.grpc_options.port == 9000


def test_every_section_is_an_application_with_a_route_prefix_of_its_own(values: dict[str, Any]) -> None:
    composed = compose(values)["applications"]
    assert {app["name"] for app in composed} == set(SECTIONS)
    assert len({app["route_prefix"] for app in composed}) == len(SECTIONS)


def test_an_application_is_built_with_its_settings_in_the_file(values: dict[str, Any]) -> None:
    config = load_quilt(values, {})
    for app in compose(values)["applications"]:
        module, _, function = app["import_path"].partition(":")
        built = getattr(importlib.import_module(module), function)(app["args"])
        (given,) = built._bound_deployment.init_args
        section = getattr(config, app["name"])
        shared = {name: getattr(section.deployment, name) for name in DEPLOYED}
        expected = dataclasses.replace(section, deployment=DeploymentConfig(**shared))
        assert (load(type(section), given) if isinstance(given, dict) else given) == expected


def test_the_gateway_answers_what_is_nobody_elses_over_http_by_the_operators_name_of_the_model(
    values: dict[str, Any],
) -> None:
    prefixes = {app["name"]: app["route_prefix"] for app in compose(values)["applications"]}
    assert {name for name, prefix in prefixes.items() if prefix == "/"} == {"gateway"}
    assert args_of(values | {"model": "demo"})["gateway"]["gateway"].get("http") is None
    config = load_quilt(values | {"model": "smollm2"}, {}, resolve=lambda model: "/cache/SmolLM2-0123-1")
    args = application_args("gateway", values | {"model": "smollm2"}, config)
    assert args["gateway"]["http"] == {"model": "smollm2"}


def test_only_those_that_make_prompts_are_built_anew_for_another_prompt(values: dict[str, Any]) -> None:
    before, after = args_of(values), args_of(values | {"prompt": {"system": "Be brief."}})
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {"generator", "ingestion", "selector"}


def test_limits_reach_every_service_and_a_wrong_one_is_named_where_it_was_written(
    values: dict[str, Any],
) -> None:
    limited = values | {"limits": {"text_bytes": 1 << 20}}
    for name, args in args_of(limited).items():
        assert getattr(load_quilt(args, {}), name).limits == RequestLimits(text_bytes=1 << 20), name
    with pytest.raises(ConfigError, match=r"^limits.stop_strings: must be at least 1, got 0"):
        compose(values | {"limits": {"stop_strings": 0}})
    with pytest.raises(ConfigError, match=r"^limits: expected a section, got 5"):
        compose(values | {"limits": 5})


def test_the_gateway_names_chunks_where_a_router_of_this_cluster_goes_by_them(values: dict[str, Any]) -> None:
    assert "names_chunks" not in args_of(values)["gateway"].get("gateway", {})
    for routing, named in (("queue", False), ("chunks", True), ("rendezvous", True)):
        routed = values | {"generator": {"routing": routing}}
        assert load_quilt(args_of(routed)["gateway"], {}).gateway.names_chunks == named


@pytest.mark.parametrize(
    ("router", "said"),
    [
        ({"tolerance_ms": -1}, r"^generator\.router\.tolerance_ms: -1.0 is out of range"),
        ({"tolerance_share": 1e9}, r"^generator\.router\.tolerance_share: .* 0 to 100"),
        ({"patience": float("nan")}, r"^generator\.router\.patience: nan is out of range"),
        ({"most_compared": 1}, r"^generator\.router\.most_compared: .* 4 to 4096"),
        ({"kept_ms": "soon"}, r"^generator\.router\.kept_ms: "),
        ({"lease_ms": 400}, r"^generator\.router\.lease_ms: must be at least 2000, .* twice a second"),
        ({"kept_ms": 20_000}, r"^generator\.router\.kept_ms: 20000.* is above router\.lease_ms \(10000"),
        ({"patient": 1}, r"^generator\.router\.patient: unknown setting; did you mean"),
    ],
)
def test_impossible_bounds_of_the_router_are_refused_by_name(
    values: dict[str, Any], router: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        compose(values | {"generator": {"routing": "chunks", "router": router}})


def test_gateway_and_generator_know_under_which_context_ingestion_stores(values: dict[str, Any]) -> None:
    before, after = args_of(values), args_of(values | {"ingestion": {"kv_context": "header"}})
    assert {name for name in after if after[name] != before[name]} == {
        "gateway",
        "generator",
        "ingestion",
    }
    assert load_quilt(after["generator"], {}).generator.kv_context is KvContext.HEADER
    assert after["gateway"]["gateway"]["kv_context"] == "header"
    assert load_quilt(after["gateway"], {}).gateway.kv_context is KvContext.HEADER
    assert load_quilt(values, {}).gateway.kv_context is KvContext.DOCUMENT
    with pytest.raises(ConfigError, match=r"ingestion\.kv_context"):
        compose(values | {"ingestion": {"kv_context": "paragraph"}})


def test_without_an_auxiliary_model_there_is_no_selector_and_nobody_asks_one(values: dict[str, Any]) -> None:
    without = args_of(
        {key: value for key, value in values.items() if key != "selector"} | {"selector": {"model": ""}}
    )
    assert list(without) == [name for name in APPLICATIONS if name != "selector"]
    assert without["gateway"]["gateway"]["selector"] == without["ingestion"]["ingestion"]["selector"] == ""
    assert without["generator"]["generator"]["selector"] == {"application": ""}
    args = args_of(values)
    assert args["gateway"]["gateway"]["selector"] == args["ingestion"]["ingestion"]["selector"] == "selector"
    assert args["generator"]["generator"]["selector"] == {"application": "selector"}


def test_replicas_and_limits_stand_where_serve_changes_them_in_place(values: dict[str, Any]) -> None:
    more = values | {
        "gateway": values["gateway"] | {"deployment": {"num_replicas": 5, "log": {"format": "json"}}}
    }
    assert args_of(more) == args_of(values)
    deployments = {app["name"]: app["deployments"] for app in compose(values)["applications"]}
    assert deployments["gateway"][0]["num_replicas"] == 2
    assert deployments["gateway"][0]["graceful_shutdown_timeout_s"] == 7.0
    assert deployments["generator"][0]["autoscaling_config"]["max_replicas"] == 3
    assert deployments["generator"][0]["ray_actor_options"]["num_gpus"] == 1


def test_a_generator_on_a_gpu_reserves_one(values: dict[str, Any]) -> None:
    values["generator"] = {"engine": {"device": "cuda"}}
    reserved = {
        app["name"]: app["deployments"][0]["ray_actor_options"]["num_gpus"]
        for app in compose(values)["applications"]
    }
    assert {name for name, gpus in reserved.items() if gpus} == {"generator"}
    assert reserved["generator"] == 1


def test_a_machine_without_the_gpus_that_are_reserved_is_told_which_setting_asks(
    values: dict[str, Any],
) -> None:
    values["generator"] = {"engine": {"device": "cuda"}, "deployment": {"num_replicas": 2}}
    config = load_quilt(values, {})
    check_gpus(config, 2)
    with pytest.raises(
        ConfigError, match=r"generator\.engine\.device: cuda needs 2 GPUs .* has 1; set it to cpu"
    ):
        check_gpus(config, 1)


def test_a_setting_of_one_service_changes_the_arguments_of_no_other(values: dict[str, Any]) -> None:
    before, after = args_of(values), args_of(values | {"gateway": {"k": 5}})
    assert {name for name in before if before[name] != after[name]} == {"gateway"}


def test_deployments_are_named_like_their_application(values: dict[str, Any]) -> None:
    for app in compose(values)["applications"]:
        built = applications.build(app["name"], app["args"])
        assert [d["name"] for d in app["deployments"]] == [built._bound_deployment.name]


def test_what_the_arguments_do_not_say_comes_from_the_node(
    values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVQUILT_RETRIEVAL__MILVUS_TOKEN", "root:secret")
    monkeypatch.setenv("KVQUILT_DATA_DIR", "/elsewhere")
    args = application_args("retrieval", values, load_quilt(values, {}))
    assert "milvus_token" not in str(args)
    (given,) = applications.retrieval(args)._bound_deployment.init_args
    assert given.milvus_token == "root:secret"
    assert given.milvus_uri == f"{values['data_dir']}/index.db"


def test_services_of_other_clusters_may_call_every_service_but_the_one_between_nodes(
    values: dict[str, Any],
) -> None:
    lines = [
        line.split()
        for path in PROTOS.glob("*.proto")
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    declared = {words[1] for words in lines if words[:1] == ["service"]}
    registered = set()
    for function in compose(values | {"internal_calls": True})["grpc_options"]["grpc_servicer_functions"]:
        module, _, name = function.rpartition(".")
        assert callable(getattr(importlib.import_module(module), name))
        registered.add(name.removeprefix("add_").removesuffix("Servicer_to_server"))
    assert registered == declared - {"NodeStore"}
    assert "NodeStore" in declared


def test_what_serve_is_given_without_other_clusters_is_the_public_surface(values: dict[str, Any]) -> None:
    functions = compose(values)["grpc_options"]["grpc_servicer_functions"]
    assert functions == [f"shared.surface.add_{name}" for name in PUBLIC]
    assert all(callable(getattr(surface, name.rpartition(".")[2])) for name in functions)


def test_the_command_prints_yaml_that_reads_back_equal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "quilt.yaml"
    path.write_text(yaml.safe_dump({"data_dir": str(tmp_path), "gateway": {"k": 4}}), encoding="utf-8")
    assert main(["--config", str(path)]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert printed == compose({"data_dir": str(tmp_path), "gateway": {"k": 4}})


def test_the_command_names_a_wrong_setting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "quilt.yaml"
    path.write_text("gatewai: {}", encoding="utf-8")
    assert main(["--config", str(path)]) == 1
    assert "gatewai: unknown setting; did you mean 'gateway'?" in capsys.readouterr().err
