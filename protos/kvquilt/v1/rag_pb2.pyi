from protos.kvquilt.v1 import common_pb2 as _common_pb2
from protos.kvquilt.v1 import generation_pb2 as _generation_pb2
from protos.kvquilt.v1 import recompute_pb2 as _recompute_pb2
from protos.kvquilt.v1 import retrieval_pb2 as _retrieval_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Rating(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RATING_UNSPECIFIED: _ClassVar[Rating]
    RATING_GOOD: _ClassVar[Rating]
    RATING_BAD: _ClassVar[Rating]
RATING_UNSPECIFIED: Rating
RATING_GOOD: Rating
RATING_BAD: Rating

class RetrievalOptions(_message.Message):
    __slots__ = ("k", "mode", "filters")
    K_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    FILTERS_FIELD_NUMBER: _ClassVar[int]
    k: int
    mode: _retrieval_pb2.SearchMode
    filters: _containers.RepeatedCompositeFieldContainer[_retrieval_pb2.Filter]
    def __init__(self, k: _Optional[int] = ..., mode: _Optional[_Union[_retrieval_pb2.SearchMode, str]] = ..., filters: _Optional[_Iterable[_Union[_retrieval_pb2.Filter, _Mapping]]] = ...) -> None: ...

class AnswerRequest(_message.Message):
    __slots__ = ("meta", "collection", "questions", "reuse", "sampling", "retrieval", "decoding", "recompute", "ape", "without_prefix", "explain", "refusal", "preface", "adapter", "no_shadow", "documents", "pasted", "turns")
    META_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    QUESTIONS_FIELD_NUMBER: _ClassVar[int]
    REUSE_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    RETRIEVAL_FIELD_NUMBER: _ClassVar[int]
    DECODING_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTE_FIELD_NUMBER: _ClassVar[int]
    APE_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_PREFIX_FIELD_NUMBER: _ClassVar[int]
    EXPLAIN_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    PREFACE_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    NO_SHADOW_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    PASTED_FIELD_NUMBER: _ClassVar[int]
    TURNS_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    collection: str
    questions: _containers.RepeatedScalarFieldContainer[str]
    reuse: str
    sampling: _common_pb2.Sampling
    retrieval: RetrievalOptions
    decoding: _common_pb2.Decoding
    recompute: _recompute_pb2.Recompute
    ape: _recompute_pb2.Ape
    without_prefix: bool
    explain: bool
    refusal: str
    preface: str
    adapter: str
    no_shadow: bool
    documents: _containers.RepeatedCompositeFieldContainer[HandedDocument]
    pasted: bool
    turns: _containers.RepeatedCompositeFieldContainer[EarlierTurn]
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ..., collection: _Optional[str] = ..., questions: _Optional[_Iterable[str]] = ..., reuse: _Optional[str] = ..., sampling: _Optional[_Union[_common_pb2.Sampling, _Mapping]] = ..., retrieval: _Optional[_Union[RetrievalOptions, _Mapping]] = ..., decoding: _Optional[_Union[_common_pb2.Decoding, _Mapping]] = ..., recompute: _Optional[_Union[_recompute_pb2.Recompute, _Mapping]] = ..., ape: _Optional[_Union[_recompute_pb2.Ape, _Mapping]] = ..., without_prefix: _Optional[bool] = ..., explain: _Optional[bool] = ..., refusal: _Optional[str] = ..., preface: _Optional[str] = ..., adapter: _Optional[str] = ..., no_shadow: _Optional[bool] = ..., documents: _Optional[_Iterable[_Union[HandedDocument, _Mapping]]] = ..., pasted: _Optional[bool] = ..., turns: _Optional[_Iterable[_Union[EarlierTurn, _Mapping]]] = ...) -> None: ...

class EarlierTurn(_message.Message):
    __slots__ = ("speaker", "text")
    SPEAKER_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    speaker: str
    text: str
    def __init__(self, speaker: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class HandedDocument(_message.Message):
    __slots__ = ("title", "text")
    TITLE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    title: str
    text: str
    def __init__(self, title: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class AnswerEvent(_message.Message):
    __slots__ = ("retrieved", "token", "answer", "usage", "done", "chosen", "margin_token", "margin", "selected", "more")
    RETRIEVED_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    MARGIN_TOKEN_FIELD_NUMBER: _ClassVar[int]
    MARGIN_FIELD_NUMBER: _ClassVar[int]
    SELECTED_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    retrieved: Retrieved
    token: _generation_pb2.GeneratedToken
    answer: AnswerText
    usage: AnswerUsage
    done: AnswerDone
    chosen: _common_pb2.Chosen
    margin_token: _common_pb2.MarginToken
    margin: _common_pb2.Margin
    selected: _recompute_pb2.Selected
    more: _containers.RepeatedCompositeFieldContainer[AnswerEvent]
    def __init__(self, retrieved: _Optional[_Union[Retrieved, _Mapping]] = ..., token: _Optional[_Union[_generation_pb2.GeneratedToken, _Mapping]] = ..., answer: _Optional[_Union[AnswerText, _Mapping]] = ..., usage: _Optional[_Union[AnswerUsage, _Mapping]] = ..., done: _Optional[_Union[AnswerDone, _Mapping]] = ..., chosen: _Optional[_Union[_common_pb2.Chosen, _Mapping]] = ..., margin_token: _Optional[_Union[_common_pb2.MarginToken, _Mapping]] = ..., margin: _Optional[_Union[_common_pb2.Margin, _Mapping]] = ..., selected: _Optional[_Union[_recompute_pb2.Selected, _Mapping]] = ..., more: _Optional[_Iterable[_Union[AnswerEvent, _Mapping]]] = ...) -> None: ...

class Retrieved(_message.Message):
    __slots__ = ("hits", "mode", "queries", "follow_up")
    HITS_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    QUERIES_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_UP_FIELD_NUMBER: _ClassVar[int]
    hits: _containers.RepeatedCompositeFieldContainer[_retrieval_pb2.SearchHit]
    mode: _retrieval_pb2.SearchMode
    queries: _containers.RepeatedScalarFieldContainer[str]
    follow_up: str
    def __init__(self, hits: _Optional[_Iterable[_Union[_retrieval_pb2.SearchHit, _Mapping]]] = ..., mode: _Optional[_Union[_retrieval_pb2.SearchMode, str]] = ..., queries: _Optional[_Iterable[str]] = ..., follow_up: _Optional[str] = ...) -> None: ...

class AnswerText(_message.Message):
    __slots__ = ("question", "sample", "text", "finish_reason", "citations", "score")
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    CITATIONS_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    question: int
    sample: int
    text: str
    finish_reason: _common_pb2.FinishReason
    citations: _containers.RepeatedCompositeFieldContainer[Citation]
    score: float
    def __init__(self, question: _Optional[int] = ..., sample: _Optional[int] = ..., text: _Optional[str] = ..., finish_reason: _Optional[_Union[_common_pb2.FinishReason, str]] = ..., citations: _Optional[_Iterable[_Union[Citation, _Mapping]]] = ..., score: _Optional[float] = ...) -> None: ...

class Citation(_message.Message):
    __slots__ = ("document_id", "title", "chunk_id", "hit", "heading", "block", "block_heading", "conditioned_on_header", "conditioned_on_chunks")
    DOCUMENT_ID_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_ID_FIELD_NUMBER: _ClassVar[int]
    HIT_FIELD_NUMBER: _ClassVar[int]
    HEADING_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    BLOCK_HEADING_FIELD_NUMBER: _ClassVar[int]
    CONDITIONED_ON_HEADER_FIELD_NUMBER: _ClassVar[int]
    CONDITIONED_ON_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    document_id: str
    title: str
    chunk_id: str
    hit: int
    heading: str
    block: int
    block_heading: str
    conditioned_on_header: bool
    conditioned_on_chunks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, document_id: _Optional[str] = ..., title: _Optional[str] = ..., chunk_id: _Optional[str] = ..., hit: _Optional[int] = ..., heading: _Optional[str] = ..., block: _Optional[int] = ..., block_heading: _Optional[str] = ..., conditioned_on_header: _Optional[bool] = ..., conditioned_on_chunks: _Optional[_Iterable[int]] = ...) -> None: ...

class AnswerUsage(_message.Message):
    __slots__ = ("usage", "timings")
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    usage: _common_pb2.Usage
    timings: _common_pb2.Timings
    def __init__(self, usage: _Optional[_Union[_common_pb2.Usage, _Mapping]] = ..., timings: _Optional[_Union[_common_pb2.Timings, _Mapping]] = ...) -> None: ...

class AnswerDone(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class FeedbackRequest(_message.Message):
    __slots__ = ("meta", "request_id", "rating", "comment", "question")
    META_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    RATING_FIELD_NUMBER: _ClassVar[int]
    COMMENT_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    request_id: str
    rating: Rating
    comment: str
    question: int
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ..., request_id: _Optional[str] = ..., rating: _Optional[_Union[Rating, str]] = ..., comment: _Optional[str] = ..., question: _Optional[int] = ...) -> None: ...

class FeedbackResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListFeedbackRequest(_message.Message):
    __slots__ = ("meta", "collection")
    META_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    collection: str
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ..., collection: _Optional[str] = ...) -> None: ...

class RatedAnswer(_message.Message):
    __slots__ = ("request_id", "question", "rating", "comment", "collection", "asked", "answer", "reuse", "ratio", "chunk_ids", "document_ids", "rated_s")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    RATING_FIELD_NUMBER: _ClassVar[int]
    COMMENT_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    REUSE_FIELD_NUMBER: _ClassVar[int]
    RATIO_FIELD_NUMBER: _ClassVar[int]
    CHUNK_IDS_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_IDS_FIELD_NUMBER: _ClassVar[int]
    RATED_S_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    question: int
    rating: Rating
    comment: str
    collection: str
    asked: str
    answer: str
    reuse: str
    ratio: float
    chunk_ids: _containers.RepeatedScalarFieldContainer[str]
    document_ids: _containers.RepeatedScalarFieldContainer[str]
    rated_s: float
    def __init__(self, request_id: _Optional[str] = ..., question: _Optional[int] = ..., rating: _Optional[_Union[Rating, str]] = ..., comment: _Optional[str] = ..., collection: _Optional[str] = ..., asked: _Optional[str] = ..., answer: _Optional[str] = ..., reuse: _Optional[str] = ..., ratio: _Optional[float] = ..., chunk_ids: _Optional[_Iterable[str]] = ..., document_ids: _Optional[_Iterable[str]] = ..., rated_s: _Optional[float] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ("meta",)
    META_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ...) -> None: ...

class StatusResponse(_message.Message):
    __slots__ = ("services",)
    SERVICES_FIELD_NUMBER: _ClassVar[int]
    services: _containers.RepeatedCompositeFieldContainer[_common_pb2.HealthResponse]
    def __init__(self, services: _Optional[_Iterable[_Union[_common_pb2.HealthResponse, _Mapping]]] = ...) -> None: ...
