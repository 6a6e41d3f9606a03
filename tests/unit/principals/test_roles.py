from __future__ import annotations

from cluster.limits_reference import request_types
from shared.principals.principal import Role
from shared.principals.roles import ROLES, role_for


def test_every_rpc_of_the_protos_has_its_role_and_no_other() -> None:
    assert set(ROLES) == set(request_types())


def test_rpcs_of_one_name_need_one_role() -> None:
    for rpc, role in ROLES.items():
        assert role_for(rpc.partition(".")[2]) == role


def test_nothing_but_health_is_for_anybody() -> None:
    assert {rpc.partition(".")[2] for rpc, role in ROLES.items() if role is None} == {"Health"}


def test_one_that_is_not_in_the_table_is_for_the_services_alone() -> None:
    assert role_for("Surprise") is Role.INTERNAL
