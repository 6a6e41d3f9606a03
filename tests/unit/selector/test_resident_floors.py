"""The selector's resident KV keeps every tenant's floor."""

from __future__ import annotations

from services.selector.resident import Resident
from shared.engine.kv.segment import Segment
from tests.unit.engine.test_residency import SPEC, TOKEN_BYTES


def segment(num_tokens: int) -> Segment:
    made = Segment(SPEC, num_tokens)
    made.length = num_tokens
    return made


def test_a_flood_of_one_tenant_leaves_the_other_his_floor() -> None:
    resident = Resident(40 * TOKEN_BYTES, 0.2)
    resident.put("quiet", segment(6), "quiet")
    for number in range(50):
        resident.put(str(number), segment(4), "flood")
        resident.check_invariants()
    assert resident.get("quiet") is not None
    assert len(resident) == 9


def test_what_was_deleted_goes() -> None:
    resident = Resident(40 * TOKEN_BYTES, 0.2)
    for key in "ab":
        resident.put(key, segment(4), "t")
    resident.forget(["a", "nothing"])
    assert resident.keys() == ("b",)
    resident.check_invariants()


def test_without_floors_the_least_recently_used_goes() -> None:
    resident = Resident(10 * TOKEN_BYTES)
    for key, tenant in (("a", "one"), ("b", "two"), ("c", "two")):
        resident.put(key, segment(4), tenant)
    assert resident.get("a") is None
    assert resident.get("b") is not None
    resident.check_invariants()


def test_what_is_larger_than_the_memory_is_not_kept() -> None:
    resident = Resident(3 * TOKEN_BYTES, 0.2)
    resident.put("a", segment(4), "one")
    assert (len(resident), resident.num_bytes) == (0, 0)
    resident.check_invariants()
