"""JSON that carries a checksum over its own bytes: what manifests and pins are stored as.

{"xxh3_64":"<16 hex digits>","version":3,"manifest":{…}}                    the checksum covers what follows it, to the closing brace
{"xxh3_64":"<16 hex digits>","mac":"<key id>:<code>","version":3,…}          and so does the code, of what follows that (``shared.kv_format.sealing``)
"""  # noqa: E501

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import xxhash

from shared.kv_format import SealKeys

_MAC = re.compile(rb'"mac":"([0-9a-f]{16}):([0-9a-f]{64})",')
_FORM = re.compile(rb'\{"xxh3_64":"([0-9a-f]{16})",(.*)\}\n', re.DOTALL)


def seal(fields: Mapping[str, Any], keys: SealKeys | None = None) -> bytes:
    body = json.dumps(fields, separators=(",", ":")).encode()[1:-1]
    if keys is not None:
        key = keys.current
        body = f'"mac":"{key.id.hex()}:{key.record_code_of(body).hex()}",'.encode() + body
    return b'{"xxh3_64":"' + checksum_of(body) + b'",' + body + b"}\n"


def unseal(data: bytes, unsealed_key: str = "", keys: SealKeys | None = None) -> dict[str, Any]:
    """The fields that were sealed. ``unsealed_key``: where it comes first, the checksum covers its value
    only, as in the first version of manifests. ``keys`` None: whoever sealed it is believed.

    Raises:
        ValueError: the bytes are not those that were written, or of nobody who has one of ``keys``.
        NewerFormat: they are sealed with a key that is not here.
    """
    form = _FORM.fullmatch(data)
    if form is None:
        raise ValueError("it is not sealed JSON")
    checksum, body = form.groups()
    covered = body.removeprefix(f'"{unsealed_key}":'.encode()) if unsealed_key else body
    if checksum != checksum_of(covered):
        raise ValueError("it fails its checksum")
    mac = _MAC.match(body)
    if mac is not None:
        body = body[mac.end() :]
    if keys is not None and mac is not None:
        keys.check_record(bytes.fromhex(mac[1].decode()), bytes.fromhex(mac[2].decode()), body)
    elif keys is not None:
        keys.check_unsealed()
    fields: dict[str, Any] = json.loads(b"{" + body + b"}")
    return fields


def key_id_of(data: bytes) -> str:
    """Of the key that it is sealed with; empty: it has no MAC."""
    form = _FORM.fullmatch(data)
    mac = _MAC.match(form[2]) if form is not None else None
    return mac[1].decode() if mac is not None else ""


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
