"""What the wheel holds, and that the command line needs nothing else."""

from __future__ import annotations

import os
import subprocess
import sys

from setuptools import Distribution

from cluster.paths import PROJECT_ROOT

INSTALLED = {"cluster", "protos", "services", "shared"}


def packaged() -> list[str]:
    """The files that setuptools puts into the wheel, by pyproject.toml."""
    here = os.getcwd()
    os.chdir(PROJECT_ROOT)  # setuptools looks for packages from there
    try:
        distribution = Distribution({"script_name": "setup.py"})
        distribution.parse_config_files()
        command = distribution.get_command_obj("build_py")
        command.ensure_finalized()
        data = [f"{source}/{name}" for _, source, _, names in command.data_files for name in names]
        return [os.path.relpath(path) for path in [*command.get_source_files(), *data]]
    finally:
        os.chdir(here)


def test_the_wheel_holds_every_module_of_the_product_and_none_of_benchmarks_and_tests() -> None:
    files = packaged()
    assert {name.partition("/")[0] for name in files} == INSTALLED
    for room in INSTALLED:
        ours = {str(path.relative_to(PROJECT_ROOT)) for path in (PROJECT_ROOT / room).rglob("*.py")}
        assert ours <= set(files), f"not packaged: {sorted(ours - set(files))}"


def test_the_wheel_holds_every_file_of_the_console() -> None:
    folder, files = PROJECT_ROOT / "services/gateway/console/static", packaged()
    for path in folder.iterdir():
        assert str(path.relative_to(PROJECT_ROOT)) in files


def test_the_demo_runs_without_benchmarks_and_tests() -> None:
    without = "import sys; sys.modules.update(load_tests=None, tests=None); "
    code = without + "import cluster.local.demo, cluster.local.ttft, cluster.local.supervisor"
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=PROJECT_ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
