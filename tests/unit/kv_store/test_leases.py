from __future__ import annotations

from services.kv_store.tiers.leases import Leases


def test_a_lease_holds_until_its_time_is_over_and_is_then_forgotten() -> None:
    now_s = 0.0
    leases = Leases(10, lambda: now_s)
    leases.renew("a")
    now_s = 9.0
    assert "a" in leases
    assert "b" not in leases
    now_s = 10.0
    assert "a" not in leases
    leases.renew("b")
    assert len(leases) == 1


def test_a_renewed_lease_outlives_those_that_were_given_after_it() -> None:
    now_s = 0.0
    leases = Leases(10, lambda: now_s)
    leases.renew("a")
    now_s = 1.0
    leases.renew("b")
    now_s = 5.0
    leases.renew("a")
    now_s = 12.0
    leases.renew("c")
    assert [name in leases for name in "abc"] == [True, False, True]
    assert len(leases) == 2
