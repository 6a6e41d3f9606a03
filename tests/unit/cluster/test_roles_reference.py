"""The table of roles in docs/authentication.md says what the roles say."""

from __future__ import annotations

from cluster.paths import PROJECT_ROOT
from cluster.roles_reference import renewed, table
from shared.principals.roles import ROLES

TEXT = (PROJECT_ROOT / "docs" / "authentication.md").read_text(encoding="utf-8")


def test_the_committed_table_is_fresh() -> None:
    assert renewed(TEXT) == TEXT, "run `make docs`"


def test_every_rpc_stands_in_it_once() -> None:
    for rpc in ROLES:
        assert table().count(f"`{rpc}`") == 1
