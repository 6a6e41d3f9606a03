"""Lays out a collection in Milvus: its name, fields and indexes.

``kq_`` + hash of the tenant + ``_`` + the collection, escaped + ``_e`` + hash of the embedder + ``_g`` +
generation, unless that is 0: tenants are apart by name, and the vectors of two embedders are never in one
collection. Where a collection is there in several generations, the oldest is whole and is searched; a
younger one is being filled, to take its place when the older ones are dropped.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pymilvus import DataType, Function, FunctionType

from services.retrieval.embedder import EmbedderSettings
from services.retrieval.filters import TERMS_FIELD
from services.retrieval.milvus import CALL_S, Lexical, Milvus
from services.retrieval.rows import KEY_LEN
from shared.indexable import MAX_FIELD_BYTES

_ESCAPES = {"_": "__", "-": "_m", ".": "_d"}
_ORIGINALS = {code[1]: ch for ch, code in _ESCAPES.items()}
_EMBEDDER_MARK = "_e"  # no escape, so it ends the collection's part
_GENERATION_MARK = "_g"
_EMBEDDER_PROPERTY = "kvquilt.embedder"


@dataclass(frozen=True, slots=True)
class Places:
    """Milvus' names of one collection. ``own``: for the configured embedder, there or yet to be made;
    ``searched``: the one that is searched; empty: there is no such collection."""

    own: str
    searched: str

    @property
    def replacing(self) -> bool:
        """Whether another embedder's is searched, which the own one is to replace."""
        return self.searched not in ("", self.own)


def tenant_prefix(tenant: str) -> str:
    return f"kq_{hashlib.blake2b(tenant.encode(), digest_size=16).hexdigest()}_"


def milvus_name(tenant: str, collection: str, embedder: str, generation: int = 0) -> str:
    """Milvus allows letters, digits and underscores; our names also have '-' and '.'."""
    escaped = "".join(_ESCAPES.get(ch, ch) for ch in collection)
    ending = f"{_GENERATION_MARK}{generation}" if generation else ""
    return tenant_prefix(tenant) + escaped + _EMBEDDER_MARK + _embedder_hash(embedder) + ending


def is_ours(name: str) -> bool:
    """Whether ``milvus_name`` made it; a server may have others' collections."""
    return name.startswith("kq_") and _EMBEDDER_MARK in name


def oldest(names: Iterable[str]) -> list[str]:
    """One of each collection: the one that is searched."""
    found: dict[str, str] = {}
    for name in sorted(names, key=generation_in):
        found.setdefault(name[: name.rindex(_EMBEDDER_MARK)], name)
    return list(found.values())


def generation_in(name: str) -> int:
    """The generation's part of ``milvus_name``."""
    return int(name[name.rindex(_EMBEDDER_MARK) :].partition(_GENERATION_MARK)[2] or 0)


def is_of(name: str, embedder: str) -> bool:
    """Whether ``milvus_name`` made it for this embedder."""
    made_of = name[name.rindex(_EMBEDDER_MARK) + len(_EMBEDDER_MARK) :]
    return made_of.partition(_GENERATION_MARK)[0] == _embedder_hash(embedder)


def collection_in(name: str) -> str:
    """The collection's part of ``milvus_name``."""
    chars = iter(name[len(tenant_prefix("")) : name.rindex(_EMBEDDER_MARK)])
    return "".join(_ORIGINALS[next(chars)] if ch == "_" else ch for ch in chars)


def properties_of(settings: EmbedderSettings) -> dict[str, str]:
    """Of a collection: from what its embedder can be loaded again."""
    return {_EMBEDDER_PROPERTY: json.dumps(dataclasses.asdict(settings))}


def settings_in(properties: Mapping[str, str]) -> EmbedderSettings | None:
    """Inverse of ``properties_of``; None: an older version made the collection."""
    told = properties.get(_EMBEDDER_PROPERTY)
    return EmbedderSettings(**json.loads(told)) if told else None


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


def _embedder_hash(embedder: str) -> str:
    return hashlib.blake2b(embedder.encode(), digest_size=6).hexdigest()
