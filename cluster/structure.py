"""Writes the list of modules in ``docs/structure.md`` from their docstrings: ``python -m cluster.structure
docs/structure.md`` (``make docs``). What stands outside the marks is written by hand."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from cluster.paths import PROJECT_ROOT

ROOMS = ("services", "shared", "cluster", "load_tests")
BEGIN, END = "<!-- modules: by `make docs` -->\n", "<!-- end of modules -->\n"


def modules() -> list[Path]:
    """Relative to the project, folder by folder, a package before its modules."""
    found = (path.relative_to(PROJECT_ROOT) for room in ROOMS for path in (PROJECT_ROOT / room).rglob("*.py"))
    return sorted(found, key=lambda path: (ROOMS.index(path.parts[0]), path.parent.parts, path.name))


def listing() -> str:
    """A heading per package with what it is, a line per module."""
    return "".join(_package(folder, list(of_it)) for folder, of_it in groupby(modules(), lambda p: p.parent))


def renewed(text: str) -> str:
    """``text`` with the list between its marks as the modules are now."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}{listing()}\n{rest[rest.index(END) :]}"


def sentence(module: Path) -> str:
    """The first one of the docstring; empty without one."""
    docstring = ast.get_docstring(ast.parse((PROJECT_ROOT / module).read_text(encoding="utf-8"))) or ""
    words = " ".join(docstring.partition("\n\n")[0].split()).replace("``", "`")
    return re.split(r"(?<=\.) (?=[A-Z`\[])", words, maxsplit=1)[0]


def _package(folder: Path, of_it: list[Path]) -> str:
    return "\n".join(["", f"### {folder.as_posix()}", "", *_lines(of_it), ""])


def _lines(of_it: list[Path]) -> Iterator[str]:
    for module in of_it:
        yield f"- [`{module.name}`](../{module.as_posix()}): {sentence(module)}"


def main() -> None:
    path = Path(sys.argv[1])
    path.write_text(renewed(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
