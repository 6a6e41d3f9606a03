"""A manifest as it is stored: JSON that carries a checksum over its own bytes, and the version of its form.

    {"xxh3_64":"<16 hex digits>","version":3,"manifest":{…}}     the checksum covers what follows it, to the closing brace
    {"xxh3_64":"<16 hex digits>","version":2,"manifest":{…}}     without auxiliary KV, and so still written where there is none
    {"xxh3_64":"<16 hex digits>","manifest":{…}}                 version 1: the checksum covers the inner object

One checksum covers everything, so there is none per chunk: a chunk's id is a hash of its token ids,
``source_hash`` covers the source, and the KV has checksums of its own, layer by layer (it may be encoded anew
while the manifest stays).
"""  # noqa: E501

from __future__ import annotations

import json
import re
from dataclasses import asdict
from typing import Any

import xxhash

from shared.errors import NewerFormat
from shared.kv_types import Manifest, ManifestChunk

VERSION = 3
_WITHOUT_AUXILIARY = 2
_FORM = re.compile(rb'\{"xxh3_64":"([0-9a-f]{16})",(.*)\}\n', re.DOTALL)
_VERSION_1 = b'"manifest":'


def encode(manifest: Manifest) -> bytes:
    fields, version = asdict(manifest), VERSION
    if manifest == manifest.without_auxiliary():
        version = _WITHOUT_AUXILIARY
        del fields["auxiliary"]
        for chunk in fields["chunks"]:
            del chunk["auxiliary_id"]
    body = f'"version":{version},"manifest":'.encode() + json.dumps(fields, separators=(",", ":")).encode()
    return b'{"xxh3_64":"' + _checksum(body) + b'",' + body + b"}\n"


def decode(data: bytes) -> Manifest:
    """
    Raises:
        ValueError: the bytes are not those that were written.
        NewerFormat: a later version of this program wrote them.
    """
    form = _FORM.fullmatch(data)
    if form is None:
        raise ValueError("it is not a manifest")
    checksum, body = form.groups()
    if checksum != _checksum(body.removeprefix(_VERSION_1)):
        raise ValueError("it fails its checksum")
    outer: dict[str, Any] = json.loads(b"{" + body + b"}")
    if int(outer.get("version", 1)) > VERSION:
        raise NewerFormat("a later version of kvquilt stored this document; update kvquilt here")
    try:
        fields: dict[str, Any] = outer["manifest"]
        chunks = tuple(ManifestChunk(**{**c, "token_ids": tuple(c["token_ids"])}) for c in fields["chunks"])
        return Manifest(**{**fields, "prefix_ids": tuple(fields["prefix_ids"]), "chunks": chunks})
    except (KeyError, TypeError) as error:
        raise ValueError(f"another version of this program wrote it: {error}") from None


def _checksum(body: bytes) -> bytes:
    return f"{xxhash.xxh3_64_intdigest(body):016x}".encode()
