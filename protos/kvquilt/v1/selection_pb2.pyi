from protos.kvquilt.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Grouping(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GROUPING_UNSPECIFIED: _ClassVar[Grouping]
    GROUPING_BUDGET: _ClassVar[Grouping]
    GROUPING_PAPER: _ClassVar[Grouping]
    GROUPING_SLIDING: _ClassVar[Grouping]

class Reading(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    READING_UNSPECIFIED: _ClassVar[Reading]
    READING_STITCHED: _ClassVar[Reading]
    READING_EACH: _ClassVar[Reading]
GROUPING_UNSPECIFIED: Grouping
GROUPING_BUDGET: Grouping
GROUPING_PAPER: Grouping
GROUPING_SLIDING: Grouping
READING_UNSPECIFIED: Reading
READING_STITCHED: Reading
READING_EACH: Reading

class SelectionChunk(_message.Message):
    __slots__ = ("text", "token_ids", "chunk_id", "parent_id", "context")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CHUNK_ID_FIELD_NUMBER: _ClassVar[int]
    PARENT_ID_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    chunk_id: str
    parent_id: str
    context: _containers.RepeatedCompositeFieldContainer[SelectionLink]
    def __init__(self, text: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., chunk_id: _Optional[str] = ..., parent_id: _Optional[str] = ..., context: _Optional[_Iterable[_Union[SelectionLink, _Mapping]]] = ...) -> None: ...

class SelectionLink(_message.Message):
    __slots__ = ("text", "token_ids")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    text: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, text: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class SelectRequest(_message.Message):
    __slots__ = ("meta", "chunks", "questions", "ratio", "grouping", "reading")
    META_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    QUESTIONS_FIELD_NUMBER: _ClassVar[int]
    RATIO_FIELD_NUMBER: _ClassVar[int]
    GROUPING_FIELD_NUMBER: _ClassVar[int]
    READING_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    chunks: _containers.RepeatedCompositeFieldContainer[SelectionChunk]
    questions: _containers.RepeatedScalarFieldContainer[str]
    ratio: float
    grouping: Grouping
    reading: Reading
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ..., chunks: _Optional[_Iterable[_Union[SelectionChunk, _Mapping]]] = ..., questions: _Optional[_Iterable[str]] = ..., ratio: _Optional[float] = ..., grouping: _Optional[_Union[Grouping, str]] = ..., reading: _Optional[_Union[Reading, str]] = ...) -> None: ...

class SelectionTimings(_message.Message):
    __slots__ = ("load_ms", "encode_ms", "wait_ms", "score_ms", "total_ms")
    LOAD_MS_FIELD_NUMBER: _ClassVar[int]
    ENCODE_MS_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    SCORE_MS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_MS_FIELD_NUMBER: _ClassVar[int]
    load_ms: float
    encode_ms: float
    wait_ms: float
    score_ms: float
    total_ms: float
    def __init__(self, load_ms: _Optional[float] = ..., encode_ms: _Optional[float] = ..., wait_ms: _Optional[float] = ..., score_ms: _Optional[float] = ..., total_ms: _Optional[float] = ...) -> None: ...

class SelectedTokens(_message.Message):
    __slots__ = ("tokens", "scores", "reading", "num_picked", "num_grouped", "num_isolated")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    READING_FIELD_NUMBER: _ClassVar[int]
    NUM_PICKED_FIELD_NUMBER: _ClassVar[int]
    NUM_GROUPED_FIELD_NUMBER: _ClassVar[int]
    NUM_ISOLATED_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    scores: _containers.RepeatedScalarFieldContainer[float]
    reading: Reading
    num_picked: int
    num_grouped: int
    num_isolated: int
    def __init__(self, tokens: _Optional[_Iterable[int]] = ..., scores: _Optional[_Iterable[float]] = ..., reading: _Optional[_Union[Reading, str]] = ..., num_picked: _Optional[int] = ..., num_grouped: _Optional[int] = ..., num_isolated: _Optional[int] = ...) -> None: ...

class SelectResponse(_message.Message):
    __slots__ = ("questions", "timings")
    QUESTIONS_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    questions: _containers.RepeatedCompositeFieldContainer[SelectedTokens]
    timings: SelectionTimings
    def __init__(self, questions: _Optional[_Iterable[_Union[SelectedTokens, _Mapping]]] = ..., timings: _Optional[_Union[SelectionTimings, _Mapping]] = ...) -> None: ...

class EncodeRequest(_message.Message):
    __slots__ = ("meta", "chunks")
    META_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    chunks: _containers.RepeatedCompositeFieldContainer[SelectionChunk]
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ..., chunks: _Optional[_Iterable[_Union[SelectionChunk, _Mapping]]] = ...) -> None: ...

class EncodeResponse(_message.Message):
    __slots__ = ("index", "auxiliary_id", "num_tokens", "existed")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    AUXILIARY_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EXISTED_FIELD_NUMBER: _ClassVar[int]
    index: int
    auxiliary_id: str
    num_tokens: int
    existed: bool
    def __init__(self, index: _Optional[int] = ..., auxiliary_id: _Optional[str] = ..., num_tokens: _Optional[int] = ..., existed: _Optional[bool] = ...) -> None: ...

class DescribeAuxiliaryRequest(_message.Message):
    __slots__ = ("meta",)
    META_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ...) -> None: ...

class DescribeAuxiliaryResponse(_message.Message):
    __slots__ = ("model", "fingerprint", "tokenizer_hash", "prefix_ids", "question_template", "max_positions", "dtype", "kv_bytes_per_token", "device", "primary_tokenizer_hash", "chains")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_HASH_FIELD_NUMBER: _ClassVar[int]
    PREFIX_IDS_FIELD_NUMBER: _ClassVar[int]
    QUESTION_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    MAX_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    KV_BYTES_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_TOKENIZER_HASH_FIELD_NUMBER: _ClassVar[int]
    CHAINS_FIELD_NUMBER: _ClassVar[int]
    model: str
    fingerprint: str
    tokenizer_hash: str
    prefix_ids: _containers.RepeatedScalarFieldContainer[int]
    question_template: str
    max_positions: int
    dtype: str
    kv_bytes_per_token: int
    device: str
    primary_tokenizer_hash: str
    chains: bool
    def __init__(self, model: _Optional[str] = ..., fingerprint: _Optional[str] = ..., tokenizer_hash: _Optional[str] = ..., prefix_ids: _Optional[_Iterable[int]] = ..., question_template: _Optional[str] = ..., max_positions: _Optional[int] = ..., dtype: _Optional[str] = ..., kv_bytes_per_token: _Optional[int] = ..., device: _Optional[str] = ..., primary_tokenizer_hash: _Optional[str] = ..., chains: _Optional[bool] = ...) -> None: ...
