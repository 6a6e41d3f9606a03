from __future__ import annotations

import asyncio
import base64
import hmac
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from shared.config import load
from shared.errors import ConfigError, Unavailable
from shared.principals.config import TokensConfig
from shared.principals.principal import Principal, Role
from shared.principals.tokens import BadToken, TokenChecker, read_jwks

CONFIG = TokensConfig("https://id.example", "kvquilt", "jwks.json", refresh_s=300.0)
FAR = 4_000_000_000


def key_pair(kid: str) -> tuple[Any, dict[str, Any]]:
    private = ec.generate_private_key(ec.SECP256R1())
    public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(private.public_key()))
    return private, public | {"kid": kid, "use": "sig"}


ONE, TWO = key_pair("one"), key_pair("two")


def claims(**more: Any) -> dict[str, Any]:
    said = {
        "iss": "https://id.example",
        "aud": ["kvquilt", "other"],
        "exp": FAR,
        "sub": "anna@acme.example",
        "tenant": "acme",
        "roles": ["writer", "unknown"],
        "groups": ["/staff", "/legal"],
    }
    return {name: value for name, value in (said | more).items() if value is not None}


def token(key: tuple[Any, dict[str, Any]] = ONE, **more: Any) -> str:
    return jwt.encode(claims(**more), key[0], "ES256", {"kid": key[1]["kid"]})


class Provider:
    """What reads its keys. ``away``: nobody answers."""

    def __init__(self, *keys: dict[str, Any]) -> None:
        self.keys, self.away, self.num_read, self.now_s = list(keys), False, 0, 1000.0

    def __call__(self, place: str) -> bytes:
        assert place == CONFIG.jwks
        self.num_read += 1
        if self.away:
            raise OSError("no route to host")
        return json.dumps({"keys": self.keys}).encode()

    def checker(self, **settings: Any) -> TokenChecker:
        return TokenChecker(replace(CONFIG, **settings), self, lambda: self.now_s)


async def test_a_token_becomes_the_principal_that_its_claims_name() -> None:
    checker = Provider(ONE[1]).checker()
    assert await checker.principal_of(token()) == Principal(
        "token/anna@acme.example", "acme", frozenset({Role.WRITER}), frozenset({"/staff", "/legal"})
    )


async def test_claims_have_the_names_that_the_settings_say() -> None:
    checker = Provider(ONE[1]).checker(
        name_claim="email",
        tenant_claim="org.id",
        roles_claim="realm_access.roles",
        groups_claim="https://acme.example/groups",
        roles={"kv-admin": "admin"},
    )
    told = token(
        email="anna",
        org={"id": "acme"},
        realm_access={"roles": ["kv-admin", "reader"]},
        **{"https://acme.example/groups": "a b"},
    )
    principal = await checker.principal_of(told)
    assert principal == Principal("token/anna", "acme", frozenset({Role.ADMIN}), frozenset({"a", "b"}))


async def test_a_token_without_a_tenant_is_the_settings_or_nobodys() -> None:
    provider = Provider(ONE[1])
    assert (await provider.checker(tenant="acme").principal_of(token(tenant=None))).tenant == "acme"
    with pytest.raises(BadToken, match="tenant"):
        await provider.checker().principal_of(token(tenant=None))


async def test_nobody_becomes_a_service_by_a_claim() -> None:
    principal = await Provider(ONE[1]).checker().principal_of(token(roles=["internal"]))
    assert principal.roles == frozenset()


@pytest.mark.parametrize(
    "changes",
    [
        {"iss": "https://evil.example"},
        {"iss": None},
        {"aud": "other"},
        {"aud": None},
        {"exp": 1_000_000},
        {"exp": None},
        {"nbf": FAR},
        {"sub": None},
        {"sub": 5},
        {"sub": "a\nb"},
        {"sub": "n" * 200},
        {"tenant": "../x"},
        {"tenant": ["a"]},
        {"groups": [5]},
        {"groups": {"a": 1}},
        {"groups": ["a b"]},
        {"groups": [str(i) for i in range(300)]},
        {"roles": 5},
    ],
)
async def test_a_token_that_says_something_else_is_none(changes: dict[str, Any]) -> None:
    with pytest.raises(BadToken):
        await Provider(ONE[1]).checker().principal_of(token(**changes))


def unsigned(header: dict[str, Any]) -> str:
    parts = [json.dumps(part).encode() for part in (header, claims())]
    return ".".join([*(base64.urlsafe_b64encode(p).rstrip(b"=").decode() for p in parts), ""])


def signed_by_public_key() -> str:
    """As by a library that takes it for a secret; ours refuses to."""
    header, payload = ({"alg": "HS256", "kid": "one"}, claims())
    parts = [base64.urlsafe_b64encode(json.dumps(p).encode()).rstrip(b"=") for p in (header, payload)]
    mac = hmac.digest(json.dumps(ONE[1]).encode(), b".".join(parts), "sha256")
    return b".".join([*parts, base64.urlsafe_b64encode(mac).rstrip(b"=")]).decode()


async def test_only_the_algorithms_of_the_settings_count() -> None:
    """Above all no secret one, for which the public key would be the secret."""
    checker = Provider(ONE[1], {"kty": "oct", "k": "c2VjcmV0", "kid": "secret"}).checker()
    private = rsa.generate_private_key(65537, 2048)
    forged = [
        unsigned({"alg": "none", "kid": "one"}),
        unsigned({"alg": "None", "kid": "one"}),
        jwt.encode(claims(), b"secret" * 8, "HS256", {"kid": "secret"}),
        signed_by_public_key(),
        jwt.encode(claims(), private, "RS256", {"kid": "one"}),
        jwt.encode(claims(), private, "PS256", {"kid": "one"}),
        token(TWO)[: -len("xx")] + "xx",
        jwt.encode(claims(), TWO[0], "ES256", {"kid": "one"}),
        jwt.encode(claims(), TWO[0], "ES256", {"kid": "one", "jwk": TWO[1]}),
        "",
        "a.b.c",
        "é.é.é",
        token() + "x" * 20_000,
    ]
    for one in forged:
        with pytest.raises(BadToken):
            await checker.principal_of(one)


async def test_keys_that_the_provider_replaces_are_found_when_a_token_needs_them() -> None:
    provider = Provider(ONE[1])
    checker = provider.checker()
    await checker.principal_of(token())
    provider.keys = [ONE[1], TWO[1]]
    provider.now_s += 11
    await checker.principal_of(token(TWO))
    assert provider.num_read == 2
    provider.keys = [TWO[1]]
    provider.now_s += 301
    with pytest.raises(BadToken):
        await checker.principal_of(token(ONE))


async def test_nonsense_does_not_make_us_ask_the_provider_again_and_again() -> None:
    provider = Provider(ONE[1])
    checker = provider.checker()
    for number in range(50):
        with pytest.raises(BadToken):
            await checker.principal_of(jwt.encode(claims(), TWO[0], "ES256", {"kid": f"k{number}"}))
    assert provider.num_read == 1
    many = [checker.principal_of(token()) for _ in range(50)]
    await asyncio.gather(*many)
    assert provider.num_read == 1


async def test_keys_that_cannot_be_read_again_hold_and_it_is_told() -> None:
    provider = Provider(ONE[1])
    checker = provider.checker()
    await checker.principal_of(token())
    provider.away, provider.now_s = True, provider.now_s + 400
    await checker.principal_of(token())
    assert "no route to host" in checker.trouble
    provider.away, provider.now_s = False, provider.now_s + 11
    await checker.principal_of(token())
    assert checker.trouble == ""


async def test_as_long_as_they_have_never_been_read_callers_are_told_to_come_again() -> None:
    provider = Provider(ONE[1])
    provider.away = True
    checker = provider.checker()
    with pytest.raises(Unavailable, match="cannot be checked now"):
        await checker.principal_of(token())
    provider.away, provider.now_s = False, provider.now_s + 11
    await checker.principal_of(token())


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"[]", b'{"keys": 5}', b'{"keys": [5, {}, {"kty": "oct", "k": "YQ"}]}']
)
async def test_a_set_without_a_key_of_use_is_none(text: bytes) -> None:
    checker = TokenChecker(CONFIG, lambda place: text, lambda: 0.0)
    with pytest.raises(Unavailable):
        await checker.principal_of(token())
    assert checker.trouble


def test_a_set_may_lie_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "jwks.json").write_bytes(b"{}")
    assert read_jwks(str(tmp_path / "jwks.json")) == b"{}"


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"issuer": "https://id.example"}, "audience"),
        ({"issuer": "https://id.example", "audience": "a"}, "jwks"),
        ({"jwks": "http://id.example/jwks"}, "jwks: must be https"),
        ({"algorithms": ["HS256"]}, "algorithms: 'HS256'"),
        ({"algorithms": ["none"]}, "algorithms: 'none'"),
        ({"algorithms": []}, "algorithms"),
        ({"roles": {"x": "internal"}}, "roles.x"),
        ({"tenant": "a/b"}, "tenant"),
        ({"leeway_s": -1}, "leeway_s"),
        ({"refresh_s": 0}, "refresh_s"),
    ],
)
def test_settings_that_would_open_the_door_are_refused_by_name(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=f"^auth.tokens.{named}"):
        load(TokensConfig, settings, "auth.tokens.")
