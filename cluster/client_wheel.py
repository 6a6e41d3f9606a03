"""Builds ``kvquilt-client``, the Python client without the system: `python -m cluster.client_wheel`.

The wheel holds the modules that ``shared.python_client`` imports, below the package ``kvquilt_client``, so
that they are nobody else's; and it needs gRPC and protobuf alone.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

from cluster.paths import PROJECT_ROOT

PUBLIC, PRIVATE = "kvquilt_client", "_kvquilt"
_ENTRY = "shared.python_client"
_ROOMS = ("shared", "protos")
_IMPORT = re.compile(rf"^(\s*(?:from|import) )({'|'.join(_ROOMS)})(?=[.\s])", re.MULTILINE)
_GENERATED_BY = re.compile(r"^# Protobuf Python Version: ([\d.]+)$", re.MULTILINE)
_PYPROJECT = """\
[build-system]
requires = ["setuptools>=75"]
build-backend = "setuptools.build_meta"

[project]
name = "kvquilt-client"
version = "{version}"
description = "Python client of kvquilt: questions, documents, search, live forests"
readme = "README.md"
requires-python = ">=3.11"
dependencies = ["googleapis-common-protos", "grpcio", "protobuf>={protobuf}"]

[tool.setuptools.packages.find]
include = ["{package}*"]

[tool.setuptools.package-data]
"*" = ["py.typed", "*.pyi"]
"""


def imported_files() -> list[Path]:
    """Lists what importing the client loads of this project, and the stubs' types; relative to its root."""
    listing = (
        f"import sys, {_ENTRY}; print(*(m.__file__ for n, m in sys.modules.items() "
        f"if n.split('.')[0] in {_ROOMS!r} and m.__file__), sep='\\n')"
    )
    found = subprocess.run(
        [sys.executable, "-c", listing], cwd=PROJECT_ROOT, capture_output=True, text=True, check=True
    )
    files = [Path(line).resolve() for line in found.stdout.splitlines()]
    types = [path.with_suffix(".pyi") for path in files if path.with_suffix(".pyi").exists()]
    return sorted(path.relative_to(PROJECT_ROOT) for path in (*files, *types))


def renamed(source: str) -> str:
    """The same module with its imports below the client's package."""
    return _IMPORT.sub(rf"\g<1>{PUBLIC}.{PRIVATE}.\g<2>", source)


def lay_out(directory: Path) -> None:
    """Writes the sources of the distribution."""
    package = directory / PUBLIC
    for file in imported_files():
        target = package / PRIVATE / file
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(renamed((PROJECT_ROOT / file).read_text(encoding="utf-8")), encoding="utf-8")
    entry = PROJECT_ROOT / _ENTRY.replace(".", "/")
    public = renamed((entry / "__init__.py").read_text(encoding="utf-8"))
    (package / "__init__.py").write_text(public, encoding="utf-8")
    (package / PRIVATE / "__init__.py").write_text('"""Modules of the client; import its package."""\n')
    (package / "py.typed").touch()
    project = tomllib.loads((PROJECT_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    stub = (PROJECT_ROOT / "protos/kvquilt/v1/common_pb2.py").read_text(encoding="utf-8")
    protobuf = _GENERATED_BY.search(stub)
    assert protobuf, "stubs say which protobuf generated them"
    told = _PYPROJECT.format(version=project["version"], protobuf=protobuf[1], package=PUBLIC)
    (directory / "pyproject.toml").write_text(told, encoding="utf-8")
    readme = (PROJECT_ROOT / "docs/python-client.md").read_text(encoding="utf-8")
    (directory / "README.md").write_text(readme, encoding="utf-8")


def build(out: Path) -> Path:
    """The wheel, in ``out``."""
    with tempfile.TemporaryDirectory(prefix="kvquilt-client-") as directory:
        lay_out(Path(directory))
        command = (sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check")
        how = ("--no-deps", "--no-build-isolation", "--wheel-dir", str(out.resolve()), directory)
        subprocess.run([*command, *how], check=True)
    (wheel,) = out.glob("kvquilt_client-*.whl")
    return wheel


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m cluster.client_wheel", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/client"), help="default: build/client")
    print(build(parser.parse_args(argv).out))


if __name__ == "__main__":
    main(sys.argv[1:])
