"""A manifest as it is stored: sealed JSON, and the version of its form.

    {"xxh3_64":"<16 hex digits>","version":6,"manifest":{…}}     the checksum covers what follows it, to the closing brace
    {"xxh3_64":"<16 hex digits>","version":5,"manifest":{…}}     no kv_scope; still written where KV is not shared
    {"xxh3_64":"<16 hex digits>","version":4,"manifest":{…}}     no readers: everybody's; still written where none are
    {"xxh3_64":"<16 hex digits>","version":3,"manifest":{…}}     nor a chunk behind another, no kv_context; still written where none is
    {"xxh3_64":"<16 hex digits>","version":2,"manifest":{…}}     nor auxiliary KV
    {"xxh3_64":"<16 hex digits>","manifest":{…}}                 version 1: the checksum covers the inner object

``"stored_by":"key/anna"`` comes before ``"manifest"`` where it is known who stored the document; earlier versions do not look at it.

Where the installation has a secret, `"mac"` follows the checksum (``sealed_json``). One checksum covers everything, so there is none per chunk: a chunk's id is a hash of its token ids,
``source_hash`` covers the source, and the KV has checksums of its own, layer by layer (it may be encoded anew
while the manifest stays).
"""  # noqa: E501

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from services.kv_store.documents.manifest_names import REMOVED, name_of
from services.kv_store.documents.sealed_json import seal, unseal
from shared.errors import InvalidRequest, NewerFormat
from shared.kv_format import SealKeys
from shared.kv_types import Manifest, ManifestChunk
from shared.readers import SectionReaders

VERSION = 6
_WITHOUT_SCOPE, _WITHOUT_READERS, _WITHOUT_CHAINS, _WITHOUT_AUXILIARY = 5, 4, 3, 2


def encode(manifest: Manifest, keys: SealKeys | None = None, stored_by: str = "") -> bytes:
    """``keys``: it is sealed with the current one. ``stored_by``: the principal who did; empty: not known."""
    version, fields = _fields(manifest)
    known = {"stored_by": stored_by} if stored_by else {}
    return seal({"version": version, **known, "manifest": fields}, keys)


def _fields(manifest: Manifest) -> tuple[int, dict[str, Any]]:
    """With the earliest version that reads them."""
    fields, version = asdict(manifest), VERSION
    if manifest.kv_scope:
        return version, fields
    del fields["kv_scope"]
    version = _WITHOUT_SCOPE
    if manifest.readers or manifest.sections:  # which an earlier version would show to everybody
        return version, fields
    del fields["readers"], fields["sections"]
    version = _WITHOUT_READERS
    if not manifest.kv_context:
        del fields["kv_context"]
    if not manifest.kv_context and not any(chunk.parent_id for chunk in manifest.chunks):
        version = _WITHOUT_CHAINS
        for chunk in fields["chunks"]:
            del chunk["parent_id"], chunk["header_ids"]
        if manifest == manifest.without_auxiliary():
            version = _WITHOUT_AUXILIARY
            del fields["auxiliary"]
            for chunk in fields["chunks"]:
                del chunk["auxiliary_id"]
    return version, fields


def decode(data: bytes, keys: SealKeys | None = None, name: str = "") -> Manifest:
    """Raises like ``decode_stored``."""
    return decode_stored(data, keys, name)[0]


def decode_stored(data: bytes, keys: SealKeys | None = None, name: str = "") -> tuple[Manifest, str]:
    """With the principal who stored it; empty: not known. ``keys``: one of them must have sealed it; None:
    whoever did is believed. ``name``: of the file that it was read as; empty: whose it is is not looked at.

    Raises:
        ValueError: the bytes are not those that were written under this name. NewerFormat: a later version of
        this program wrote them, or they are sealed with a key that is not here.
    """
    outer = unseal(data, unsealed_key="manifest", keys=keys)
    if int(outer.get("version", 1)) > VERSION:
        raise NewerFormat("a later version of kvquilt stored this document; update kvquilt here")
    try:
        fields: dict[str, Any] = outer["manifest"]
        chunks = tuple(ManifestChunk(**_with_tuples(c)) for c in fields["chunks"])
        sections = tuple(SectionReaders(**_with_tuples(one)) for one in fields.get("sections", ()))
        manifest = Manifest(**_with_tuples({**fields, "chunks": chunks, "sections": sections}))
    except (KeyError, TypeError) as error:
        raise ValueError(f"another version of this program wrote it: {error}") from None
    if name and not name.startswith(REMOVED):
        check_whose(manifest, name)
    return manifest, str(outer.get("stored_by", ""))


def check_whose(manifest: Manifest, name: str) -> None:
    """
    Raises:
        ValueError: it is not the document that this file is called after: whole, and in the wrong place.
    """
    try:
        own_name = name_of((manifest.tenant, manifest.collection, manifest.document_id))
    except InvalidRequest as error:
        raise ValueError(error.detail) from None
    if name != own_name:
        raise ValueError("it is another document's")


def is_damaged(name: str, data: bytes, keys: SealKeys | None = None) -> bool:
    """Whether ``data`` is not what was stored as ``name``. One that a later version wrote is not, for all
    that we can tell. ``keys``: see ``decode_stored``."""
    try:
        decode(data, keys, name)
    except ValueError:
        return True
    except NewerFormat:
        pass
    return False


def _with_tuples(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
