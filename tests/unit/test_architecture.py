"""Rules of the house that no import contract can say."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import protos
import services
import shared

ROOT = Path(__file__).resolve().parents[2]
WIRE = {"ray", "grpc", "protos", "google"}
# ``messages.py`` is the part of a long ``handlers.py`` that translates messages.
# ``routing.py`` is what Ray makes routers of, in whoever has a handle.
DOORS = {
    "app.py": WIRE,
    "routing.py": {"ray"},
    "replica_choice.py": {"protos"},
    "handlers.py": {"grpc", "protos", "google"},
    "messages.py": {"protos"},
}
# Adapters of foreign libraries that speak gRPC themselves: they translate its errors.
ADAPTERS = {"services/retrieval/milvus.py": {"grpc"}}
ROOMS_OF_OURS = ("shared", "services", "cluster", "load_tests")
# The training room runs as a job, not as a service: it has no RPCs.
ROOMS = sorted(p.parent for p in (ROOT / "services").glob("*/app.py"))


def imports(path: Path) -> set[str]:
    """Top-level packages that the module imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    return names


def modules() -> dict[str, Path]:
    """Our own code, by import name."""
    paths = [path for room in ROOMS_OF_OURS for path in (ROOT / room).rglob("*.py")]
    names = [path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".") for path in paths]
    return {name.removesuffix(".__init__"): path for name, path in zip(names, paths, strict=True)}


def import_graph() -> dict[str, set[str]]:
    """Which of our modules each imports, wherever it does so: in functions and for types alone as well."""
    known, graph = modules(), dict[str, set[str]]()
    for name, path in known.items():
        found: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                inner = [f"{node.module}.{alias.name}" for alias in node.names]
                found |= {module if module in known else node.module for module in inner}
        graph[name] = found & known.keys() - {name}
    return graph


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """What is left when modules are taken out again and again that import nothing left, or that nothing left
    imports."""
    left = set(graph)
    while True:
        imported = set().union(*(graph[name] & left for name in left))
        ends = {name for name in left if name not in imported or not graph[name] & left}
        if not ends:
            return [[name, *sorted(graph[name] & left)] for name in sorted(left)]
        left -= ends


def test_circles_are_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == [["b", "c"], ["c", "b"]]


def test_modules_import_each_other_in_no_circle() -> None:
    assert circles(import_graph()) == []


def test_one_name_means_one_class() -> None:
    where: dict[str, list[str]] = {}
    for module, path in modules().items():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                where.setdefault(node.name, []).append(module)
    assert {name: found for name, found in where.items() if len(found) > 1} == {}


def modes_in(node: ast.AST) -> list[str]:
    """Members of ``ReuseMode`` that an expression names."""
    return [
        part.attr
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute)
        and isinstance(part.value, ast.Name)
        and part.value.id == "ReuseMode"
    ]


def mode_questions(source: str) -> list[int]:
    """Lines that ask which mode it is."""
    return [
        part.lineno
        for part in ast.walk(ast.parse(source))
        if (isinstance(part, ast.Compare) and any(map(modes_in, (part.left, *part.comparators))))
        or (isinstance(part, ast.MatchValue) and modes_in(part))
    ]


def test_questions_for_a_mode_by_name_are_found() -> None:
    assert mode_questions("if reuse is ReuseMode.FULL: ...") == [1]
    assert mode_questions("a = reuse not in (ReuseMode.APE, ReuseMode.EPIC)") == [1]
    assert mode_questions("match reuse:\n    case ReuseMode.APE | ReuseMode.EPIC: ...") == [2, 2]
    assert mode_questions("reuse: ReuseMode = ReuseMode.REORDERED\nask(ReuseMode.FULL)") == []


def test_nobody_asks_for_a_mode_by_name_outside_the_table_and_the_policies() -> None:
    asking = {
        name: lines
        for name, path in modules().items()
        if name != "shared.generation.modes" and not name.startswith("shared.engine.modes.")
        if (lines := mode_questions(path.read_text(encoding="utf-8")))
    }
    assert asking == {}


@pytest.mark.parametrize("package", [services, shared, protos])
def test_generic_package_names_are_ours(package: object) -> None:
    assert Path(str(package.__file__)).is_relative_to(ROOT)  # type: ignore[attr-defined]


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_every_room_has_four_doors_and_a_docstring(room: Path) -> None:
    assert {"__init__.py", "app.py", "handlers.py", "config.py"} <= {p.name for p in room.iterdir()}
    assert ast.get_docstring(ast.parse((room / "__init__.py").read_text(encoding="utf-8")))


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_only_the_doors_of_a_room_know_ray_grpc_and_protos(room: Path) -> None:
    for path in room.rglob("*.py"):
        name = path.relative_to(ROOT).as_posix()
        forbidden = WIRE - DOORS.get(path.name, set()) - ADAPTERS.get(name, set())
        assert not imports(path) & forbidden, f"{name} imports {imports(path) & forbidden}"


@pytest.mark.parametrize(
    "module",
    [
        "cluster.applications",
        "services.gateway.app",
        "services.kv_store.app",
        "shared.clients.rag",
        "shared.kv_format",
    ],
)
def test_torch_stays_out_of_what_does_not_compute(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
