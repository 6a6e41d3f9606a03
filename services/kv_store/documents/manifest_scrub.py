"""Looks whether both copies of every manifest are whole, and restores one by the other."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Protocol

from services.kv_store.documents.manifest_files import ManifestFiles
from services.kv_store.documents.manifest_json import is_damaged
from shared.kv_reports import DamagedRecord

_DOCUMENT_ID = re.compile(rb'"document_id":("(?:[^"\\]|\\.)*")')


class SecondCopies(Protocol):
    """The other copies of the manifests: the object store's, or those beside the files."""

    def second(self, name: str) -> bytes | None: ...
    def put_second(self, name: str, data: bytes) -> None: ...
    def heal(self, name: str) -> bool: ...


def look_at_both(
    name: str, files: ManifestFiles, seconds: SecondCopies, repair: bool
) -> Iterator[DamagedRecord]:
    """The damage to the copies of one manifest. Raises like both."""
    own, second = files.read(name), seconds.second(name)
    own_bad = own is None or is_damaged(name, own, files.keys)
    second_bad = second is not None and is_damaged(name, second, files.keys)
    if own_bad:
        held = own if own is not None else files.read_aside(name) if files.is_aside(name) else b""
        reason = "its manifest fails its checksum" if held else "its manifest is gone"
        yield DamagedRecord(called(name, held), reason, restored=repair and seconds.heal(name))
    elif second_bad and own is not None:
        if repair:
            seconds.put_second(name, own)
        yield DamagedRecord(called(name, own), "the second copy of its manifest fails its checksum", repair)


def damage_detail(num_damaged: int) -> str:
    return (
        f"the manifests of {num_damaged} documents are damaged, and what they refer to is not known: no "
        "garbage is collected, and no KV of removed documents goes; `kvquilt store verify` names them: "
        "ingest or delete them again"
    )


def foreign_detail(which: str) -> str:
    return (
        f"{which} stored by a later version of kvquilt or with a secret that is not here, and cannot be "
        "read: update kvquilt, or add that secret to auth.secret_file again, behind the current one"
    )


def called(name: str, data: bytes) -> str:
    """Tenant, collection and document of a manifest, as far as damaged bytes say which it is; else the name
    of its file."""
    _, tenant, collection, file = name.split("/")
    found = _DOCUMENT_ID.search(data)
    try:
        document = str(json.loads(found[1])) if found else ""
    except ValueError:
        document = ""
    return f"{tenant}/{collection}/{document or file}"
