"""The chart and the real Helm: found on PATH, else built once by the Go toolchain."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.paths import PROJECT_ROOT
from load_tests.servers.programs import build_go_program

CHART = PROJECT_ROOT / "helm" / "kvquilt"
PROFILES = tuple(sorted(path.stem for path in (CHART / "profiles").glob("*.yaml")))
KUBERNETES = "1.34.0"
HELM_MODULE, HELM_VERSION = "helm.sh/helm/v3/cmd/helm", "v3.22.0"


def profile(name: str) -> Path:
    return CHART / "profiles" / f"{name}.yaml"


@dataclass(frozen=True, slots=True)
class Helm:
    """Renders and lints; needs no cluster."""

    program: Path

    def render(self, *files: Path, release: str = "quilt", **values: Any) -> list[dict[str, Any]]:
        """The objects that ``helm install`` would create; ``values`` on top of the files, sections as
        dictionaries."""
        result = self.template(*files, release=release, **values)
        assert result.returncode == 0, result.stderr
        return [document for document in yaml.safe_load_all(result.stdout) if document]

    def refusal(self, *files: Path, **values: Any) -> str:
        """What Helm says instead of rendering."""
        result = self.template(*files, **values)
        assert result.returncode != 0, "rendered, though it should have been refused"
        return result.stderr

    def template(
        self, *files: Path, release: str = "quilt", **values: Any
    ) -> subprocess.CompletedProcess[str]:
        return self._run("template", release, str(CHART), "--namespace", "rag", *_given(files, values))

    def lint(self, *files: Path) -> subprocess.CompletedProcess[str]:
        return self._run("lint", "--strict", str(CHART), *_given(files, {}))

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(self.program), *arguments, "--kube-version", KUBERNETES]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def _given(files: tuple[Path, ...], values: dict[str, Any]) -> list[str]:
    options = [option for path in files for option in ("--values", str(path))]
    return options + [
        option for key, value in values.items() for option in ("--set-json", f"{key}={json.dumps(value)}")
    ]


def only(objects: list[dict[str, Any]], kind: str, ending: str = "") -> dict[str, Any]:
    """The object of that kind, and of a name with that ending."""
    (found,) = [o for o in objects if o["kind"] == kind and o["metadata"]["name"].endswith(ending)]
    return found


def serve_config_of(objects: list[dict[str, Any]]) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load(only(objects, "RayService")["spec"]["serveConfigV2"])
    return config


class HelmPlugin:
    """Finds or builds Helm before the first test starts, so that no test's time limit covers that."""

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        wanted = any("helm" in getattr(item, "fixturenames", ()) for item in session.items)
        if wanted and not session.config.option.collectonly:
            find_helm()


@pytest.fixture(scope="session")
def helm() -> Helm:
    return find_helm()


def find_helm() -> Helm:
    """
    Raises:
        RuntimeError: there is none, and it cannot be built.
    """
    if found := shutil.which("helm"):
        return Helm(Path(found))
    if go := shutil.which("go"):
        return Helm(build_go_program(go, HELM_MODULE, HELM_VERSION))
    raise RuntimeError("the chart's tests need Helm 3: put `helm` on PATH, or Go, by which it is built once")
