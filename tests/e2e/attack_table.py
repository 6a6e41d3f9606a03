"""Bad requests for every RPC that callers reach, made from the protos themselves, each with what it gets.

`python -m tests.e2e.attack_table > docs/attacks.md` writes the table down.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from cluster.compose import SERVICERS
from shared.clients import generation, ingest, kv_store, rag, retrieval, selection
from shared.limits import DEFAULT_LIMITS, MESSAGES, limits_of
from shared.principals.principal import Role
from shared.principals.roles import ROLES

APPLICATIONS = {
    "KvStore": kv_store.APPLICATION,
    "Retrieval": retrieval.APPLICATION,
    "Generation": generation.APPLICATION,
    "Selection": selection.APPLICATION,
    "Ingest": ingest.APPLICATION,
    "Rag": rag.APPLICATION,
    "Admin": rag.APPLICATION,
}
BROKEN = frozenset({"UNKNOWN", "INTERNAL", "INVALID_ARGUMENT"})
"""Bytes that are no message, refused by the gRPC server of Ray Serve's proxy, before services hear of it."""
INVALID = frozenset({"INVALID_ARGUMENT"})
NOT_THERE = frozenset({"UNIMPLEMENTED"})
CALLED = "a call from outside"
NEVER = frozenset({"INTERNAL", "UNKNOWN", "UNAVAILABLE", "UNIMPLEMENTED", "DATA_LOSS"})
TYPED = frozenset(
    {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"}
)
HEAD = """# Attacks and bad requests

What each RPC that callers reach answers to requests that are wrong. Tests send all of them to a running
system, and much else that once stopped or filled a service (`tests/e2e/test_attacks.py`); afterwards all
services must be the same processes, healthy, and of the size that they had. This page is generated:
`python -m tests.e2e.attack_table > docs/attacks.md`.

**g**: bytes that are no message of the RPC fail in the gRPC server of Ray Serve's proxy, before a service
hears of the call and before anybody is asked for a key. One message gets UNKNOWN (`Unexpected … DecodeError`,
with the name of its type) from that server, for which Serve has no setting; in a stream it gets UNKNOWN,
INTERNAL or INVALID_ARGUMENT.
**I**: INVALID_ARGUMENT, which names the field.
**t**: a typed answer, which depends on what is there (OK, NOT_FOUND, FAILED_PRECONDITION …), and never an
internal error. Nothing: the request has no such field. RPCs that services keep to themselves do not exist for
callers: they get UNIMPLEMENTED, whatever they send.

"""
_STRINGS = (FieldDescriptor.TYPE_STRING,)
_FLOATS = (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE)
_NUMBERS = (FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_UINT64)
_LEVELS = 120
Path = tuple[FieldDescriptor, ...]


@dataclass(frozen=True, slots=True)
class Attack:
    """``gets``: the statuses that may answer."""

    service: ServiceDescriptor
    method: MethodDescriptor
    kind: str
    payload: bytes
    gets: frozenset[str]

    @property
    def rpc(self) -> str:
        return f"{self.service.name}.{self.method.name}"

    @property
    def application(self) -> str:
        return APPLICATIONS[self.service.name]


def services() -> Iterator[ServiceDescriptor]:
    """Those of all applications; of some RPCs callers from outside hear nothing."""
    for module, names in SERVICERS.items():
        file = importlib.import_module(f"protos.kvquilt.v1.{module}_pb2").DESCRIPTOR
        yield from (file.services_by_name[name] for name in names)


def attacks() -> list[Attack]:
    return [attack for service in services() for method in service.methods for attack in _of(service, method)]


def _of(service: ServiceDescriptor, method: MethodDescriptor) -> Iterator[Attack]:
    if not is_public(service, method):
        yield Attack(service, method, CALLED, b"", NOT_THERE)
        return
    for kind, (make, gets) in KINDS.items():
        if (payload := make(method.input_type)) is not None:
            yield Attack(service, method, kind, payload, gets)


def is_public(service: ServiceDescriptor, method: MethodDescriptor) -> bool:
    return service.name != "Selection" and ROLES[f"{service.name}.{method.name}"] is not Role.INTERNAL


def _set(request: Message, path: Path, value: object) -> None:
    for field in path[:-1]:
        inner = getattr(request, field.name)
        request = inner.add() if field.is_repeated else inner
    last = path[-1]
    if last.is_repeated:
        getattr(request, last.name).extend(value if isinstance(value, list) else [value])
    else:
        setattr(request, last.name, value)


@cache
def _path(message: Descriptor, wanted: Callable[[FieldDescriptor], bool], levels: int = 4) -> Path | None:
    """To the nearest field that is wanted, outside ``meta`` unless that is asked for."""
    for field in message.fields:
        if wanted(field):
            return (field,)
    if levels:
        for field in message.fields:
            inner = field.message_type
            if inner is None or inner.GetOptions().map_entry:
                continue
            if (found := _path(inner, wanted, levels - 1)) is not None:
                return (field, *found)
    return None


def _with(value: object, wanted: Callable[[FieldDescriptor], bool]) -> Callable[[Descriptor], bytes | None]:
    def make(kind: Descriptor) -> bytes | None:
        path = _path(kind, wanted)
        if path is None:
            return None
        request = GetMessageClass(kind)()
        _set(request, path, value)
        return request.SerializeToString()

    return make


def _named(name: str) -> Callable[[FieldDescriptor], bool]:
    return lambda field: field.containing_type.name == "RequestMeta" and field.name == name


def _of_type(*types: int) -> Callable[[FieldDescriptor], bool]:
    def wanted(field: FieldDescriptor) -> bool:
        return field.type in types and field.containing_type.name != "RequestMeta"

    return wanted


def _too_long_a_list(kind: Descriptor) -> bytes | None:
    path = _path(kind, _listed)
    if path is None:
        return None
    request = GetMessageClass(kind)()
    most: int = getattr(DEFAULT_LIMITS, limits_of(path[-1])[0])
    _set(request, path, ["x"] * (most + 1))
    return request.SerializeToString()


def _listed(field: FieldDescriptor) -> bool:
    return field.is_repeated and field.type == FieldDescriptor.TYPE_STRING


def _too_large(kind: Descriptor) -> bytes | None:
    if kind.name in MESSAGES:
        return None
    return _with("x" * (DEFAULT_LIMITS.message_bytes + 1), _of_type(*_STRINGS))(kind)


def _nested(kind: Descriptor) -> bytes | None:
    path = _path(kind, lambda field: field.name == "context" and field.message_type is field.containing_type)
    if path is None:
        return None
    piece = b""
    for _ in range(_LEVELS):
        piece = _field(path[-1].number, piece)
    for field in reversed(path[:-1]):
        piece = _field(field.number, piece)
    return piece


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes((*parts, value))


def _largest_numbers(kind: Descriptor) -> bytes | None:
    request = GetMessageClass(kind)()
    fields = [field for field in kind.fields if field.type in _NUMBERS and not field.is_repeated]
    for field in fields:
        setattr(request, field.name, 2**32 - 1 if field.type == FieldDescriptor.TYPE_UINT32 else 2**64 - 1)
    return request.SerializeToString() if fields else None


KINDS: dict[str, tuple[Callable[[Descriptor], bytes | None], frozenset[str]]] = {
    "bytes that are no message": (lambda kind: b"\xff" * 64, BROKEN),
    "nested 120 deep": (_nested, BROKEN),
    "nothing": (lambda kind: b"", TYPED),
    "unknown fields only": (lambda kind: _field(7777, b"x" * 1000), TYPED),
    "a path for a tenant": (_with("../../etc", _named("tenant")), INVALID),
    "a line break in the request id": (_with("a\nERROR forged", _named("request_id")), INVALID),
    "a deadline of 49 days": (_with(2**32 - 1, _named("deadline_ms")), INVALID),
    "a deadline of 1 ms": (_with(1, _named("deadline_ms")), TYPED),
    "NUL in a text": (_with("a\0b", _of_type(*_STRINGS)), INVALID),
    "a path in a text": (_with("../../../etc/passwd", _of_type(*_STRINGS)), TYPED),
    "a filter's syntax in a text": (_with("x' or 1 == 1 or '' == '", _of_type(*_STRINGS)), TYPED),
    "a text of 2 MB": (_with("x" * (2 << 20), _of_type(*_STRINGS)), INVALID),
    "one byte more than a message may have": (_too_large, INVALID),
    "one entry more than a list may have": (_too_long_a_list, INVALID),
    "an unknown number of an enum": (_with(99, _of_type(FieldDescriptor.TYPE_ENUM)), INVALID),
    "NaN": (_with(float("nan"), _of_type(*_FLOATS)), INVALID),
    "infinity": (_with(float("inf"), _of_type(*_FLOATS)), INVALID),
    "the largest numbers": (_largest_numbers, TYPED),
}
"""What is made of a request, and what it gets."""


def page() -> str:
    table = attacks()
    letters = {BROKEN: "g", INVALID: "I", TYPED: "t", NOT_THERE: ""}
    cells = {(attack.rpc, attack.kind): letters[attack.gets] for attack in table}
    numbered = [f"{number}. {kind}" for number, kind in enumerate(KINDS, 1)]
    rows = [["RPC", *map(str, range(1, len(KINDS) + 1))], ["---"] * (len(KINDS) + 1)]
    rows += [
        [rpc, *(cells.get((rpc, kind), "") for kind in KINDS)]
        for rpc in dict.fromkeys(attack.rpc for attack in table if attack.kind != CALLED)
    ]
    kept = [attack.rpc for attack in table if attack.kind == CALLED]
    lines = [
        *numbered,
        "",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
        f"Kept: {', '.join(kept)}.",
    ]
    return HEAD + "\n".join([*lines, "", f"{len(table)} requests.", ""])


if __name__ == "__main__":
    print(page(), end="")
