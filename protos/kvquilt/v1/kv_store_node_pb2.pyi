from protos.kvquilt.v1 import common_pb2 as _common_pb2
from protos.kvquilt.v1 import kv_store_pb2 as _kv_store_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class OpenRequest(_message.Message):
    __slots__ = ("meta", "chunk_ids", "node_id", "direct")
    META_FIELD_NUMBER: _ClassVar[int]
    CHUNK_IDS_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    DIRECT_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    chunk_ids: _containers.RepeatedScalarFieldContainer[str]
    node_id: str
    direct: bool
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ..., chunk_ids: _Optional[_Iterable[str]] = ..., node_id: _Optional[str] = ..., direct: _Optional[bool] = ...) -> None: ...

class OpenedChunk(_message.Message):
    __slots__ = ("chunk_id", "exists", "path", "size_bytes", "layers", "progress", "tier", "remote", "source")
    CHUNK_ID_FIELD_NUMBER: _ClassVar[int]
    EXISTS_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    REMOTE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    chunk_id: str
    exists: bool
    path: str
    size_bytes: int
    layers: _containers.RepeatedCompositeFieldContainer[_kv_store_pb2.ByteRange]
    progress: str
    tier: str
    remote: RemoteFile
    source: str
    def __init__(self, chunk_id: _Optional[str] = ..., exists: _Optional[bool] = ..., path: _Optional[str] = ..., size_bytes: _Optional[int] = ..., layers: _Optional[_Iterable[_Union[_kv_store_pb2.ByteRange, _Mapping]]] = ..., progress: _Optional[str] = ..., tier: _Optional[str] = ..., remote: _Optional[_Union[RemoteFile, _Mapping]] = ..., source: _Optional[str] = ...) -> None: ...

class RemoteFile(_message.Message):
    __slots__ = ("url", "ca_file")
    URL_FIELD_NUMBER: _ClassVar[int]
    CA_FILE_FIELD_NUMBER: _ClassVar[int]
    url: str
    ca_file: str
    def __init__(self, url: _Optional[str] = ..., ca_file: _Optional[str] = ...) -> None: ...

class OpenResponse(_message.Message):
    __slots__ = ("chunks",)
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    chunks: _containers.RepeatedCompositeFieldContainer[OpenedChunk]
    def __init__(self, chunks: _Optional[_Iterable[_Union[OpenedChunk, _Mapping]]] = ...) -> None: ...

class ChainRequest(_message.Message):
    __slots__ = ("meta", "parent_id")
    META_FIELD_NUMBER: _ClassVar[int]
    PARENT_ID_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    parent_id: str
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ..., parent_id: _Optional[str] = ...) -> None: ...

class ChainResponse(_message.Message):
    __slots__ = ("chain",)
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    chain: DocumentChain
    def __init__(self, chain: _Optional[_Union[DocumentChain, _Mapping]] = ...) -> None: ...

class DocumentChain(_message.Message):
    __slots__ = ("tenant", "model_fingerprint", "prefix_ids", "links", "texts", "kv_scope")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    PREFIX_IDS_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    KV_SCOPE_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    model_fingerprint: str
    prefix_ids: _containers.RepeatedScalarFieldContainer[int]
    links: _containers.RepeatedCompositeFieldContainer[ChainLink]
    texts: _containers.RepeatedScalarFieldContainer[str]
    kv_scope: str
    def __init__(self, tenant: _Optional[str] = ..., model_fingerprint: _Optional[str] = ..., prefix_ids: _Optional[_Iterable[int]] = ..., links: _Optional[_Iterable[_Union[ChainLink, _Mapping]]] = ..., texts: _Optional[_Iterable[str]] = ..., kv_scope: _Optional[str] = ...) -> None: ...

class ChainLink(_message.Message):
    __slots__ = ("token_ids",)
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class StageRequest(_message.Message):
    __slots__ = ("meta", "node_id")
    META_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    node_id: str
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ..., node_id: _Optional[str] = ...) -> None: ...

class StageResponse(_message.Message):
    __slots__ = ("directory",)
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    directory: str
    def __init__(self, directory: _Optional[str] = ...) -> None: ...

class AdoptRequest(_message.Message):
    __slots__ = ("meta", "chunk_id", "node_id", "path", "replace", "write_back", "origin")
    META_FIELD_NUMBER: _ClassVar[int]
    CHUNK_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    WRITE_BACK_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    chunk_id: str
    node_id: str
    path: str
    replace: bool
    write_back: bool
    origin: ChunkOrigin
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ..., chunk_id: _Optional[str] = ..., node_id: _Optional[str] = ..., path: _Optional[str] = ..., replace: _Optional[bool] = ..., write_back: _Optional[bool] = ..., origin: _Optional[_Union[ChunkOrigin, _Mapping]] = ...) -> None: ...

class ChunkOrigin(_message.Message):
    __slots__ = ("prefix_ids", "parent_id", "asked_by")
    PREFIX_IDS_FIELD_NUMBER: _ClassVar[int]
    PARENT_ID_FIELD_NUMBER: _ClassVar[int]
    ASKED_BY_FIELD_NUMBER: _ClassVar[int]
    prefix_ids: _containers.RepeatedScalarFieldContainer[int]
    parent_id: str
    asked_by: str
    def __init__(self, prefix_ids: _Optional[_Iterable[int]] = ..., parent_id: _Optional[str] = ..., asked_by: _Optional[str] = ...) -> None: ...

class DeleteChunksRequest(_message.Message):
    __slots__ = ("meta", "chunk_ids")
    META_FIELD_NUMBER: _ClassVar[int]
    CHUNK_IDS_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    chunk_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ..., chunk_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class DeleteChunksResponse(_message.Message):
    __slots__ = ("deleted", "referenced")
    DELETED_FIELD_NUMBER: _ClassVar[int]
    REFERENCED_FIELD_NUMBER: _ClassVar[int]
    deleted: _containers.RepeatedScalarFieldContainer[str]
    referenced: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, deleted: _Optional[_Iterable[str]] = ..., referenced: _Optional[_Iterable[str]] = ...) -> None: ...

class ListChunksRequest(_message.Message):
    __slots__ = ("meta", "start_after", "limit")
    META_FIELD_NUMBER: _ClassVar[int]
    START_AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    start_after: str
    limit: int
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ..., start_after: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListChunksResponse(_message.Message):
    __slots__ = ("chunks", "truncated")
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    chunks: _containers.RepeatedCompositeFieldContainer[_kv_store_pb2.ChunkStat]
    truncated: bool
    def __init__(self, chunks: _Optional[_Iterable[_Union[_kv_store_pb2.ChunkStat, _Mapping]]] = ..., truncated: _Optional[bool] = ...) -> None: ...

class LocalCopiesRequest(_message.Message):
    __slots__ = ("meta", "chunk_ids")
    META_FIELD_NUMBER: _ClassVar[int]
    CHUNK_IDS_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    chunk_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ..., chunk_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class PeerCopy(_message.Message):
    __slots__ = ("chunk_id", "size_bytes", "location")
    CHUNK_ID_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOCATION_FIELD_NUMBER: _ClassVar[int]
    chunk_id: str
    size_bytes: int
    location: str
    def __init__(self, chunk_id: _Optional[str] = ..., size_bytes: _Optional[int] = ..., location: _Optional[str] = ...) -> None: ...

class LocalCopiesResponse(_message.Message):
    __slots__ = ("chunks",)
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    chunks: _containers.RepeatedCompositeFieldContainer[PeerCopy]
    def __init__(self, chunks: _Optional[_Iterable[_Union[PeerCopy, _Mapping]]] = ...) -> None: ...

class NeededRequest(_message.Message):
    __slots__ = ("meta", "chunk_ids", "grace_s")
    META_FIELD_NUMBER: _ClassVar[int]
    CHUNK_IDS_FIELD_NUMBER: _ClassVar[int]
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    chunk_ids: _containers.RepeatedScalarFieldContainer[str]
    grace_s: float
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ..., chunk_ids: _Optional[_Iterable[str]] = ..., grace_s: _Optional[float] = ...) -> None: ...

class NeededResponse(_message.Message):
    __slots__ = ("chunk_ids",)
    CHUNK_IDS_FIELD_NUMBER: _ClassVar[int]
    chunk_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, chunk_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class ReadersRequest(_message.Message):
    __slots__ = ("meta",)
    META_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ...) -> None: ...

class ReadersResponse(_message.Message):
    __slots__ = ("lately",)
    LATELY_FIELD_NUMBER: _ClassVar[int]
    lately: bool
    def __init__(self, lately: _Optional[bool] = ...) -> None: ...

class ListPinnedChunksRequest(_message.Message):
    __slots__ = ("meta", "known_version")
    META_FIELD_NUMBER: _ClassVar[int]
    KNOWN_VERSION_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    known_version: str
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ..., known_version: _Optional[str] = ...) -> None: ...

class ListPinnedChunksResponse(_message.Message):
    __slots__ = ("version", "chunk_ids")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CHUNK_IDS_FIELD_NUMBER: _ClassVar[int]
    version: str
    chunk_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, version: _Optional[str] = ..., chunk_ids: _Optional[_Iterable[str]] = ...) -> None: ...
