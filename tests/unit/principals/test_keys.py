from __future__ import annotations

import datetime
import hashlib
import re
from dataclasses import replace
from datetime import UTC

import pytest

from shared.principals.keys import KeyKind, KeyRecord, hash_of, id_of, looks_like_key, new_key
from shared.principals.principal import Principal, Role

NOON = datetime.datetime(2026, 5, 1, 12, tzinfo=UTC)
KEY = new_key()
ANNA = KeyRecord(
    id_of(KEY), "anna", KeyKind.KEY, "acme", frozenset({Role.WRITER}), frozenset({"staff"}), hash_of(KEY)
)


def test_a_key_says_what_it_is_and_whose_and_nothing_else() -> None:
    assert re.fullmatch(r"kvq_[0-9A-Za-z]{12}_[0-9A-Za-z]{46}", KEY)
    assert id_of(KEY) == KEY[4:16]
    assert looks_like_key(KEY)
    assert len({new_key() for _ in range(50)}) == 50


def test_only_a_hash_is_kept_which_is_the_whole_keys() -> None:
    assert ANNA.hash == hashlib.sha256(KEY.encode()).hexdigest()
    assert KEY[17:] not in repr(ANNA)
    assert ANNA.hash not in repr(ANNA)
    assert ANNA.matches(KEY)
    assert not ANNA.matches(new_key(ANNA.key_id))


@pytest.mark.parametrize("at", [0, 4, 16, 17, 40, 57, 62])
def test_a_mistyped_key_is_none(at: int) -> None:
    assert id_of(KEY[:at] + ("x" if KEY[at] != "x" else "y") + KEY[at + 1 :]) == ""


@pytest.mark.parametrize(
    "text",
    ["", "kvq_", KEY[:-1], KEY + "0", f" {KEY}", KEY.replace("_", "-"), "sk-abc"],
    ids=["nothing", "its beginning", "shorter", "longer", "after a blank", "hyphens", "another's"],
)
def test_what_looks_alike_is_none(text: str) -> None:
    assert id_of(text) == ""


def test_who_has_it_is_named_with_what_it_is() -> None:
    assert ANNA.principal == Principal("key/anna", "acme", frozenset({Role.WRITER}), frozenset({"staff"}))


def test_it_ends_by_its_time_or_when_it_is_taken_back() -> None:
    hour = datetime.timedelta(hours=1)
    assert ANNA.state(NOON) == "valid"
    assert replace(ANNA, expires=NOON + hour).state(NOON) == "valid"
    assert replace(ANNA, expires=NOON).state(NOON) == "expired"
    assert replace(ANNA, revoked=NOON + hour).state(NOON) == "valid"
    assert replace(ANNA, revoked=NOON, expires=NOON - hour).state(NOON) == "revoked"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"key_id": "../../etc"}, "id"),
        ({"name": ""}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"name": "n" * 129}, "name"),
        ({"tenant": "a/b"}, "tenant"),
        ({"tenant": ""}, "tenant"),
        ({"groups": frozenset({"a b"})}, "groups"),
        ({"roles": frozenset()}, "roles"),
        ({"roles": frozenset({Role.INTERNAL})}, "roles: internal"),
        ({"hash": "abc"}, "hash"),
        ({"certificate": "CN=x"}, "certificate"),
        ({"kind": KeyKind.CERTIFICATE}, "certificate"),
        ({"kind": KeyKind.CERTIFICATE, "certificate": "x"}, "certificate: must be URI"),
    ],
)
def test_a_record_that_nobody_should_trust_is_refused_by_field(
    changes: dict[str, object], field: str
) -> None:
    with pytest.raises(ValueError, match=f"^{field}"):
        replace(ANNA, **changes)  # type: ignore[arg-type]
