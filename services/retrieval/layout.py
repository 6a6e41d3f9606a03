"""Lays out a collection in Milvus: its name, fields and indexes.

``kq_`` + hash of the tenant + ``_`` + the collection, escaped + ``_e`` + hash of the embedder: tenants are
apart by name, and the vectors of two embedders are never in one collection.
"""

from __future__ import annotations

import hashlib
from typing import Any

from pymilvus import DataType, Function, FunctionType

from services.retrieval.filters import TERMS_FIELD
from services.retrieval.milvus import CALL_S, Lexical, Milvus
from services.retrieval.rows import KEY_LEN, MAX_FIELD_BYTES

_ESCAPES = {"_": "__", "-": "_m", ".": "_d"}
_ORIGINALS = {code[1]: ch for ch, code in _ESCAPES.items()}
_EMBEDDER_MARK = "_e"  # no escape, so it ends the collection's part


def tenant_prefix(tenant: str) -> str:
    return f"kq_{hashlib.blake2b(tenant.encode(), digest_size=16).hexdigest()}_"


def milvus_name(tenant: str, collection: str, embedder: str) -> str:
    """Milvus allows letters, digits and underscores; our names also have '-' and '.'."""
    escaped = "".join(_ESCAPES.get(ch, ch) for ch in collection)
    return (
        tenant_prefix(tenant)
        + escaped
        + _EMBEDDER_MARK
        + hashlib.blake2b(embedder.encode(), digest_size=6).hexdigest()
    )


def collection_in(name: str) -> str:
    """The collection's part of ``milvus_name``."""
    chars = iter(name[len(tenant_prefix("")) : name.rindex(_EMBEDDER_MARK)])
    return "".join(_ORIGINALS[next(chars)] if ch == "_" else ch for ch in chars)


def schema_of(milvus: Milvus, dim: int) -> Any:
    schema = milvus.client.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field("row_id", DataType.VARCHAR, is_primary=True, max_length=KEY_LEN)
    schema.add_field("document_key", DataType.VARCHAR, max_length=KEY_LEN)
    schema.add_field("revision", DataType.VARCHAR, max_length=KEY_LEN)
    schema.add_field(TERMS_FIELD, DataType.JSON)
    schema.add_field("payload", DataType.VARCHAR, max_length=MAX_FIELD_BYTES)
    analyzed = {"enable_analyzer": True} if milvus.lexical is Lexical.SERVER else {}
    schema.add_field("content", DataType.VARCHAR, max_length=MAX_FIELD_BYTES, **analyzed)
    schema.add_field("dense", DataType.FLOAT_VECTOR, dim=dim)
    if milvus.lexical is not Lexical.NONE:
        schema.add_field("sparse", DataType.SPARSE_FLOAT_VECTOR)
    if milvus.lexical is Lexical.SERVER:
        schema.add_function(
            Function(
                name="bm25",
                function_type=FunctionType.BM25,
                input_field_names=["content"],
                output_field_names=["sparse"],
            )
        )
    return schema


def create_missing_indexes(milvus: Milvus, name: str) -> None:
    """An exact scan beats a graph at the sizes the embedded Milvus is made for."""
    wanted: dict[str, dict[str, Any]] = {"dense": {"index_type": "FLAT", "metric_type": "COSINE"}}
    if not milvus.embedded:
        wanted["dense"] = {
            "index_type": "HNSW",
            "metric_type": "COSINE",
            "params": {"M": 16, "efConstruction": 200},
        }
    if milvus.lexical is not Lexical.NONE:
        metric = "BM25" if milvus.lexical is Lexical.SERVER else "IP"
        wanted["sparse"] = {"index_type": "SPARSE_INVERTED_INDEX", "metric_type": metric}
    for field, index in wanted.items():
        if not milvus.client.list_indexes(name, field):
            params = milvus.client.prepare_index_params()
            params.add_index(field, **index)
            # in sync it sleeps half a second
            milvus.client.create_index(name, params, sync=False, timeout=CALL_S)
