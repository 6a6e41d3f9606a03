"""The composition root against Ray Serve's own schema and our own protos."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from cluster.compose import APPLICATIONS, main, serve_config, servicer_functions
from cluster.config import SECTIONS, QuiltConfig, load_quilt
from shared.config import load

PROTOS = Path(__file__).parents[3] / "protos" / "kvquilt" / "v1"


@pytest.fixture
def config(tmp_path: Path) -> QuiltConfig:
    return load_quilt({"data_dir": str(tmp_path)}, {})


def test_ray_serve_accepts_the_composed_config(config: QuiltConfig) -> None:
    schema = ServeDeploySchema.model_validate(serve_config(config))
    assert [app.name for app in schema.applications] == list(APPLICATIONS)
    assert schema.grpc_options.enable_reflection
    assert schema.grpc_options.port == 9000


def test_every_section_is_an_application_with_a_route_prefix_of_its_own(config: QuiltConfig) -> None:
    applications = serve_config(config)["applications"]
    assert {app["name"] for app in applications} == set(SECTIONS)
    assert len({app["route_prefix"] for app in applications}) == len(SECTIONS)


def test_arguments_load_into_the_services_own_configuration(config: QuiltConfig) -> None:
    for app in serve_config(config)["applications"]:
        section = getattr(config, app["name"])
        assert load(type(section), app["args"]) == section


def test_every_service_of_the_protos_is_registered() -> None:
    lines = [line.split() for path in PROTOS.glob("*.proto") for line in path.read_text(encoding="utf-8").splitlines()]
    declared = {words[1] for words in lines if words[:1] == ["service"]}
    registered = set()
    for function in servicer_functions():
        module, _, name = function.rpartition(".")
        assert callable(getattr(importlib.import_module(module), name))
        registered.add(name.removeprefix("add_").removesuffix("Servicer_to_server"))
    assert registered == declared


def test_the_command_prints_yaml_that_reads_back_equal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "quilt.yaml"
    path.write_text(yaml.safe_dump({"data_dir": str(tmp_path), "gateway": {"k": 4}}), encoding="utf-8")
    assert main(["--config", str(path)]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert printed == serve_config(load_quilt({"data_dir": str(tmp_path), "gateway": {"k": 4}}, {}))


def test_the_command_names_a_wrong_setting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "quilt.yaml"
    path.write_text("gatewai: {}", encoding="utf-8")
    assert main(["--config", str(path)]) == 1
    assert "gatewai: unknown setting; did you mean 'gateway'?" in capsys.readouterr().err
