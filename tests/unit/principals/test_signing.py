from __future__ import annotations

import base64
import json
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import Unauthenticated
from shared.principals.principal import Principal, Role
from shared.principals.signing import SKEW_S, SignedTooLongAgo, Signer

SECRET, OTHER = b"a" * 32, b"b" * 32
ANNA = Principal("anna", "acme", frozenset({Role.READER}), frozenset({"staff", "legal"}))


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_a_signed_principal_is_read_as_it_was() -> None:
    signer = Signer([SECRET])
    assert signer.verify(signer.sign(ANNA, 10.0)) == ANNA


@given(
    name=st.text(min_size=1),
    groups=st.frozensets(st.text()),
    roles=st.frozensets(st.sampled_from(Role), min_size=1),
)
def test_every_name_and_group_survives(name: str, groups: frozenset[str], roles: frozenset[Role]) -> None:
    signer, principal = Signer([SECRET]), Principal(name, "acme", roles, groups)
    token = signer.sign(principal, 10.0)
    assert set(token) <= set(string.ascii_letters + string.digits + "-_.")
    assert signer.verify(token) == principal


def test_a_signature_of_another_installation_means_nothing() -> None:
    with pytest.raises(Unauthenticated, match="not signed by this installation"):
        Signer([OTHER]).verify(Signer([SECRET]).sign(ANNA, 10.0))


def test_a_signature_ends_with_its_time_and_whoever_asked_may_ask_again() -> None:
    clock = Clock()
    signer = Signer([SECRET], clock)
    token = signer.sign(ANNA, 10.0)
    clock.now_s += 10.0 + SKEW_S
    assert signer.verify(token) == ANNA
    clock.now_s += 0.1
    with pytest.raises(SignedTooLongAgo, match="too long ago") as raised:
        signer.verify(token)
    assert raised.value.retryable
    assert signer.verify(signer.sign(ANNA, 10.0)) == ANNA


def test_a_secret_is_replaced_while_signatures_are_on_their_way() -> None:
    before, after = Signer([SECRET]), Signer([OTHER, SECRET])
    assert after.verify(before.sign(ANNA, 10.0)) == ANNA
    with pytest.raises(Unauthenticated):
        before.verify(after.sign(ANNA, 10.0))


def test_no_byte_of_a_signature_can_be_another() -> None:
    signer = Signer([SECRET])
    token = signer.sign(ANNA, 10.0)
    for at in range(len(token)):
        changed = token[:at] + ("A" if token[at] != "A" else "B") + token[at + 1 :]
        with pytest.raises(Unauthenticated):
            signer.verify(changed)


@given(st.text())
def test_whatever_is_none_is_refused(text: str) -> None:
    with pytest.raises(Unauthenticated):
        Signer([SECRET]).verify(text)


def test_claims_without_their_mac_are_refused() -> None:
    claims = {"name": "eve", "tenant": "acme", "roles": ["admin"], "groups": [], "until": 1e12}
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    for token in (f"kvp1.{payload}.", f"kvp1.{payload}", f"kvp1.{payload}.AAAA"):
        with pytest.raises(Unauthenticated):
            Signer([SECRET]).verify(token)


@pytest.mark.parametrize("secrets", [[], [b""], [b"short"], [SECRET, b"short"]])
def test_a_secret_that_can_be_guessed_is_refused(secrets: list[bytes]) -> None:
    with pytest.raises(ValueError, match="at least 32 bytes"):
        Signer(secrets)


def test_roles_include_those_before_them() -> None:
    writer = Principal("w", "acme", frozenset({Role.WRITER}))
    assert [writer.may(role) for role in Role] == [True, True, False, False]
    assert not any(Principal("n", "acme", frozenset()).may(role) for role in Role)
