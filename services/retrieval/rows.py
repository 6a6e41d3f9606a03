"""Makes rows of Milvus of chunks, and back."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from services.retrieval.filters import TERMS_FIELD, readers_in, with_readers
from services.retrieval.languages import is_english
from shared.identity import digest
from shared.indexable import (
    OTHER_LANGUAGE,
    check_indexable,
    encode_terms,
    pack_ids,
    payload_of,
    searchable_text,
    unpack_ids,
)
from shared.search import Block, IndexedChunk, IndexedDocument, SearchHit

KEY_LEN = 40
_CHUNKS_READ = 32  # to tell the language
OUTPUT_FIELDS = ["row_id", "content", "payload", TERMS_FIELD]


def document_key(document_id: str) -> str:
    """Stands for the document in expressions, whatever characters its id has."""
    return _digest(document_id)


def revision_of(document: IndexedDocument) -> str:
    """Equal for equal content, whoever may read it; tells the rows of one version of a document from those of
    another."""
    chunks = [
        [c.chunk_id, c.text, pack_ids(c.token_ids), c.heading, c.char_start, c.char_end, *_blocks(c)]
        for c in document.chunks  # a chunk's id says what it stands behind
    ]
    told = [document.title, document.model_fingerprint, sorted(document.metadata.items()), chunks]
    prompt = [document.prefix_hash, document.template_hash] if document.template_hash else []
    kv_context = [document.kv_context] if document.kv_context else []
    return _digest(json.dumps([*told, *prompt, *kv_context]))


def in_other_language(document: IndexedDocument) -> bool:
    """Whether it seems not to be English."""
    return is_english("\n".join(chunk.text for chunk in document.chunks[:_CHUNKS_READ])) is False


def rows_of(tenant: str, collection: str, document: IndexedDocument) -> list[dict[str, Any]]:
    """One row per chunk, without vectors.

    Raises:
        InvalidRequest: names the chunk and the limit it exceeds, or the metadata key that cannot be used.
    """
    check_indexable(document)
    terms = encode_terms(document.document_id, document.title, document.metadata)
    if in_other_language(document):
        terms[OTHER_LANGUAGE] = "1"
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
            "payload": payload_of(document, chunk),
            **shared,
        }
        rows.append(with_readers(row, chunk.readers))
    return rows


def hit_of(row: Mapping[str, Any], score: float) -> SearchHit:
    """Inverse of ``rows_of``."""
    stored = json.loads(row["payload"])
    chunk = IndexedChunk(
        chunk_id=stored["chunk_id"],
        text=row["content"][stored["text_start"] :],
        token_ids=unpack_ids(stored["token_ids"]),
        heading=stored["heading"],
        char_start=stored["char_start"],
        char_end=stored["char_end"],
        parent_id=stored.get("parent_id", ""),
        place=stored.get("place", 0),
        block=Block(*stored["block"]) if stored.get("block") else None,
        readers=readers_in(row),
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


def ranked_hits(
    rows: Mapping[str, SearchHit],
    rankings: Sequence[Sequence[tuple[str, float]]],
    similarities: Sequence[Sequence[tuple[str, float]]],
) -> tuple[tuple[SearchHit, ...], ...]:
    """Those of ``rankings``, which are row ids with their scores, that are among ``rows``."""

    def hit(key: str, score: float, similar: dict[str, float]) -> SearchHit:
        least = min(similar.values(), default=None)
        return replace(rows[key], score=score, similarity=similar.get(key, least))

    return tuple(
        tuple(hit(key, score, dict(similar)) for key, score in ranking if key in rows)
        for ranking, similar in zip(rankings, similarities, strict=True)
    )


def document_id_of(row: Mapping[str, Any]) -> str:
    return str(json.loads(row["payload"])["document_id"])


def _blocks(chunk: IndexedChunk) -> list[Any]:
    """Of a document with blocks: where the chunk is. Others have the revision that versions before gave
    them."""
    return [chunk.place, dataclasses.astuple(chunk.block)] if chunk.block else []


def _digest(*parts: str) -> str:
    return digest(*(part.encode("utf-8", "surrogatepass") for part in parts), size=KEY_LEN // 2)
