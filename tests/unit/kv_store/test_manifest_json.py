from __future__ import annotations

import json
from dataclasses import replace

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from services.kv_store.documents.manifest_json import VERSION, decode, decode_stored, encode
from shared.errors import NewerFormat
from shared.kv_format import SealKey, SealKeys
from shared.kv_types import Manifest, ManifestChunk
from tests.kv_chunks import chunk_id_of

CHUNK = ManifestChunk(chunk_id_of(0), (1, 2, 3), 0, 9, "päge }\n", "Part > Chapter")
DOCUMENT = Manifest(
    "default", "books", "ü.pdf", "Title", "hash", "model", (5,), (CHUNK,), {"author": "N. N."}, 1.5
)
ENCODED = replace(DOCUMENT, auxiliary="model", chunks=(replace(CHUNK, auxiliary_id=chunk_id_of(1)),))


def sealed(body: str) -> bytes:
    """With a right checksum, whoever wrote it."""
    return f'{{"xxh3_64":"{xxhash.xxh3_64_hexdigest(body.encode())}",{body}}}\n'.encode()


@given(st.text(), st.text(), st.lists(st.tuples(st.text(), st.lists(st.integers(0, 2**32 - 1)))))
def test_a_manifest_comes_back_as_it_was(
    document_id: str, title: str, chunks: list[tuple[str, list[int]]]
) -> None:
    parts = tuple(
        ManifestChunk(chunk_id_of(i), tuple(ids), text=text) for i, (text, ids) in enumerate(chunks)
    )
    manifest = Manifest("t", "c", document_id, title, chunks=parts)
    assert decode(encode(manifest)) == manifest
    encoded = replace(
        manifest, auxiliary="a", chunks=tuple(replace(c, auxiliary_id=chunk_id_of(9)) for c in parts)
    )
    assert decode(encode(encoded)) == encoded


def test_it_is_json_that_says_its_version() -> None:
    (first, *others) = ENCODED.chunks
    chained = replace(ENCODED, chunks=(replace(first, parent_id="b" * 40, header_ids=(3,)), *others))
    assert json.loads(encode(chained))["version"] == 4
    assert json.loads(encode(chained))["manifest"]["document_id"] == "ü.pdf"
    assert decode(encode(chained)) == chained
    assert "kv_context" not in str(json.loads(encode(chained)))
    under = replace(DOCUMENT, kv_context="header")  # though it has neither title nor headings
    assert json.loads(encode(under))["version"] == 4
    assert decode(encode(under)) == under
    read_by_some = replace(DOCUMENT, readers=("hr",))
    assert json.loads(encode(read_by_some))["version"] == 5
    assert decode(encode(read_by_some)) == read_by_some
    shared = replace(DOCUMENT, kv_scope="finance")
    assert json.loads(encode(shared))["version"] == VERSION == 6
    assert decode(encode(shared)) == shared


@pytest.mark.parametrize(
    "form", [DOCUMENT, ENCODED, replace(DOCUMENT, readers=("hr",)), replace(DOCUMENT, kv_scope="finance")]
)
def test_every_form_is_sealed(form: Manifest) -> None:
    keys = SealKeys([SealKey(b"k" * 32)], required=True)
    assert decode(encode(form, keys), keys) == form


def test_without_chains_or_auxiliary_kv_an_older_version_can_read_it() -> None:
    written = json.loads(encode(ENCODED))
    assert written["version"] == 3
    assert "parent_id" not in str(written)
    assert "header_ids" not in str(written)
    assert "kv_context" not in str(written)
    assert "readers" not in str(written)
    written = json.loads(encode(DOCUMENT))
    assert written["version"] == 2
    assert "auxiliary" not in str(written)


def test_who_stored_it_is_beside_it_where_an_earlier_version_does_not_look() -> None:
    for document in (DOCUMENT, ENCODED, replace(DOCUMENT, readers=("hr",))):
        data = encode(document, stored_by="key/anna")
        assert decode_stored(data) == (document, "key/anna")
        written, before = json.loads(data), json.loads(encode(document))
        del written["stored_by"]
        assert (written["version"], written["manifest"]) == (before["version"], before["manifest"])
        assert decode_stored(encode(document)) == (document, "")
        assert "stored_by" not in before


def test_every_flipped_bit_and_every_cut_is_noticed() -> None:
    data = encode(DOCUMENT)
    for at in range(len(data)):
        with pytest.raises(ValueError, match=r"checksum|not sealed JSON"):
            decode(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(ValueError, match=r"checksum|not sealed JSON"):
            decode(data[:at])


def test_version_1_is_still_read() -> None:
    inner = json.dumps(json.loads(encode(DOCUMENT))["manifest"], separators=(",", ":"))
    version_1 = f'{{"xxh3_64":"{xxhash.xxh3_64_hexdigest(inner.encode())}","manifest":{inner}}}\n'.encode()
    assert decode(version_1) == DOCUMENT


def test_a_later_version_is_refused_as_such() -> None:
    with pytest.raises(NewerFormat, match="update kvquilt"):
        decode(sealed('"version":7,"manifest":{"whatever":"it is"}'))


@pytest.mark.parametrize(
    "body", ['"version":2', '"version":2,"manifest":{"tenant":"t"}', '"version":2,"manifest":[]']
)
def test_fields_that_are_not_ours_are_damage(body: str) -> None:
    with pytest.raises(ValueError, match="another version"):
        decode(sealed(body))
