"""Makes one call of any RPC, and judges how it ended."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import grpc
from google.protobuf import text_format
from google.protobuf.descriptor import Descriptor, MethodDescriptor
from google.protobuf.message import Message

from shared.principals.credentials import Credentials, no_credentials
from shared.status import STATUS_OF
from tests.e2e import attack_table
from tests.e2e.attack_table import APPLICATIONS, BROKEN
from tests.fuzz.messages import MOST_DEADLINE_MS, parsed

GIVE_UP_S = MOST_DEADLINE_MS / 1000 + 30
LEFT, BROKE_OFF = "left", "broke off"
_CLIENTS_OWN_WORDS = "Internal error from Core"
"""Of gRPC's client, for a call that ends while it still sends requests: it does not tell how."""
_NOT_FOR_CALLERS = frozenset({"INTERNAL", "DATA_LOSS", "UNAVAILABLE"})
MAY_END = frozenset({"OK", *STATUS_OF.values()}) - _NOT_FOR_CALLERS
"""Statuses of calls to a system of which nothing was damaged and nothing is down."""
_MAY_BE_DAMAGED = frozenset({"KvStore.Put"})
"""What they bring; then they end DATA_LOSS."""
_WRONG_CODES = frozenset({"INTERNAL", "CORRUPT_DATA", "UNAVAILABLE"})
_SHOWN_CHARS = 3000
Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Case:
    """What is sent. ``name``: seed and number. ``caller``: one of the target's. ``leaves_after_s``: the
    caller goes away then, if it has no answer yet."""

    name: str
    rpc: str
    caller: str
    payloads: tuple[bytes, ...]
    metadata: Metadata = ()
    leaves_after_s: float | None = None

    def __str__(self) -> str:
        leaving = "" if self.leaves_after_s is None else f", who leaves after {self.leaves_after_s} s"
        lines = [f"{self.name}: {self.rpc} by {self.caller}{leaving} {self.metadata or ''}"]
        kind = method_of(self.rpc).input_type
        return "\n".join([*lines, *(_shown(kind, payload) for payload in self.payloads)])

    def to_json(self) -> str:
        """A line, with the requests as text beside their bytes."""
        payloads = [base64.b64encode(payload).decode() for payload in self.payloads]
        sent = {"name": self.name, "rpc": self.rpc, "caller": self.caller, "payloads": payloads}
        how = {"metadata": self.metadata, "leaves_after_s": self.leaves_after_s}
        return json.dumps({**sent, **how, "text": str(self)})

    @classmethod
    def from_json(cls, line: str) -> Case:
        told = json.loads(line)
        payloads = tuple(base64.b64decode(payload) for payload in told["payloads"])
        metadata = tuple((name, value) for name, value in told["metadata"])
        return cls(told["name"], told["rpc"], told["caller"], payloads, metadata, told["leaves_after_s"])


@dataclass
class Ended:
    """``status``: of gRPC, or ``LEFT``. ``wrong``: what must not be; empty: nothing."""

    status: str
    wrong: str = ""


@cache
def methods() -> Mapping[str, MethodDescriptor]:
    """Of every RPC that callers from outside reach, by its name: from the protos."""
    return {
        f"{service.name}.{method.name}": method
        for service in attack_table.services()
        for method in service.methods
        if attack_table.is_public(service, method)
    }


def method_of(rpc: str) -> MethodDescriptor:
    return methods()[rpc]


async def make(
    channel: grpc.aio.Channel,
    case: Case,
    credentials: Credentials = no_credentials,
    secrets: Sequence[bytes] = (),
    give_up_s: float = GIVE_UP_S,
) -> Ended:
    """Calls, and reads all that is answered. ``secrets``: what no answer to this caller may hold."""
    method = method_of(case.rpc)
    kind, told = method.input_type, _Told(method.output_type, secrets)
    sound = all(parsed(kind, payload) is not None for payload in case.payloads)
    call = _start(channel, case, credentials)
    try:
        async with asyncio.timeout(give_up_s if case.leaves_after_s is None else case.leaves_after_s):
            with _without_its_error():
                if method.server_streaming:
                    async for response in call:
                        told.note(response)
                else:
                    told.note(await call)
            status, details = (await call.code()).name, await call.details() or ""
    except TimeoutError:
        call.cancel()
        return Ended(LEFT) if case.leaves_after_s is not None else Ended("none", "it did not end")
    told.note(details.encode(errors="replace"), message=False)
    if told.wrong:
        return Ended(status, told.wrong)
    if method.client_streaming and details == _CLIENTS_OWN_WORDS:
        return Ended(BROKE_OFF)
    damaged = status == "DATA_LOSS" and case.rpc in _MAY_BE_DAMAGED
    if status not in MAY_END and not damaged and not (status in BROKEN and not sound):
        return Ended(status, f"it ended {status}: {details[:1000]}")
    return Ended(status)


class _Told:
    """What responses say that they must not."""

    def __init__(self, kind: Descriptor, secrets: Sequence[bytes]) -> None:
        self._kind, self._secrets, self.wrong = kind, secrets, ""

    def note(self, response: bytes, message: bool = True) -> None:
        if any(secret in response for secret in self._secrets):
            self.wrong = "it was told what is another's"
        if message and "error_code" in self._kind.fields_by_name:
            answer: Any = parsed(self._kind, response)
            if answer.error_code in _WRONG_CODES:
                self.wrong = f"a part of it ended {answer.error_code}: {text_format.MessageToString(answer)}"


@contextlib.contextmanager
def _without_its_error() -> Iterator[None]:
    """A call's end is asked for afterwards; who makes it may be told to stop."""
    try:
        yield
    except grpc.aio.AioRpcError:
        pass
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise


def _start(channel: grpc.aio.Channel, case: Case, credentials: Credentials) -> Any:
    service, name = case.rpc.split(".")
    metadata = (("application", APPLICATIONS[service]), *credentials(), *case.metadata)
    path, method = f"/kvquilt.v1.{service}/{name}", method_of(case.rpc)

    async def requests() -> AsyncIterator[bytes]:
        for payload in case.payloads:
            yield payload

    kinds = {
        (False, False): channel.unary_unary,
        (False, True): channel.unary_stream,
        (True, False): channel.stream_unary,
        (True, True): channel.stream_stream,
    }
    start: Any = kinds[method.client_streaming, method.server_streaming](path)
    return start(requests() if method.client_streaming else case.payloads[0], metadata=metadata)


def _shown(kind: Descriptor, payload: bytes) -> str:
    message: Message | None = parsed(kind, payload)
    if message is None:
        return f"bytes that are no {kind.name}: {payload[: _SHOWN_CHARS // 2].hex()}"
    text = text_format.MessageToString(message)
    more = f"… {len(text)} characters" if len(text) > _SHOWN_CHARS else ""
    return f"{kind.name} of {len(payload)} bytes {{\n{text[:_SHOWN_CHARS]}{more}}}"
