"""Measures what it costs a call to know who makes it, by pairs: the same call to a server that asks nobody
and to one that asks, one right after the other.

    python -m load_tests.auth --json build/auth.json

Three ways to say who calls: a key, a token (ES256), and a key whose caller is then told to four services, as
the gateway does for an answer: four signatures, four that are checked. What is shown is the median of the
differences with its 95 % interval, by resampling the pairs.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import grpc
import jwt
from cryptography.hazmat.primitives.asymmetric import ec

from load_tests.benchmark import at_least, json_option, new_parser, option
from protos.kvquilt.v1 import common_pb2
from shared.clients.grpc_transport import GrpcTransport
from shared.clients.health import ServiceHealth
from shared.clients.service import ServiceClient, meta_of
from shared.measuring.paired import median_of
from shared.measuring.report import Measurement, write_report
from shared.principals.authentication import callers_of
from shared.principals.callers import Callers
from shared.principals.config import AuthConfig, AuthMode, TokensConfig
from shared.principals.credentials import Credentials, bearer, no_credentials
from shared.principals.keys import KeyKind, KeyRecord, hash_of, id_of, new_key
from shared.principals.keys_file import changing
from shared.principals.principal import Role
from shared.principals.secret import make_secret
from shared.request import RequestContext
from shared.rpc import HealthServicer

_MS = 1e3
_TENANTS_KEYS = 1000
_SERVICES = 4
_AIM_MS = 0.5
_SERVICE = "kvquilt.v1.Rag"


class AskedService(HealthServicer):
    """``told``: services that are told who asked, before it answers."""

    application = "gateway"

    def __init__(self, callers: Callers | None, told: int = 0) -> None:
        self.callers, self._told = callers, told

    async def healthy(self, ctx: RequestContext) -> ServiceHealth:
        for _ in range(self._told):
            assert self.callers is not None
            caller = await self.callers.of_call("Generate", None)
            caller.context(meta_of(ctx))
        return ServiceHealth(self.application, ready=True)


class Installation:
    """A file with a thousand keys, a provider of tokens, a secret; and somebody who has one of each."""

    def __init__(self, directory: Path) -> None:
        self._keys, self._secret, self._jwks = (
            directory / name for name in ("keys.json", "secret", "jwks.json")
        )
        make_secret(self._secret)
        self.key = new_key()
        role = frozenset({Role.READER})
        with changing(self._keys) as records:
            for number, key in enumerate([self.key, *(new_key() for _ in range(_TENANTS_KEYS))]):
                name = f"caller-{number}"
                records.append(KeyRecord(id_of(key), name, KeyKind.KEY, "acme", role, hash=hash_of(key)))
        private = ec.generate_private_key(ec.SECP256R1())
        public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(private.public_key()))
        self._jwks.write_text(json.dumps({"keys": [public | {"kid": "one"}]}), encoding="utf-8")
        claims = {"iss": "https://id", "aud": "kvquilt", "sub": "anna", "tenant": "acme", "roles": ["reader"]}
        self.token = jwt.encode(claims | {"exp": time.time() + 86400}, private, "ES256", {"kid": "one"})

    def callers(self) -> Callers:
        tokens = TokensConfig("https://id", "kvquilt", str(self._jwks))
        return callers_of(
            AuthConfig(AuthMode.REQUIRED, str(self._keys), str(self._secret), tokens), "gateway"
        )


@asynccontextmanager
async def client_of(servicer: AskedService, credentials: Credentials) -> AsyncIterator[ServiceClient]:
    server = grpc.aio.server()
    health = grpc.unary_unary_rpc_method_handler(
        servicer.Health,
        request_deserializer=common_pb2.HealthRequest.FromString,
        response_serializer=common_pb2.HealthResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(_SERVICE, {"Health": health})])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            transport = GrpcTransport(channel, _SERVICE, "gateway", credentials=credentials)
            yield ServiceClient(transport)
    finally:
        await server.stop(None)


async def differences_ms(asked: ServiceClient, asking: ServiceClient, num_pairs: int) -> list[float]:
    """Of each pair: how much longer the one that asks takes; which comes first alternates."""
    found = []
    for pair in range(num_pairs):
        if pair % 2:
            plain_ms, guarded_ms = await _timed_ms(asked), await _timed_ms(asking)
        else:
            guarded_ms, plain_ms = await _timed_ms(asking), await _timed_ms(asked)
        found.append(guarded_ms - plain_ms)
    return found


async def measure(num_pairs: int) -> list[Measurement]:
    measurements = []
    with tempfile.TemporaryDirectory(prefix="kvquilt-auth-") as directory:
        ours = Installation(Path(directory))
        arms = {
            "key": (bearer(ours.key), 0),
            "token": (bearer(ours.token), 0),
            "key_and_four_services": (bearer(ours.key), _SERVICES),
        }
        for name, (credentials, told) in arms.items():
            async with AsyncExitStack() as stack:
                plain = await stack.enter_async_context(client_of(AskedService(None), no_credentials))
                guarded = await stack.enter_async_context(
                    client_of(AskedService(ours.callers(), told), credentials)
                )
                await differences_ms(plain, guarded, num_pairs // 10 + 1)  # pays for first uses
                added = median_of(await differences_ms(plain, guarded, num_pairs))
            print(
                f"{name:24} p50 {added.value:+.3f} ms ({added.low:+.3f} to {added.high:+.3f}), "
                f"aim at most {_AIM_MS} ms, n = {num_pairs}",
                flush=True,
            )
            measurements.append(
                Measurement(
                    f"auth_added_{name}", added.value, "ms", min=added.low, max=added.high, n=num_pairs
                )
            )
    return measurements


async def _timed_ms(client: ServiceClient) -> float:
    ctx = RequestContext.create()
    began_s = time.perf_counter()
    await client.health(ctx)
    return (time.perf_counter() - began_s) * _MS


def main() -> None:
    parser = new_parser("load_tests.auth", __doc__)
    option(parser, "--pairs", 2000, "of calls, for each way", type=at_least(10))
    json_option(parser)
    args = parser.parse_args()
    measurements = asyncio.run(measure(args.pairs))
    if args.json:
        write_report(args.json, measurements)


if __name__ == "__main__":
    main()
