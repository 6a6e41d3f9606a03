"""Makes rows of Milvus of chunks, and back."""

from __future__ import annotations

import base64
import dataclasses
import json
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from services.retrieval.filters import OTHER_LANGUAGE, TERMS_FIELD, encode_terms
from services.retrieval.languages import is_english
from shared.errors import InvalidRequest
from shared.identity import digest
from shared.search import Block, IndexedChunk, IndexedDocument, SearchHit

# Milvus' limit for a text field, in UTF-8 bytes.
MAX_FIELD_BYTES = 65_535
MAX_QUERIES = 256
# What Milvus answers to one query.
MAX_ROWS_PER_DOCUMENT = 16_384
KEY_LEN = 40
_CHUNKS_READ = 32  # to tell the language
OUTPUT_FIELDS = ["row_id", "content", "payload"]


def document_key(document_id: str) -> str:
    """Stands for the document in expressions, whatever characters its id has."""
    return _digest(document_id)


def revision_of(document: IndexedDocument) -> str:
    """Equal for equal content; tells the rows of one version of a document from those of another."""
    chunks = [
        [c.chunk_id, c.text, _pack_ids(c.token_ids), c.heading, c.char_start, c.char_end, *_blocks(c)]
        for c in document.chunks  # a chunk's id says what it stands behind
    ]
    told = [document.title, document.model_fingerprint, sorted(document.metadata.items()), chunks]
    prompt = [document.prefix_hash, document.template_hash] if document.template_hash else []
    kv_context = [document.kv_context] if document.kv_context else []
    return _digest(json.dumps([*told, *prompt, *kv_context]))


def searchable_text(document: IndexedDocument, chunk: IndexedChunk) -> str:
    """Returns what is embedded and indexed: a chunk rarely names its own subject, so title and headings go in
    front."""
    return _header(document, chunk) + chunk.text


def text_of(hit: SearchHit) -> str:
    """As ``searchable_text``."""
    return _header_of(hit.title, hit.chunk.heading) + hit.chunk.text


def in_other_language(document: IndexedDocument) -> bool:
    """Whether it seems not to be English."""
    return is_english("\n".join(chunk.text for chunk in document.chunks[:_CHUNKS_READ])) is False


def rows_of(tenant: str, collection: str, document: IndexedDocument) -> list[dict[str, Any]]:
    """One row per chunk, without vectors.

    Raises:
        InvalidRequest: names the chunk and the limit it exceeds, or the metadata key that cannot be used.
    """
    if len(document.chunks) > MAX_ROWS_PER_DOCUMENT:
        raise InvalidRequest(
            f"chunks: {len(document.chunks)} of one document, more than {MAX_ROWS_PER_DOCUMENT}; split "
            "the document"
        )
    terms = encode_terms(document.document_id, document.title, document.metadata)
    if in_other_language(document):
        terms[OTHER_LANGUAGE] = "1"
    _check_bytes("metadata, title and document_id", json.dumps(terms))
    shared = {
        "document_key": document_key(document.document_id),
        "revision": revision_of(document),
        TERMS_FIELD: terms,
    }
    rows = []
    for i, chunk in enumerate(document.chunks):
        row: dict[str, Any] = {
            "row_id": _digest(tenant, collection, document.document_id, str(i)),
            "content": searchable_text(document, chunk),
            "payload": _payload(document, chunk),
            **shared,
        }
        _check_bytes(f"chunks[{i}].text", row["content"])
        _check_bytes(f"chunks[{i}].token_ids with metadata", row["payload"])
        rows.append(row)
    return rows


def hit_of(row: Mapping[str, Any], score: float) -> SearchHit:
    """Inverse of ``rows_of``."""
    stored = json.loads(row["payload"])
    chunk = IndexedChunk(
        chunk_id=stored["chunk_id"],
        text=row["content"][stored["text_start"] :],
        token_ids=_unpack_ids(stored["token_ids"]),
        heading=stored["heading"],
        char_start=stored["char_start"],
        char_end=stored["char_end"],
        parent_id=stored.get("parent_id", ""),
        place=stored.get("place", 0),
        block=Block(*stored["block"]) if stored.get("block") else None,
    )
    return SearchHit(
        chunk=chunk,
        document_id=stored["document_id"],
        title=stored["title"],
        model_fingerprint=stored["model_fingerprint"],
        score=score,
        metadata=stored["metadata"],
        prefix_hash=stored.get("prefix_hash", ""),
        template_hash=stored.get("template_hash", ""),
        kv_context=stored.get("kv_context", ""),
    )


def document_id_of(row: Mapping[str, Any]) -> str:
    return str(json.loads(row["payload"])["document_id"])


def _payload(document: IndexedDocument, chunk: IndexedChunk) -> str:
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
            "text_start": len(_header(document, chunk)),
            "token_ids": _pack_ids(chunk.token_ids),
            "heading": chunk.heading,
            "char_start": chunk.char_start,
            "char_end": chunk.char_end,
            "parent_id": chunk.parent_id,
            "place": chunk.place,
            "block": dataclasses.astuple(chunk.block) if chunk.block else None,
        },
        ensure_ascii=False,
    )


def _blocks(chunk: IndexedChunk) -> list[Any]:
    """Of a document with blocks: where the chunk is. Others have the revision that versions before gave
    them."""
    return [chunk.place, dataclasses.astuple(chunk.block)] if chunk.block else []


def _header(document: IndexedDocument, chunk: IndexedChunk) -> str:
    return _header_of(document.title, chunk.heading)


def _header_of(title: str, heading: str) -> str:
    lines = [line for line in (title, heading) if line]
    return "\n".join(lines) + "\n\n" if lines else ""


def _pack_ids(token_ids: tuple[int, ...]) -> str:
    return base64.b64encode(array("I", token_ids).tobytes()).decode("ascii")


def _unpack_ids(packed: str) -> tuple[int, ...]:
    ids = array("I")
    ids.frombytes(base64.b64decode(packed))
    return tuple(ids)


def _check_bytes(field: str, text: str) -> None:
    size = len(text.encode())
    if size > MAX_FIELD_BYTES:
        raise InvalidRequest(
            f"{field}: {size} bytes exceed the index's limit of {MAX_FIELD_BYTES}; use smaller chunks "
            "or less metadata"
        )


def _digest(*parts: str) -> str:
    return digest(*(part.encode("utf-8", "surrogatepass") for part in parts), size=KEY_LEN // 2)


def check_queries(queries: Sequence[str]) -> None:
    """
    Raises:
        InvalidRequest: there are too many or none, or one of them cannot be searched for.
    """
    if not 1 <= len(queries) <= MAX_QUERIES:
        raise InvalidRequest(f"queries: 1 to {MAX_QUERIES}, got {len(queries)}")
    for i, query in enumerate(queries):
        if not query.strip():
            raise InvalidRequest(f"queries[{i}]: is empty")
        if len(query.encode()) > MAX_FIELD_BYTES:
            raise InvalidRequest(f"queries[{i}]: longer than {MAX_FIELD_BYTES} bytes")
