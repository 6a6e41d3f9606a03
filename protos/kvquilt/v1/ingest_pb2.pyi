from protos.kvquilt.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SourceDocument(_message.Message):
    __slots__ = ("document_id", "content", "media_type", "metadata", "readers", "sections")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    DOCUMENT_ID_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    MEDIA_TYPE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    READERS_FIELD_NUMBER: _ClassVar[int]
    SECTIONS_FIELD_NUMBER: _ClassVar[int]
    document_id: str
    content: bytes
    media_type: str
    metadata: _containers.ScalarMap[str, str]
    readers: _containers.RepeatedScalarFieldContainer[str]
    sections: _containers.RepeatedCompositeFieldContainer[_common_pb2.SectionReaders]
    def __init__(self, document_id: _Optional[str] = ..., content: _Optional[bytes] = ..., media_type: _Optional[str] = ..., metadata: _Optional[_Mapping[str, str]] = ..., readers: _Optional[_Iterable[str]] = ..., sections: _Optional[_Iterable[_Union[_common_pb2.SectionReaders, _Mapping]]] = ...) -> None: ...

class UpsertRequest(_message.Message):
    __slots__ = ("meta", "collection", "documents", "re_encode", "dry_run")
    META_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    RE_ENCODE_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    collection: str
    documents: _containers.RepeatedCompositeFieldContainer[SourceDocument]
    re_encode: bool
    dry_run: bool
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ..., collection: _Optional[str] = ..., documents: _Optional[_Iterable[_Union[SourceDocument, _Mapping]]] = ..., re_encode: _Optional[bool] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class UpsertProgress(_message.Message):
    __slots__ = ("document_id", "stage", "num_chunks", "num_chunks_done", "num_tokens", "num_chunks_reused", "error", "error_code", "warnings")
    class Stage(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STAGE_UNSPECIFIED: _ClassVar[UpsertProgress.Stage]
        STAGE_PARSED: _ClassVar[UpsertProgress.Stage]
        STAGE_PREFILLED: _ClassVar[UpsertProgress.Stage]
        STAGE_STORED: _ClassVar[UpsertProgress.Stage]
        STAGE_UNCHANGED: _ClassVar[UpsertProgress.Stage]
        STAGE_FAILED: _ClassVar[UpsertProgress.Stage]
        STAGE_REMOVED: _ClassVar[UpsertProgress.Stage]
        STAGE_WOULD_STORE: _ClassVar[UpsertProgress.Stage]
    STAGE_UNSPECIFIED: UpsertProgress.Stage
    STAGE_PARSED: UpsertProgress.Stage
    STAGE_PREFILLED: UpsertProgress.Stage
    STAGE_STORED: UpsertProgress.Stage
    STAGE_UNCHANGED: UpsertProgress.Stage
    STAGE_FAILED: UpsertProgress.Stage
    STAGE_REMOVED: UpsertProgress.Stage
    STAGE_WOULD_STORE: UpsertProgress.Stage
    DOCUMENT_ID_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    NUM_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    NUM_CHUNKS_DONE_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_CHUNKS_REUSED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    document_id: str
    stage: UpsertProgress.Stage
    num_chunks: int
    num_chunks_done: int
    num_tokens: int
    num_chunks_reused: int
    error: str
    error_code: str
    warnings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, document_id: _Optional[str] = ..., stage: _Optional[_Union[UpsertProgress.Stage, str]] = ..., num_chunks: _Optional[int] = ..., num_chunks_done: _Optional[int] = ..., num_tokens: _Optional[int] = ..., num_chunks_reused: _Optional[int] = ..., error: _Optional[str] = ..., error_code: _Optional[str] = ..., warnings: _Optional[_Iterable[str]] = ...) -> None: ...

class DeleteDocumentsRequest(_message.Message):
    __slots__ = ("meta", "collection", "document_ids", "all")
    META_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_IDS_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    collection: str
    document_ids: _containers.RepeatedScalarFieldContainer[str]
    all: bool
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ..., collection: _Optional[str] = ..., document_ids: _Optional[_Iterable[str]] = ..., all: _Optional[bool] = ...) -> None: ...

class DeleteDocumentsResponse(_message.Message):
    __slots__ = ("num_documents", "num_chunks", "not_found")
    NUM_DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    NUM_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    NOT_FOUND_FIELD_NUMBER: _ClassVar[int]
    num_documents: int
    num_chunks: int
    not_found: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, num_documents: _Optional[int] = ..., num_chunks: _Optional[int] = ..., not_found: _Optional[_Iterable[str]] = ...) -> None: ...

class ListDocumentsRequest(_message.Message):
    __slots__ = ("meta", "collection", "start_after", "limit")
    META_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    START_AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    collection: str
    start_after: str
    limit: int
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ..., collection: _Optional[str] = ..., start_after: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class DocumentInfo(_message.Message):
    __slots__ = ("collection", "document_id", "title", "num_chunks", "model_fingerprint", "current", "created_s", "source", "kv_context", "readers", "sections")
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_ID_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    NUM_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    CURRENT_FIELD_NUMBER: _ClassVar[int]
    CREATED_S_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    KV_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    READERS_FIELD_NUMBER: _ClassVar[int]
    SECTIONS_FIELD_NUMBER: _ClassVar[int]
    collection: str
    document_id: str
    title: str
    num_chunks: int
    model_fingerprint: str
    current: bool
    created_s: float
    source: str
    kv_context: str
    readers: _containers.RepeatedScalarFieldContainer[str]
    sections: _containers.RepeatedCompositeFieldContainer[_common_pb2.SectionReaders]
    def __init__(self, collection: _Optional[str] = ..., document_id: _Optional[str] = ..., title: _Optional[str] = ..., num_chunks: _Optional[int] = ..., model_fingerprint: _Optional[str] = ..., current: _Optional[bool] = ..., created_s: _Optional[float] = ..., source: _Optional[str] = ..., kv_context: _Optional[str] = ..., readers: _Optional[_Iterable[str]] = ..., sections: _Optional[_Iterable[_Union[_common_pb2.SectionReaders, _Mapping]]] = ...) -> None: ...

class ListDocumentsResponse(_message.Message):
    __slots__ = ("documents", "truncated")
    DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    documents: _containers.RepeatedCompositeFieldContainer[DocumentInfo]
    truncated: bool
    def __init__(self, documents: _Optional[_Iterable[_Union[DocumentInfo, _Mapping]]] = ..., truncated: _Optional[bool] = ...) -> None: ...

class RebuildRequest(_message.Message):
    __slots__ = ("meta", "collection")
    META_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    collection: str
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ..., collection: _Optional[str] = ...) -> None: ...

class RefreshRequest(_message.Message):
    __slots__ = ("meta", "collection", "chunk_ids", "encoding")
    META_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    CHUNK_IDS_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    collection: str
    chunk_ids: _containers.RepeatedScalarFieldContainer[str]
    encoding: str
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ..., collection: _Optional[str] = ..., chunk_ids: _Optional[_Iterable[str]] = ..., encoding: _Optional[str] = ...) -> None: ...
