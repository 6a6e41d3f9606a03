"""Makes of a document what its rows in the index hold as text, and says whether that fits: before its KV is
computed, and again where it is indexed."""

from __future__ import annotations

import base64
import dataclasses
import json
from array import array
from collections.abc import Mapping

from shared.errors import InvalidRequest
from shared.readers import Readers
from shared.search import IndexedChunk, IndexedDocument, SearchHit, check_metadata

MAX_FIELD_BYTES = 65_535
"""Milvus' limit for a text field, in UTF-8 bytes."""
MAX_ROWS_PER_DOCUMENT = 16_384
"""As many as Milvus answers to one query."""
OTHER_LANGUAGE = "_other_language"  # no key of a filter: those are hex digits
READERS = "_readers"


def check_indexable(document: IndexedDocument) -> None:
    """
    Raises:
        InvalidRequest: names the chunk and the limit it exceeds, or the metadata key that cannot be used.
    """
    if len(document.chunks) > MAX_ROWS_PER_DOCUMENT:
        raise InvalidRequest(
            f"chunks: {len(document.chunks)} of one document, more than {MAX_ROWS_PER_DOCUMENT}; split "
            "the document"
        )
    terms = encode_terms(document.document_id, document.title, document.metadata)
    readers = max((chunk.readers for chunk in document.chunks), key=_num_chars, default=())
    _check_bytes(
        "metadata, title and document_id" + (" with readers" if readers else ""),
        json.dumps(terms | {OTHER_LANGUAGE: "1", READERS: list(map(term_value, readers))}),
    )
    for i, chunk in enumerate(document.chunks):
        _check_bytes(f"chunks[{i}].text", searchable_text(document, chunk))
        _check_bytes(f"chunks[{i}].token_ids with metadata", payload_of(document, chunk))


def encode_terms(document_id: str, title: str, metadata: Mapping[str, str]) -> dict[str, str]:
    """Encodes the terms that can be filtered by: keys and values are hex digits of their UTF-8 bytes.

    Raises:
        InvalidRequest: a metadata key is empty or has the name of a built-in field.
    """
    check_metadata(metadata)
    values = {**metadata, "document_id": document_id, "title": title}
    return {term_key(key): term_value(value) for key, value in values.items()}


def term_key(name: str) -> str:
    return "k" + name.encode("utf-8", "surrogatepass").hex()


def term_value(value: str) -> str:
    # The letter in front keeps an empty value a value.
    return "v" + value.encode("utf-8", "surrogatepass").hex()


def value_of_term(term: str) -> str:
    """Inverse of ``term_value``."""
    return bytes.fromhex(term[1:]).decode("utf-8", "surrogatepass")


def searchable_text(document: IndexedDocument, chunk: IndexedChunk) -> str:
    """Returns what is embedded and indexed: a chunk rarely names its own subject, so title and headings go in
    front."""
    return _header(document.title, chunk.heading) + chunk.text


def text_of(hit: SearchHit) -> str:
    """As ``searchable_text``."""
    return _header(hit.title, hit.chunk.heading) + hit.chunk.text


def payload_of(document: IndexedDocument, chunk: IndexedChunk) -> str:
    """Returns the fields that a search tells of the chunk beside its text."""
    return json.dumps(
        {
            "chunk_id": chunk.chunk_id,
            "document_id": document.document_id,
            "title": document.title,
            "model_fingerprint": document.model_fingerprint,
            "prefix_hash": document.prefix_hash,
            "template_hash": document.template_hash,
            "kv_context": document.kv_context,
            "metadata": document.metadata,
            "text_start": len(_header(document.title, chunk.heading)),
            "token_ids": pack_ids(chunk.token_ids),
            "heading": chunk.heading,
            "char_start": chunk.char_start,
            "char_end": chunk.char_end,
            "parent_id": chunk.parent_id,
            "place": chunk.place,
            "block": dataclasses.astuple(chunk.block) if chunk.block else None,
        },
        ensure_ascii=False,
    )


def _num_chars(groups: Readers) -> int:
    return sum(map(len, groups))


def pack_ids(token_ids: tuple[int, ...]) -> str:
    return base64.b64encode(array("I", token_ids).tobytes()).decode("ascii")


def unpack_ids(packed: str) -> tuple[int, ...]:
    ids = array("I")
    ids.frombytes(base64.b64decode(packed))
    return tuple(ids)


def _header(title: str, heading: str) -> str:
    lines = [line for line in (title, heading) if line]
    return "\n".join(lines) + "\n\n" if lines else ""


def _check_bytes(field: str, text: str) -> None:
    size = len(text.encode())
    if size > MAX_FIELD_BYTES:
        raise InvalidRequest(
            f"{field}: {size} bytes exceed the index's limit of {MAX_FIELD_BYTES}; use smaller chunks "
            "or less metadata"
        )
