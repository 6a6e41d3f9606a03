from protos.kvquilt.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ItemExpectation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ITEM_EXPECTATION_UNSPECIFIED: _ClassVar[ItemExpectation]
    ITEM_EXPECTATION_NEW: _ClassVar[ItemExpectation]
    ITEM_EXPECTATION_THERE: _ClassVar[ItemExpectation]
    ITEM_EXPECTATION_RESTORED: _ClassVar[ItemExpectation]
ITEM_EXPECTATION_UNSPECIFIED: ItemExpectation
ITEM_EXPECTATION_NEW: ItemExpectation
ITEM_EXPECTATION_THERE: ItemExpectation
ITEM_EXPECTATION_RESTORED: ItemExpectation

class ChunkStat(_message.Message):
    __slots__ = ("chunk_id", "exists", "size_bytes", "modified_s")
    CHUNK_ID_FIELD_NUMBER: _ClassVar[int]
    EXISTS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MODIFIED_S_FIELD_NUMBER: _ClassVar[int]
    chunk_id: str
    exists: bool
    size_bytes: int
    modified_s: float
    def __init__(self, chunk_id: _Optional[str] = ..., exists: _Optional[bool] = ..., size_bytes: _Optional[int] = ..., modified_s: _Optional[float] = ...) -> None: ...

class StatRequest(_message.Message):
    __slots__ = ("meta", "chunk_ids")
    META_FIELD_NUMBER: _ClassVar[int]
    CHUNK_IDS_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    chunk_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ..., chunk_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class StatResponse(_message.Message):
    __slots__ = ("chunks",)
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    chunks: _containers.RepeatedCompositeFieldContainer[ChunkStat]
    def __init__(self, chunks: _Optional[_Iterable[_Union[ChunkStat, _Mapping]]] = ...) -> None: ...

class ByteRange(_message.Message):
    __slots__ = ("offset", "length")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    offset: int
    length: int
    def __init__(self, offset: _Optional[int] = ..., length: _Optional[int] = ...) -> None: ...

class PutHeader(_message.Message):
    __slots__ = ("meta", "chunk_id", "size_bytes", "prefix_ids", "parent_id")
    META_FIELD_NUMBER: _ClassVar[int]
    CHUNK_ID_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PREFIX_IDS_FIELD_NUMBER: _ClassVar[int]
    PARENT_ID_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    chunk_id: str
    size_bytes: int
    prefix_ids: _containers.RepeatedScalarFieldContainer[int]
    parent_id: str
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ..., chunk_id: _Optional[str] = ..., size_bytes: _Optional[int] = ..., prefix_ids: _Optional[_Iterable[int]] = ..., parent_id: _Optional[str] = ...) -> None: ...

class PutRequest(_message.Message):
    __slots__ = ("header", "data")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    header: PutHeader
    data: bytes
    def __init__(self, header: _Optional[_Union[PutHeader, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class PutResponse(_message.Message):
    __slots__ = ("chunk_id", "existed")
    CHUNK_ID_FIELD_NUMBER: _ClassVar[int]
    EXISTED_FIELD_NUMBER: _ClassVar[int]
    chunk_id: str
    existed: bool
    def __init__(self, chunk_id: _Optional[str] = ..., existed: _Optional[bool] = ...) -> None: ...

class GetRequest(_message.Message):
    __slots__ = ("meta", "chunk_id", "range")
    META_FIELD_NUMBER: _ClassVar[int]
    CHUNK_ID_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    chunk_id: str
    range: ByteRange
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ..., chunk_id: _Optional[str] = ..., range: _Optional[_Union[ByteRange, _Mapping]] = ...) -> None: ...

class GetResponse(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class ManifestChunk(_message.Message):
    __slots__ = ("chunk_id", "token_ids", "char_start", "char_end", "text", "heading", "auxiliary_id", "parent_id", "header_ids")
    CHUNK_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CHAR_START_FIELD_NUMBER: _ClassVar[int]
    CHAR_END_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    HEADING_FIELD_NUMBER: _ClassVar[int]
    AUXILIARY_ID_FIELD_NUMBER: _ClassVar[int]
    PARENT_ID_FIELD_NUMBER: _ClassVar[int]
    HEADER_IDS_FIELD_NUMBER: _ClassVar[int]
    chunk_id: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    char_start: int
    char_end: int
    text: str
    heading: str
    auxiliary_id: str
    parent_id: str
    header_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, chunk_id: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., char_start: _Optional[int] = ..., char_end: _Optional[int] = ..., text: _Optional[str] = ..., heading: _Optional[str] = ..., auxiliary_id: _Optional[str] = ..., parent_id: _Optional[str] = ..., header_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Manifest(_message.Message):
    __slots__ = ("tenant", "collection", "document_id", "title", "source_hash", "model_fingerprint", "prefix_ids", "chunks", "metadata", "created_s", "auxiliary", "kv_context", "readers", "sections", "kv_scope")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TENANT_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_ID_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_HASH_FIELD_NUMBER: _ClassVar[int]
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    PREFIX_IDS_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    CREATED_S_FIELD_NUMBER: _ClassVar[int]
    AUXILIARY_FIELD_NUMBER: _ClassVar[int]
    KV_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    READERS_FIELD_NUMBER: _ClassVar[int]
    SECTIONS_FIELD_NUMBER: _ClassVar[int]
    KV_SCOPE_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    collection: str
    document_id: str
    title: str
    source_hash: str
    model_fingerprint: str
    prefix_ids: _containers.RepeatedScalarFieldContainer[int]
    chunks: _containers.RepeatedCompositeFieldContainer[ManifestChunk]
    metadata: _containers.ScalarMap[str, str]
    created_s: float
    auxiliary: str
    kv_context: str
    readers: _containers.RepeatedScalarFieldContainer[str]
    sections: _containers.RepeatedCompositeFieldContainer[_common_pb2.SectionReaders]
    kv_scope: str
    def __init__(self, tenant: _Optional[str] = ..., collection: _Optional[str] = ..., document_id: _Optional[str] = ..., title: _Optional[str] = ..., source_hash: _Optional[str] = ..., model_fingerprint: _Optional[str] = ..., prefix_ids: _Optional[_Iterable[int]] = ..., chunks: _Optional[_Iterable[_Union[ManifestChunk, _Mapping]]] = ..., metadata: _Optional[_Mapping[str, str]] = ..., created_s: _Optional[float] = ..., auxiliary: _Optional[str] = ..., kv_context: _Optional[str] = ..., readers: _Optional[_Iterable[str]] = ..., sections: _Optional[_Iterable[_Union[_common_pb2.SectionReaders, _Mapping]]] = ..., kv_scope: _Optional[str] = ...) -> None: ...

class PutManifestRequest(_message.Message):
    __slots__ = ("meta", "manifest")
    META_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    manifest: Manifest
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ..., manifest: _Optional[_Union[Manifest, _Mapping]] = ...) -> None: ...

class PutManifestResponse(_message.Message):
    __slots__ = ("deleted_chunk_ids",)
    DELETED_CHUNK_IDS_FIELD_NUMBER: _ClassVar[int]
    deleted_chunk_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, deleted_chunk_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class CheckQuotaRequest(_message.Message):
    __slots__ = ("meta", "manifest", "bytes_per_token")
    META_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    manifest: Manifest
    bytes_per_token: int
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ..., manifest: _Optional[_Union[Manifest, _Mapping]] = ..., bytes_per_token: _Optional[int] = ...) -> None: ...

class CheckQuotaResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetManifestRequest(_message.Message):
    __slots__ = ("meta", "collection", "document_id")
    META_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_ID_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    collection: str
    document_id: str
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ..., collection: _Optional[str] = ..., document_id: _Optional[str] = ...) -> None: ...

class GetManifestResponse(_message.Message):
    __slots__ = ("manifest",)
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    manifest: Manifest
    def __init__(self, manifest: _Optional[_Union[Manifest, _Mapping]] = ...) -> None: ...

class ListManifestsRequest(_message.Message):
    __slots__ = ("meta", "collection", "start_after", "limit", "summary", "descending")
    META_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    START_AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    DESCENDING_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    collection: str
    start_after: str
    limit: int
    summary: bool
    descending: bool
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ..., collection: _Optional[str] = ..., start_after: _Optional[str] = ..., limit: _Optional[int] = ..., summary: _Optional[bool] = ..., descending: _Optional[bool] = ...) -> None: ...

class ListManifestsResponse(_message.Message):
    __slots__ = ("manifests", "truncated")
    MANIFESTS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    manifests: _containers.RepeatedCompositeFieldContainer[Manifest]
    truncated: bool
    def __init__(self, manifests: _Optional[_Iterable[_Union[Manifest, _Mapping]]] = ..., truncated: _Optional[bool] = ...) -> None: ...

class DeleteManifestRequest(_message.Message):
    __slots__ = ("meta", "collection", "document_id")
    META_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_ID_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    collection: str
    document_id: str
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ..., collection: _Optional[str] = ..., document_id: _Optional[str] = ...) -> None: ...

class DeleteManifestResponse(_message.Message):
    __slots__ = ("deleted_chunk_ids",)
    DELETED_CHUNK_IDS_FIELD_NUMBER: _ClassVar[int]
    deleted_chunk_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, deleted_chunk_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class Item(_message.Message):
    __slots__ = ("kind", "id", "fields", "readers", "size_bytes", "digest", "created_s", "stored_by")
    class FieldsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    KIND_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    READERS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    CREATED_S_FIELD_NUMBER: _ClassVar[int]
    STORED_BY_FIELD_NUMBER: _ClassVar[int]
    kind: str
    id: str
    fields: _containers.ScalarMap[str, str]
    readers: _containers.RepeatedScalarFieldContainer[str]
    size_bytes: int
    digest: str
    created_s: float
    stored_by: str
    def __init__(self, kind: _Optional[str] = ..., id: _Optional[str] = ..., fields: _Optional[_Mapping[str, str]] = ..., readers: _Optional[_Iterable[str]] = ..., size_bytes: _Optional[int] = ..., digest: _Optional[str] = ..., created_s: _Optional[float] = ..., stored_by: _Optional[str] = ...) -> None: ...

class PutItemRequest(_message.Message):
    __slots__ = ("meta", "item", "content", "expected")
    META_FIELD_NUMBER: _ClassVar[int]
    ITEM_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    item: Item
    content: bytes
    expected: ItemExpectation
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ..., item: _Optional[_Union[Item, _Mapping]] = ..., content: _Optional[bytes] = ..., expected: _Optional[_Union[ItemExpectation, str]] = ...) -> None: ...

class GetItemRequest(_message.Message):
    __slots__ = ("meta", "kind", "id", "with_content")
    META_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    WITH_CONTENT_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    kind: str
    id: str
    with_content: bool
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ..., kind: _Optional[str] = ..., id: _Optional[str] = ..., with_content: _Optional[bool] = ...) -> None: ...

class GetItemResponse(_message.Message):
    __slots__ = ("item", "content")
    ITEM_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    item: Item
    content: bytes
    def __init__(self, item: _Optional[_Union[Item, _Mapping]] = ..., content: _Optional[bytes] = ...) -> None: ...

class ListItemsRequest(_message.Message):
    __slots__ = ("meta", "kind", "prefix", "start_after", "limit", "descending")
    META_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    START_AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    DESCENDING_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    kind: str
    prefix: str
    start_after: str
    limit: int
    descending: bool
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ..., kind: _Optional[str] = ..., prefix: _Optional[str] = ..., start_after: _Optional[str] = ..., limit: _Optional[int] = ..., descending: _Optional[bool] = ...) -> None: ...

class ListItemsResponse(_message.Message):
    __slots__ = ("items", "truncated", "unreadable")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[Item]
    truncated: bool
    unreadable: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, items: _Optional[_Iterable[_Union[Item, _Mapping]]] = ..., truncated: _Optional[bool] = ..., unreadable: _Optional[_Iterable[str]] = ...) -> None: ...

class DeleteItemRequest(_message.Message):
    __slots__ = ("meta", "kind", "id")
    META_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    kind: str
    id: str
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ..., kind: _Optional[str] = ..., id: _Optional[str] = ...) -> None: ...

class DeleteItemResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CountDocumentsRequest(_message.Message):
    __slots__ = ("meta",)
    META_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ...) -> None: ...

class AlikeDocuments(_message.Message):
    __slots__ = ("collection", "num_documents", "model_fingerprint", "prefix_hash", "template_hash", "kv_context", "kv_scope")
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    NUM_DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    PREFIX_HASH_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_HASH_FIELD_NUMBER: _ClassVar[int]
    KV_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    KV_SCOPE_FIELD_NUMBER: _ClassVar[int]
    collection: str
    num_documents: int
    model_fingerprint: str
    prefix_hash: str
    template_hash: str
    kv_context: str
    kv_scope: str
    def __init__(self, collection: _Optional[str] = ..., num_documents: _Optional[int] = ..., model_fingerprint: _Optional[str] = ..., prefix_hash: _Optional[str] = ..., template_hash: _Optional[str] = ..., kv_context: _Optional[str] = ..., kv_scope: _Optional[str] = ...) -> None: ...

class CountDocumentsResponse(_message.Message):
    __slots__ = ("counts",)
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    counts: _containers.RepeatedCompositeFieldContainer[AlikeDocuments]
    def __init__(self, counts: _Optional[_Iterable[_Union[AlikeDocuments, _Mapping]]] = ...) -> None: ...

class ReadableRequest(_message.Message):
    __slots__ = ("meta", "chunk_ids")
    META_FIELD_NUMBER: _ClassVar[int]
    CHUNK_IDS_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    chunk_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ..., chunk_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class ReadableResponse(_message.Message):
    __slots__ = ("chunk_ids",)
    CHUNK_IDS_FIELD_NUMBER: _ClassVar[int]
    chunk_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, chunk_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class PrefetchRequest(_message.Message):
    __slots__ = ("meta", "chunk_ids", "node_id")
    META_FIELD_NUMBER: _ClassVar[int]
    CHUNK_IDS_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    chunk_ids: _containers.RepeatedScalarFieldContainer[str]
    node_id: str
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ..., chunk_ids: _Optional[_Iterable[str]] = ..., node_id: _Optional[str] = ...) -> None: ...

class PrefetchResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatsRequest(_message.Message):
    __slots__ = ("meta",)
    META_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ...) -> None: ...

class TierStats(_message.Message):
    __slots__ = ("tier", "num_chunks", "num_bytes", "capacity_bytes", "pinned_bytes")
    TIER_FIELD_NUMBER: _ClassVar[int]
    NUM_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    PINNED_BYTES_FIELD_NUMBER: _ClassVar[int]
    tier: str
    num_chunks: int
    num_bytes: int
    capacity_bytes: int
    pinned_bytes: int
    def __init__(self, tier: _Optional[str] = ..., num_chunks: _Optional[int] = ..., num_bytes: _Optional[int] = ..., capacity_bytes: _Optional[int] = ..., pinned_bytes: _Optional[int] = ...) -> None: ...

class NodeStats(_message.Message):
    __slots__ = ("node_id", "home", "tiers", "counters")
    class CountersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    HOME_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    home: bool
    tiers: _containers.RepeatedCompositeFieldContainer[TierStats]
    counters: _containers.ScalarMap[str, int]
    def __init__(self, node_id: _Optional[str] = ..., home: _Optional[bool] = ..., tiers: _Optional[_Iterable[_Union[TierStats, _Mapping]]] = ..., counters: _Optional[_Mapping[str, int]] = ...) -> None: ...

class PrincipalStats(_message.Message):
    __slots__ = ("principal", "num_documents", "num_bytes", "limit_bytes")
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    NUM_DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    principal: str
    num_documents: int
    num_bytes: int
    limit_bytes: int
    def __init__(self, principal: _Optional[str] = ..., num_documents: _Optional[int] = ..., num_bytes: _Optional[int] = ..., limit_bytes: _Optional[int] = ...) -> None: ...

class TenantStats(_message.Message):
    __slots__ = ("tenant", "num_documents", "num_bytes", "quota_bytes", "principals", "num_items", "item_bytes")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    NUM_DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    QUOTA_BYTES_FIELD_NUMBER: _ClassVar[int]
    PRINCIPALS_FIELD_NUMBER: _ClassVar[int]
    NUM_ITEMS_FIELD_NUMBER: _ClassVar[int]
    ITEM_BYTES_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    num_documents: int
    num_bytes: int
    quota_bytes: int
    principals: _containers.RepeatedCompositeFieldContainer[PrincipalStats]
    num_items: int
    item_bytes: int
    def __init__(self, tenant: _Optional[str] = ..., num_documents: _Optional[int] = ..., num_bytes: _Optional[int] = ..., quota_bytes: _Optional[int] = ..., principals: _Optional[_Iterable[_Union[PrincipalStats, _Mapping]]] = ..., num_items: _Optional[int] = ..., item_bytes: _Optional[int] = ...) -> None: ...

class StatsResponse(_message.Message):
    __slots__ = ("nodes", "objects", "tenants", "num_unreachable", "objects_detail")
    NODES_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    NUM_UNREACHABLE_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_DETAIL_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[NodeStats]
    objects: TierStats
    tenants: _containers.RepeatedCompositeFieldContainer[TenantStats]
    num_unreachable: int
    objects_detail: str
    def __init__(self, nodes: _Optional[_Iterable[_Union[NodeStats, _Mapping]]] = ..., objects: _Optional[_Union[TierStats, _Mapping]] = ..., tenants: _Optional[_Iterable[_Union[TenantStats, _Mapping]]] = ..., num_unreachable: _Optional[int] = ..., objects_detail: _Optional[str] = ...) -> None: ...

class VerifyRequest(_message.Message):
    __slots__ = ("meta", "repair", "seal")
    META_FIELD_NUMBER: _ClassVar[int]
    REPAIR_FIELD_NUMBER: _ClassVar[int]
    SEAL_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    repair: bool
    seal: bool
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ..., repair: _Optional[bool] = ..., seal: _Optional[bool] = ...) -> None: ...

class DamagedCopy(_message.Message):
    __slots__ = ("chunk_id", "node_id", "tier", "reason", "restored")
    CHUNK_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RESTORED_FIELD_NUMBER: _ClassVar[int]
    chunk_id: str
    node_id: str
    tier: str
    reason: str
    restored: bool
    def __init__(self, chunk_id: _Optional[str] = ..., node_id: _Optional[str] = ..., tier: _Optional[str] = ..., reason: _Optional[str] = ..., restored: _Optional[bool] = ...) -> None: ...

class DamagedRecord(_message.Message):
    __slots__ = ("name", "reason", "restored")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RESTORED_FIELD_NUMBER: _ClassVar[int]
    name: str
    reason: str
    restored: bool
    def __init__(self, name: _Optional[str] = ..., reason: _Optional[str] = ..., restored: _Optional[bool] = ...) -> None: ...

class VerifyProgress(_message.Message):
    __slots__ = ("num_copies", "num_bytes", "damaged", "missing_chunk_ids", "damaged_records", "num_unsealed", "num_sealed", "num_unsealed_documents", "num_sealed_documents")
    NUM_COPIES_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    MISSING_CHUNK_IDS_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_RECORDS_FIELD_NUMBER: _ClassVar[int]
    NUM_UNSEALED_FIELD_NUMBER: _ClassVar[int]
    NUM_SEALED_FIELD_NUMBER: _ClassVar[int]
    NUM_UNSEALED_DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    NUM_SEALED_DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    num_copies: int
    num_bytes: int
    damaged: _containers.RepeatedCompositeFieldContainer[DamagedCopy]
    missing_chunk_ids: _containers.RepeatedScalarFieldContainer[str]
    damaged_records: _containers.RepeatedCompositeFieldContainer[DamagedRecord]
    num_unsealed: int
    num_sealed: int
    num_unsealed_documents: int
    num_sealed_documents: int
    def __init__(self, num_copies: _Optional[int] = ..., num_bytes: _Optional[int] = ..., damaged: _Optional[_Iterable[_Union[DamagedCopy, _Mapping]]] = ..., missing_chunk_ids: _Optional[_Iterable[str]] = ..., damaged_records: _Optional[_Iterable[_Union[DamagedRecord, _Mapping]]] = ..., num_unsealed: _Optional[int] = ..., num_sealed: _Optional[int] = ..., num_unsealed_documents: _Optional[int] = ..., num_sealed_documents: _Optional[int] = ...) -> None: ...

class CollectGarbageRequest(_message.Message):
    __slots__ = ("meta", "grace_s", "dry_run")
    META_FIELD_NUMBER: _ClassVar[int]
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    grace_s: float
    dry_run: bool
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ..., grace_s: _Optional[float] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class CollectGarbageResponse(_message.Message):
    __slots__ = ("num_chunks", "num_bytes", "num_kept")
    NUM_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_KEPT_FIELD_NUMBER: _ClassVar[int]
    num_chunks: int
    num_bytes: int
    num_kept: int
    def __init__(self, num_chunks: _Optional[int] = ..., num_bytes: _Optional[int] = ..., num_kept: _Optional[int] = ...) -> None: ...

class PinRequest(_message.Message):
    __slots__ = ("meta", "collection", "document_id", "unpin")
    META_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_ID_FIELD_NUMBER: _ClassVar[int]
    UNPIN_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    collection: str
    document_id: str
    unpin: bool
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ..., collection: _Optional[str] = ..., document_id: _Optional[str] = ..., unpin: _Optional[bool] = ...) -> None: ...

class PinResponse(_message.Message):
    __slots__ = ("pinned_bytes",)
    PINNED_BYTES_FIELD_NUMBER: _ClassVar[int]
    pinned_bytes: int
    def __init__(self, pinned_bytes: _Optional[int] = ...) -> None: ...

class ListPinsRequest(_message.Message):
    __slots__ = ("meta",)
    META_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ...) -> None: ...

class PinnedDocuments(_message.Message):
    __slots__ = ("collection", "document_id", "num_bytes")
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    collection: str
    document_id: str
    num_bytes: int
    def __init__(self, collection: _Optional[str] = ..., document_id: _Optional[str] = ..., num_bytes: _Optional[int] = ...) -> None: ...

class ListPinsResponse(_message.Message):
    __slots__ = ("pins",)
    PINS_FIELD_NUMBER: _ClassVar[int]
    pins: _containers.RepeatedCompositeFieldContainer[PinnedDocuments]
    def __init__(self, pins: _Optional[_Iterable[_Union[PinnedDocuments, _Mapping]]] = ...) -> None: ...
