"""JSON that carries a checksum over its own bytes: what manifests and pins are stored as.

{"xxh3_64":"<16 hex digits>","version":3,"manifest":{…}}     the checksum covers what follows it, to the closing brace
"""  # noqa: E501

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import xxhash

_FORM = re.compile(rb'\{"xxh3_64":"([0-9a-f]{16})",(.*)\}\n', re.DOTALL)


def seal(fields: Mapping[str, Any]) -> bytes:
    body = json.dumps(fields, separators=(",", ":")).encode()[1:-1]
    return b'{"xxh3_64":"' + checksum_of(body) + b'",' + body + b"}\n"


def unseal(data: bytes, unsealed_key: str = "") -> dict[str, Any]:
    """The fields that were sealed. ``unsealed_key``: where it comes first, the checksum covers its value
    only, as in the first version of manifests.

    Raises:
        ValueError: the bytes are not those that were written.
    """
    form = _FORM.fullmatch(data)
    if form is None:
        raise ValueError("it is not sealed JSON")
    checksum, body = form.groups()
    covered = body.removeprefix(f'"{unsealed_key}":'.encode()) if unsealed_key else body
    if checksum != checksum_of(covered):
        raise ValueError("it fails its checksum")
    fields: dict[str, Any] = json.loads(b"{" + body + b"}")
    return fields


def unseal_lines(data: bytes) -> Any:
    """Reads what archives hold, and the first form of pins: a line with the checksum, and one with the JSON.

    Raises:
        ValueError: the bytes are not those that were written.
    """
    checksum, _, body = data.partition(b"\n")
    body = body.removesuffix(b"\n")
    if checksum != checksum_of(body):
        raise ValueError("it fails its checksum")
    return json.loads(body)


def checksum_of(body: bytes) -> bytes:
    return f"{xxhash.xxh3_64_intdigest(body):016x}".encode()
