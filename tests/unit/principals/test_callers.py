"""Who a call is of, by what it brings along; every way to lie is refused."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field, replace
from datetime import UTC
from typing import Any

import pytest

from protos.kvquilt.v1.common_pb2 import RequestMeta
from shared.errors import InvalidRequest, PermissionDenied, Unauthenticated, Unavailable
from shared.principals.callers import (
    FOREIGN,
    INVALID,
    MISSING,
    TERMINATOR,
    AuthenticatedCallers,
    Call,
    Caller,
    EverybodyIsOperator,
    ServiceCallers,
)
from shared.principals.config import AuthConfig, CertificatesConfig
from shared.principals.credentials import SIGNED, ServiceIdentity
from shared.principals.keys import KeyKind, KeyRecord, hash_of, id_of, new_id, new_key
from shared.principals.keys_file import Keys
from shared.principals.principal import Principal, Role
from shared.principals.signing import Signer
from shared.principals.tokens import BadToken

NOON = datetime.datetime(2026, 5, 1, 12, tzinfo=UTC)
HERE, ELSEWHERE = "ipv4:127.0.0.1:5000", "ipv4:10.0.0.9:5000"
OURS, THEIRS = Signer([b"o" * 32]), Signer([b"t" * 32])
XFCC = "x-forwarded-client-cert"
OPERATOR = Principal.operator("default")


@dataclass
class StaticKeys:
    """Keys that are not in a file. ``records`` None: there is none."""

    records: list[KeyRecord] | None = None
    trouble: str = ""

    @property
    def current(self) -> Keys | None:
        return None if self.records is None else Keys(tuple(self.records))


@dataclass
class Tokens:
    """Knows one token. ``away``: its provider."""

    away: bool = False
    trouble: str = ""

    async def principal_of(self, token: str) -> Principal:
        if self.away:
            raise Unavailable("tokens cannot be checked now")
        if token != "a.good.token":
            raise BadToken("nonsense")
        return Principal("token/tom", "corp", frozenset({Role.READER}))


@dataclass
class World:
    """Some keys, and who looks at them."""

    keys: StaticKeys = field(default_factory=StaticKeys)
    config: AuthConfig = field(default_factory=AuthConfig)
    tokens: Tokens | None = None
    local: bool = False
    now: datetime.datetime = NOON

    def key(self, name: str = "anna", *roles: Role, kind: KeyKind = KeyKind.KEY, **more: Any) -> str:
        key = new_key()
        given = frozenset(roles or () if kind is KeyKind.TERMINATOR else roles or (Role.READER,))
        record = KeyRecord(id_of(key), name, kind, "acme", given, frozenset({"staff"}), hash_of(key), **more)
        self.add(record)
        return key

    def certificate(self, name: str, of: str) -> None:
        role = frozenset({Role.READER})
        self.add(KeyRecord(new_id(), name, KeyKind.CERTIFICATE, "acme", role, certificate=of))

    def add(self, record: KeyRecord) -> None:
        self.keys.records = [*(self.keys.records or []), record]

    def change(self, key: str, **changes: Any) -> None:
        assert self.keys.records is not None
        self.keys.records = [
            replace(r, **changes) if r.key_id == id_of(key) else r for r in self.keys.records
        ]

    async def caller(self, method: str = "Answer", peer: str = ELSEWHERE, **metadata: str) -> Caller:
        """``metadata``: with _ for -."""
        pairs = [(name.replace("_", "-"), value) for name, value in metadata.items()]
        return await self.callers.of_call(method, Call(pairs, peer))

    @property
    def callers(self) -> AuthenticatedCallers:
        keys: Any = self.keys
        tokens: Any = self.tokens
        identity = ServiceIdentity("gateway", OURS)
        return AuthenticatedCallers(self.config, identity, keys, tokens, self.local, lambda: self.now)


@pytest.fixture
def world() -> World:
    return World(StaticKeys([]))


def bearing(key: str) -> str:
    return f"Bearer {key}"


def meta(**values: Any) -> RequestMeta:
    return RequestMeta(**values)


async def test_a_key_says_who_calls_and_the_body_does_not(world: World) -> None:
    key = world.key("anna", Role.READER)
    for scheme in ("Bearer", "bearer", "BEARER"):
        caller = await world.caller(authorization=f"{scheme} {key}")
        ctx = caller.context(meta(tenant="victim", request_id="r", deadline_ms=1000))
        assert ctx.principal == Principal("key/anna", "acme", frozenset({Role.READER}), frozenset({"staff"}))
        assert (ctx.tenant, ctx.request_id) == ("acme", "r")
        assert ctx.remaining_s <= 1.0


async def test_nor_does_a_principal_in_the_body_however_well_it_is_signed(world: World) -> None:
    key = world.key()
    forged = OURS.sign(Principal.operator("victim"), 60.0)
    caller = await world.caller(authorization=f"Bearer {key}")
    assert caller.context(meta(principal=forged, tenant="victim")).principal.name == "key/anna"


async def test_who_asked_is_told_to_the_services_on_the_way(world: World) -> None:
    ctx = (await world.caller(authorization=f"Bearer {world.key()}")).context(meta())
    assert OURS.verify(ctx.signed) == ctx.principal
    over_a_handle = await world.callers.of_call("Prefill", None)
    assert over_a_handle.context(meta(principal=ctx.signed, tenant="victim")).principal == ctx.principal


async def test_over_a_handle_nobody_is_believed_without_a_signature(world: World) -> None:
    caller = await world.callers.of_call("Prefill", None)
    for principal in ("", "nonsense", THEIRS.sign(OPERATOR, 60.0)):
        with pytest.raises(Unauthenticated):
            caller.context(meta(principal=principal, tenant="acme"))


async def test_a_service_from_elsewhere_says_who_asked_it_or_for_whom_it_works(world: World) -> None:
    itself = OURS.sign(ServiceIdentity("gateway", OURS).acting_for("default"), 60.0)
    caller = await world.caller("Index", kvquilt_principal=itself)
    anna = Principal("key/anna", "acme", frozenset({Role.READER}))
    assert caller.context(meta(principal=OURS.sign(anna, 60.0), tenant="x")).principal == anna
    own = caller.context(meta(tenant="corp")).principal
    assert own == Principal("service/gateway", "corp", frozenset({Role.INTERNAL}))
    with pytest.raises(InvalidRequest, match=r"meta\.tenant"):
        caller.context(meta(tenant="../x"))
    with pytest.raises(Unauthenticated):
        caller.context(meta(principal=THEIRS.sign(anna, 60.0)))


@pytest.mark.parametrize("signed", ["", "nonsense", THEIRS.sign(OPERATOR, 60.0)])
async def test_a_signature_of_nobody_here_is_refused(world: World, signed: str) -> None:
    with pytest.raises(Unauthenticated):
        await world.caller(peer=HERE, kvquilt_principal=signed)


async def test_roles_decide_what_may_be_called(world: World) -> None:
    allowed = {
        Role.READER: ["Answer", "Search", "Generate"],
        Role.WRITER: ["Upsert", "DeleteDocuments", "Feedback"],
        Role.ADMIN: ["Stats", "Verify", "CollectGarbage", "Pin", "Get", "Put"],
        Role.INTERNAL: ["Index", "Prefetch", "Open", "Adopt"],
    }
    for role in (Role.READER, Role.WRITER, Role.ADMIN):
        key = world.key(role.value, role)
        for needed, methods in allowed.items():
            for method in methods:
                if role.includes(needed):
                    await world.caller(method, authorization=f"Bearer {key}")
                else:
                    with pytest.raises(PermissionDenied, match=f"{method} needs the role {needed}"):
                        await world.caller(method, authorization=f"Bearer {key}")


async def test_without_credentials_one_may_learn_that_a_service_lives_and_nothing_else(world: World) -> None:
    caller = await world.caller("Health")
    assert caller.context(meta(tenant="victim")).principal == Principal("anonymous", "default", frozenset())
    for method in ("Answer", "Upsert", "Stats", "Open"):
        with pytest.raises(Unauthenticated) as refused:
            await world.caller(method, peer=HERE)
        assert refused.value.detail == MISSING


WRONG = [
    "",
    "Bearer",
    "Bearer ",
    "Bearer kvq_",
    "Basic YTpi",
    "Bearer sk-something",
    "Bearer \u20ac",
]


@pytest.mark.parametrize("authorization", WRONG)
async def test_whatever_is_wrong_with_a_key_the_caller_is_told_the_same(
    world: World, authorization: str
) -> None:
    key = world.key()
    for given in (authorization, f"Bearer {key[:-1]}", *map(bearing, (new_key(), new_key(id_of(key))))):
        with pytest.raises(Unauthenticated) as refused:
            await world.caller(authorization=given)
        assert refused.value.detail == INVALID


async def test_keys_end_by_their_time_or_when_they_are_taken_back_and_the_log_says_which(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    key = world.key(expires=NOON + datetime.timedelta(hours=1))
    await world.caller(authorization=f"Bearer {key}")
    world.now += datetime.timedelta(hours=1)
    with pytest.raises(Unauthenticated) as refused:
        await world.caller(authorization=f"Bearer {key}")
    assert refused.value.detail == INVALID
    world.change(key, expires=None, revoked=NOON)
    with pytest.raises(Unauthenticated):
        await world.caller(authorization=f"Bearer {key}")
    assert f"the key {id_of(key)} of anna is expired" in caplog.text
    assert f"the key {id_of(key)} of anna is revoked" in caplog.text
    assert key not in caplog.text


async def test_several_keys_of_one_caller_count_while_one_takes_the_others_place(world: World) -> None:
    old, new = world.key("anna"), world.key("anna")
    for key in (old, new):
        caller = await world.caller(authorization=f"Bearer {key}")
        assert caller.context(meta()).principal.name == "key/anna"
    world.change(old, revoked=NOON)
    await world.caller(authorization=f"Bearer {new}")
    with pytest.raises(Unauthenticated):
        await world.caller(authorization=f"Bearer {old}")


@pytest.mark.parametrize("name", ["authorization", SIGNED, TERMINATOR])
async def test_who_says_twice_who_he_is_is_refused(world: World, name: str) -> None:
    call = Call([(name, "a"), (name, "b")], ELSEWHERE)
    with pytest.raises(Unauthenticated, match="sent twice"):
        await world.callers.of_call("Answer", call)


async def test_tokens_are_asked_of_their_issuer(world: World) -> None:
    world.tokens = Tokens()
    caller = await world.caller(authorization="Bearer a.good.token")
    assert caller.context(meta(tenant="victim")).principal.name == "token/tom"
    with pytest.raises(Unauthenticated) as refused:
        await world.caller(authorization="Bearer another")
    assert refused.value.detail == INVALID
    world.tokens.away = True
    with pytest.raises(Unavailable):
        await world.caller(authorization="Bearer a.good.token")


class TestCertificates:
    NAMED = 'Hash=1;URI=spiffe://acme/search;Subject="CN=search"'

    @pytest.fixture
    def terminator(self, world: World) -> str:
        world.certificate("search", "URI=spiffe://acme/search")
        return world.key("envoy", kind=KeyKind.TERMINATOR)

    async def test_count_from_the_terminator(self, world: World, terminator: str) -> None:
        caller = await world.caller(**{XFCC: self.NAMED, TERMINATOR: terminator})
        assert caller.context(meta(tenant="victim")).principal == Principal(
            "certificate/search", "acme", frozenset({Role.READER})
        )

    async def test_are_dropped_from_everybody_else(self, world: World, terminator: str) -> None:
        for peer in (HERE, ELSEWHERE):
            with pytest.raises(Unauthenticated) as refused:
                await world.caller(peer=peer, **{XFCC: self.NAMED})
            assert refused.value.detail == MISSING

    async def test_make_nobody_more_than_his_key_does(self, world: World, terminator: str) -> None:
        key = world.key("anna")
        caller = await world.caller(**{XFCC: self.NAMED, "authorization": f"Bearer {key}"})
        assert caller.context(meta()).principal.name == "key/anna"

    async def test_are_not_believed_with_a_callers_key(self, world: World, terminator: str) -> None:
        key = world.key("anna", Role.ADMIN)
        with pytest.raises(Unauthenticated):
            await world.caller(**{XFCC: self.NAMED, TERMINATOR: key})

    async def test_nor_with_one_that_is_wrong_or_revoked(self, world: World, terminator: str) -> None:
        world.change(terminator, revoked=NOON)
        for given in (terminator, new_key(), "nonsense"):
            with pytest.raises(Unauthenticated):
                await world.caller(**{XFCC: self.NAMED, TERMINATOR: given})

    async def test_count_from_loopback_where_that_is_configured(self, world: World, terminator: str) -> None:
        world.config = AuthConfig(certificates=CertificatesConfig(loopback=True))
        caller = await world.caller(peer=HERE, **{XFCC: self.NAMED})
        assert caller.context(meta()).principal.name == "certificate/search"
        with pytest.raises(Unauthenticated):
            await world.caller(peer=ELSEWHERE, **{XFCC: self.NAMED})

    async def test_of_nobody_are_refused(self, world: World, terminator: str) -> None:
        for header in ("URI=spiffe://acme/other", "nonsense", 'Subject="CN=search"', f"{self.NAMED},URI=x"):
            with pytest.raises(Unauthenticated) as refused:
                await world.caller(**{XFCC: header, TERMINATOR: terminator})
            assert refused.value.detail == INVALID

    async def test_the_terminators_key_is_no_callers(self, world: World, terminator: str) -> None:
        with pytest.raises(Unauthenticated):
            await world.caller(authorization=f"Bearer {terminator}")

    async def test_a_caller_without_one_is_nobody(self, world: World, terminator: str) -> None:
        with pytest.raises(Unauthenticated) as refused:
            await world.caller(**{TERMINATOR: terminator})
        assert refused.value.detail == MISSING


class TestLocal:
    @pytest.fixture
    def world(self) -> World:
        return World(local=True)

    async def test_callers_of_this_machine_are_operators_as_long_as_there_is_no_key(
        self, world: World
    ) -> None:
        caller = await world.caller("Open", peer=HERE)
        assert caller.context(meta(tenant="acme")).principal == Principal.operator("acme")
        assert (await world.caller(peer=HERE, authorization="Bearer none")).principal is None

    async def test_others_are_refused_and_told_what_to_do(self, world: World) -> None:
        for method in ("Answer", "Health"):
            with pytest.raises(Unauthenticated) as refused:
                await world.caller(method, peer=ELSEWHERE)
            assert refused.value.detail == FOREIGN
        assert "kvquilt key create" in FOREIGN

    @pytest.mark.parametrize(
        "header", [{"x_forwarded_for": "10.0.0.9"}, {"origin": "https://evil.example"}, {"host": "evil"}]
    )
    async def test_so_are_those_on_whose_behalf_somebody_here_asks(
        self, world: World, header: dict[str, str]
    ) -> None:
        with pytest.raises(Unauthenticated):
            await world.caller(peer=HERE, **header)

    async def test_another_stack_of_this_machine_is_an_operator_too(self, world: World) -> None:
        caller = await world.caller("Index", peer=HERE, kvquilt_principal=THEIRS.sign(OPERATOR, 60.0))
        assert caller.context(meta(tenant="acme")).principal == Principal.operator("acme")
        with pytest.raises(Unauthenticated):
            await world.caller("Index", peer=ELSEWHERE, kvquilt_principal=THEIRS.sign(OPERATOR, 60.0))

    async def test_the_first_key_ends_that(self, world: World) -> None:
        key = world.key()
        with pytest.raises(Unauthenticated):
            await world.caller(peer=HERE)
        await world.caller(peer=ELSEWHERE, authorization=f"Bearer {key}")
        world.change(key, revoked=NOON)
        with pytest.raises(Unauthenticated):
            await world.caller(peer=HERE)

    async def test_so_does_an_issuer_of_tokens(self, world: World) -> None:
        world.tokens = Tokens()
        with pytest.raises(Unauthenticated):
            await world.caller(peer=HERE)

    async def test_a_damaged_file_opens_no_door(self, world: World) -> None:
        world.keys.trouble = "auth.keys_file: … is damaged"
        with pytest.raises(Unauthenticated):
            await world.caller(peer=HERE)
        assert world.callers.trouble == "auth.keys_file: … is damaged"

    async def test_its_owner_calls_with_and_without_keys(self, world: World) -> None:
        signed = OURS.sign(OPERATOR, 60.0)
        for _ in ("without", "with"):
            caller = await world.caller("CollectGarbage", kvquilt_principal=signed)
            assert caller.context(meta(tenant="acme")).principal == Principal.operator("acme")
            world.key()


async def test_where_nobody_is_asked_everybody_is_an_operator() -> None:
    callers = EverybodyIsOperator()
    for call in (None, Call([("authorization", "Bearer x")], ELSEWHERE)):
        ctx = (await callers.of_call("Open", call)).context(meta(tenant="acme"))
        assert ctx.principal == Principal.operator("acme")
        assert ctx.signed == ""


async def test_a_server_for_services_answers_nobody_else() -> None:
    callers = ServiceCallers(ServiceIdentity("kv_store", OURS))
    itself = OURS.sign(ServiceIdentity("generator", OURS).acting_for("default"), 60.0)
    anna = Principal("key/anna", "acme", frozenset({Role.READER}))
    caller = await callers.of_call("Open", Call([(SIGNED, itself)], ELSEWHERE))
    assert caller.context(meta(principal=OURS.sign(anna, 60.0))).principal == anna
    assert caller.context(meta(tenant="corp")).tenant == "corp"
    for metadata in ([], [(SIGNED, "x")], [(SIGNED, THEIRS.sign(OPERATOR, 60.0))]):
        with pytest.raises(Unauthenticated):
            await callers.of_call("Health", Call(metadata, HERE))
    with pytest.raises(PermissionDenied):
        await callers.of_call("Open", Call([(SIGNED, OURS.sign(anna, 60.0))], HERE))
