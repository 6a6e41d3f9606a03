from protos.kvquilt.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SearchMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SEARCH_MODE_UNSPECIFIED: _ClassVar[SearchMode]
    SEARCH_MODE_DENSE: _ClassVar[SearchMode]
    SEARCH_MODE_BM25: _ClassVar[SearchMode]
    SEARCH_MODE_HYBRID: _ClassVar[SearchMode]
SEARCH_MODE_UNSPECIFIED: SearchMode
SEARCH_MODE_DENSE: SearchMode
SEARCH_MODE_BM25: SearchMode
SEARCH_MODE_HYBRID: SearchMode

class Filter(_message.Message):
    __slots__ = ("field", "op", "values")
    class Op(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        OP_UNSPECIFIED: _ClassVar[Filter.Op]
        OP_EQ: _ClassVar[Filter.Op]
        OP_NE: _ClassVar[Filter.Op]
        OP_IN: _ClassVar[Filter.Op]
        OP_PREFIX: _ClassVar[Filter.Op]
    OP_UNSPECIFIED: Filter.Op
    OP_EQ: Filter.Op
    OP_NE: Filter.Op
    OP_IN: Filter.Op
    OP_PREFIX: Filter.Op
    FIELD_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    field: str
    op: Filter.Op
    values: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, field: _Optional[str] = ..., op: _Optional[_Union[Filter.Op, str]] = ..., values: _Optional[_Iterable[str]] = ...) -> None: ...

class SearchRequest(_message.Message):
    __slots__ = ("meta", "collection", "queries", "k", "mode", "filters")
    META_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    QUERIES_FIELD_NUMBER: _ClassVar[int]
    K_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    FILTERS_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    collection: str
    queries: _containers.RepeatedScalarFieldContainer[str]
    k: int
    mode: SearchMode
    filters: _containers.RepeatedCompositeFieldContainer[Filter]
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ..., collection: _Optional[str] = ..., queries: _Optional[_Iterable[str]] = ..., k: _Optional[int] = ..., mode: _Optional[_Union[SearchMode, str]] = ..., filters: _Optional[_Iterable[_Union[Filter, _Mapping]]] = ...) -> None: ...

class SearchHit(_message.Message):
    __slots__ = ("chunk_id", "document_id", "title", "text", "token_ids", "score", "heading", "char_start", "char_end", "metadata", "model_fingerprint", "similarity", "prefix_hash", "template_hash", "parent_id", "place", "block", "kv_context", "readers")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CHUNK_ID_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_ID_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    HEADING_FIELD_NUMBER: _ClassVar[int]
    CHAR_START_FIELD_NUMBER: _ClassVar[int]
    CHAR_END_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    SIMILARITY_FIELD_NUMBER: _ClassVar[int]
    PREFIX_HASH_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_HASH_FIELD_NUMBER: _ClassVar[int]
    PARENT_ID_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    KV_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    READERS_FIELD_NUMBER: _ClassVar[int]
    chunk_id: str
    document_id: str
    title: str
    text: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    score: float
    heading: str
    char_start: int
    char_end: int
    metadata: _containers.ScalarMap[str, str]
    model_fingerprint: str
    similarity: float
    prefix_hash: str
    template_hash: str
    parent_id: str
    place: int
    block: Block
    kv_context: str
    readers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, chunk_id: _Optional[str] = ..., document_id: _Optional[str] = ..., title: _Optional[str] = ..., text: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., score: _Optional[float] = ..., heading: _Optional[str] = ..., char_start: _Optional[int] = ..., char_end: _Optional[int] = ..., metadata: _Optional[_Mapping[str, str]] = ..., model_fingerprint: _Optional[str] = ..., similarity: _Optional[float] = ..., prefix_hash: _Optional[str] = ..., template_hash: _Optional[str] = ..., parent_id: _Optional[str] = ..., place: _Optional[int] = ..., block: _Optional[_Union[Block, _Mapping]] = ..., kv_context: _Optional[str] = ..., readers: _Optional[_Iterable[str]] = ...) -> None: ...

class Ranking(_message.Message):
    __slots__ = ("hits",)
    HITS_FIELD_NUMBER: _ClassVar[int]
    hits: _containers.RepeatedCompositeFieldContainer[SearchHit]
    def __init__(self, hits: _Optional[_Iterable[_Union[SearchHit, _Mapping]]] = ...) -> None: ...

class SearchResponse(_message.Message):
    __slots__ = ("rankings", "mode")
    RANKINGS_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    rankings: _containers.RepeatedCompositeFieldContainer[Ranking]
    mode: SearchMode
    def __init__(self, rankings: _Optional[_Iterable[_Union[Ranking, _Mapping]]] = ..., mode: _Optional[_Union[SearchMode, str]] = ...) -> None: ...

class EmbedRequest(_message.Message):
    __slots__ = ("meta", "texts", "queries")
    META_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    QUERIES_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    texts: _containers.RepeatedScalarFieldContainer[str]
    queries: bool
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ..., texts: _Optional[_Iterable[str]] = ..., queries: _Optional[bool] = ...) -> None: ...

class Vector(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, values: _Optional[_Iterable[float]] = ...) -> None: ...

class EmbedResponse(_message.Message):
    __slots__ = ("embedder", "vectors", "num_tokens")
    EMBEDDER_FIELD_NUMBER: _ClassVar[int]
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    embedder: str
    vectors: _containers.RepeatedCompositeFieldContainer[Vector]
    num_tokens: int
    def __init__(self, embedder: _Optional[str] = ..., vectors: _Optional[_Iterable[_Union[Vector, _Mapping]]] = ..., num_tokens: _Optional[int] = ...) -> None: ...

class IndexedChunk(_message.Message):
    __slots__ = ("chunk_id", "text", "token_ids", "heading", "char_start", "char_end", "parent_id", "place", "block", "readers")
    CHUNK_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    HEADING_FIELD_NUMBER: _ClassVar[int]
    CHAR_START_FIELD_NUMBER: _ClassVar[int]
    CHAR_END_FIELD_NUMBER: _ClassVar[int]
    PARENT_ID_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    READERS_FIELD_NUMBER: _ClassVar[int]
    chunk_id: str
    text: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    heading: str
    char_start: int
    char_end: int
    parent_id: str
    place: int
    block: Block
    readers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, chunk_id: _Optional[str] = ..., text: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., heading: _Optional[str] = ..., char_start: _Optional[int] = ..., char_end: _Optional[int] = ..., parent_id: _Optional[str] = ..., place: _Optional[int] = ..., block: _Optional[_Union[Block, _Mapping]] = ..., readers: _Optional[_Iterable[str]] = ...) -> None: ...

class Block(_message.Message):
    __slots__ = ("number", "heading", "first", "has_header")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    HEADING_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    HAS_HEADER_FIELD_NUMBER: _ClassVar[int]
    number: int
    heading: str
    first: int
    has_header: bool
    def __init__(self, number: _Optional[int] = ..., heading: _Optional[str] = ..., first: _Optional[int] = ..., has_header: _Optional[bool] = ...) -> None: ...

class IndexRequest(_message.Message):
    __slots__ = ("meta", "collection", "document_id", "title", "metadata", "model_fingerprint", "chunks", "anew", "prefix_hash", "template_hash", "kv_context")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    META_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_ID_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    ANEW_FIELD_NUMBER: _ClassVar[int]
    PREFIX_HASH_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_HASH_FIELD_NUMBER: _ClassVar[int]
    KV_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    collection: str
    document_id: str
    title: str
    metadata: _containers.ScalarMap[str, str]
    model_fingerprint: str
    chunks: _containers.RepeatedCompositeFieldContainer[IndexedChunk]
    anew: bool
    prefix_hash: str
    template_hash: str
    kv_context: str
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ..., collection: _Optional[str] = ..., document_id: _Optional[str] = ..., title: _Optional[str] = ..., metadata: _Optional[_Mapping[str, str]] = ..., model_fingerprint: _Optional[str] = ..., chunks: _Optional[_Iterable[_Union[IndexedChunk, _Mapping]]] = ..., anew: _Optional[bool] = ..., prefix_hash: _Optional[str] = ..., template_hash: _Optional[str] = ..., kv_context: _Optional[str] = ...) -> None: ...

class IndexResponse(_message.Message):
    __slots__ = ("num_chunks", "existed", "warnings")
    NUM_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    EXISTED_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    num_chunks: int
    existed: bool
    warnings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, num_chunks: _Optional[int] = ..., existed: _Optional[bool] = ..., warnings: _Optional[_Iterable[str]] = ...) -> None: ...

class RestrictRequest(_message.Message):
    __slots__ = ("meta", "collection", "document_id", "readers")
    META_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_ID_FIELD_NUMBER: _ClassVar[int]
    READERS_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    collection: str
    document_id: str
    readers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ..., collection: _Optional[str] = ..., document_id: _Optional[str] = ..., readers: _Optional[_Iterable[str]] = ...) -> None: ...

class RestrictResponse(_message.Message):
    __slots__ = ("num_chunks",)
    NUM_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    num_chunks: int
    def __init__(self, num_chunks: _Optional[int] = ...) -> None: ...

class UnindexRequest(_message.Message):
    __slots__ = ("meta", "collection", "document_ids")
    META_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_IDS_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    collection: str
    document_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ..., collection: _Optional[str] = ..., document_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class UnindexResponse(_message.Message):
    __slots__ = ("num_chunks",)
    NUM_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    num_chunks: int
    def __init__(self, num_chunks: _Optional[int] = ...) -> None: ...

class AdoptIndexRequest(_message.Message):
    __slots__ = ("meta", "collection")
    META_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    collection: str
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ..., collection: _Optional[str] = ...) -> None: ...

class AdoptIndexResponse(_message.Message):
    __slots__ = ("num_replaced",)
    NUM_REPLACED_FIELD_NUMBER: _ClassVar[int]
    num_replaced: int
    def __init__(self, num_replaced: _Optional[int] = ...) -> None: ...

class CollectionInfo(_message.Message):
    __slots__ = ("name", "num_chunks")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUM_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    name: str
    num_chunks: int
    def __init__(self, name: _Optional[str] = ..., num_chunks: _Optional[int] = ...) -> None: ...

class ListCollectionsRequest(_message.Message):
    __slots__ = ("meta",)
    META_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ...) -> None: ...

class ListCollectionsResponse(_message.Message):
    __slots__ = ("collections",)
    COLLECTIONS_FIELD_NUMBER: _ClassVar[int]
    collections: _containers.RepeatedCompositeFieldContainer[CollectionInfo]
    def __init__(self, collections: _Optional[_Iterable[_Union[CollectionInfo, _Mapping]]] = ...) -> None: ...

class ListIndexedRequest(_message.Message):
    __slots__ = ("meta", "collection")
    META_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    collection: str
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ..., collection: _Optional[str] = ...) -> None: ...

class ListIndexedResponse(_message.Message):
    __slots__ = ("document_ids", "other_embedder")
    DOCUMENT_IDS_FIELD_NUMBER: _ClassVar[int]
    OTHER_EMBEDDER_FIELD_NUMBER: _ClassVar[int]
    document_ids: _containers.RepeatedScalarFieldContainer[str]
    other_embedder: bool
    def __init__(self, document_ids: _Optional[_Iterable[str]] = ..., other_embedder: _Optional[bool] = ...) -> None: ...
