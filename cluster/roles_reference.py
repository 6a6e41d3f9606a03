"""Writes the table of roles in ``docs/authentication.md`` from the roles themselves: ``python -m
cluster.roles_reference docs/authentication.md`` (``make docs``). What stands outside the marks is written by
hand."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from shared.principals.principal import Role
from shared.principals.roles import ROLES

BEGIN, END = "<!-- roles: by `make docs` -->\n", "<!-- end of roles -->\n"


def table() -> str:
    return "".join(f"{line}\n" for line in _lines())


def renewed(text: str) -> str:
    """``text`` with the table between its marks as the roles are now."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{rest[rest.index(END) :]}"


def _lines() -> Iterator[str]:
    yield "| needs | RPCs |"
    yield "| --- | --- |"
    for needed in (None, *Role):
        rpcs = ", ".join(f"`{rpc}`" for rpc, role in ROLES.items() if role is needed)
        yield f"| {needed or 'nothing'} | {rpcs} |"


def main() -> None:
    path = Path(sys.argv[1])
    path.write_text(renewed(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
