from protos.kvquilt.v1 import common_pb2 as _common_pb2
from protos.kvquilt.v1 import recompute_pb2 as _recompute_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TokenIds(_message.Message):
    __slots__ = ("ids", "text")
    IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    text: str
    def __init__(self, ids: _Optional[_Iterable[int]] = ..., text: _Optional[str] = ...) -> None: ...

class Piece(_message.Message):
    __slots__ = ("text", "token_ids", "context", "parent_id")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    PARENT_ID_FIELD_NUMBER: _ClassVar[int]
    text: str
    token_ids: TokenIds
    context: _containers.RepeatedCompositeFieldContainer[Piece]
    parent_id: str
    def __init__(self, text: _Optional[str] = ..., token_ids: _Optional[_Union[TokenIds, _Mapping]] = ..., context: _Optional[_Iterable[_Union[Piece, _Mapping]]] = ..., parent_id: _Optional[str] = ...) -> None: ...

class PrefillRequest(_message.Message):
    __slots__ = ("meta", "prefix", "chunks", "encoding", "chained")
    META_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    CHAINED_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    prefix: Piece
    chunks: _containers.RepeatedCompositeFieldContainer[Piece]
    encoding: str
    chained: bool
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ..., prefix: _Optional[_Union[Piece, _Mapping]] = ..., chunks: _Optional[_Iterable[_Union[Piece, _Mapping]]] = ..., encoding: _Optional[str] = ..., chained: _Optional[bool] = ...) -> None: ...

class PrefillResponse(_message.Message):
    __slots__ = ("index", "chunk_id", "num_tokens", "existed", "token_ids")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    CHUNK_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EXISTED_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    index: int
    chunk_id: str
    num_tokens: int
    existed: bool
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, index: _Optional[int] = ..., chunk_id: _Optional[str] = ..., num_tokens: _Optional[int] = ..., existed: _Optional[bool] = ..., token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class RecomputeRequest(_message.Message):
    __slots__ = ("meta", "prefix", "chunks")
    META_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    prefix: Piece
    chunks: _containers.RepeatedCompositeFieldContainer[Piece]
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ..., prefix: _Optional[_Union[Piece, _Mapping]] = ..., chunks: _Optional[_Iterable[_Union[Piece, _Mapping]]] = ...) -> None: ...

class RecomputeResponse(_message.Message):
    __slots__ = ("index", "chunk_id", "encoding", "deviation", "tolerance")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    CHUNK_ID_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    DEVIATION_FIELD_NUMBER: _ClassVar[int]
    TOLERANCE_FIELD_NUMBER: _ClassVar[int]
    index: int
    chunk_id: str
    encoding: str
    deviation: float
    tolerance: float
    def __init__(self, index: _Optional[int] = ..., chunk_id: _Optional[str] = ..., encoding: _Optional[str] = ..., deviation: _Optional[float] = ..., tolerance: _Optional[float] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("meta", "prefix", "chunks", "questions", "reuse", "sampling", "decoding", "recompute", "ape", "explain", "adapter", "kv_context", "idle", "chunk_ids", "route", "route_held", "conversation")
    META_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    QUESTIONS_FIELD_NUMBER: _ClassVar[int]
    REUSE_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    DECODING_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTE_FIELD_NUMBER: _ClassVar[int]
    APE_FIELD_NUMBER: _ClassVar[int]
    EXPLAIN_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    KV_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    IDLE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_IDS_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    ROUTE_HELD_FIELD_NUMBER: _ClassVar[int]
    CONVERSATION_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    prefix: Piece
    chunks: _containers.RepeatedCompositeFieldContainer[Piece]
    questions: _containers.RepeatedCompositeFieldContainer[Piece]
    reuse: str
    sampling: _common_pb2.Sampling
    decoding: _common_pb2.Decoding
    recompute: _recompute_pb2.Recompute
    ape: _recompute_pb2.Ape
    explain: bool
    adapter: str
    kv_context: str
    idle: bool
    chunk_ids: _containers.RepeatedScalarFieldContainer[str]
    route: str
    route_held: int
    conversation: bool
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ..., prefix: _Optional[_Union[Piece, _Mapping]] = ..., chunks: _Optional[_Iterable[_Union[Piece, _Mapping]]] = ..., questions: _Optional[_Iterable[_Union[Piece, _Mapping]]] = ..., reuse: _Optional[str] = ..., sampling: _Optional[_Union[_common_pb2.Sampling, _Mapping]] = ..., decoding: _Optional[_Union[_common_pb2.Decoding, _Mapping]] = ..., recompute: _Optional[_Union[_recompute_pb2.Recompute, _Mapping]] = ..., ape: _Optional[_Union[_recompute_pb2.Ape, _Mapping]] = ..., explain: _Optional[bool] = ..., adapter: _Optional[str] = ..., kv_context: _Optional[str] = ..., idle: _Optional[bool] = ..., chunk_ids: _Optional[_Iterable[str]] = ..., route: _Optional[str] = ..., route_held: _Optional[int] = ..., conversation: _Optional[bool] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("token", "branch_done", "done", "chosen", "margin_token", "margin", "selected", "more")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    BRANCH_DONE_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    MARGIN_TOKEN_FIELD_NUMBER: _ClassVar[int]
    MARGIN_FIELD_NUMBER: _ClassVar[int]
    SELECTED_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    token: GeneratedToken
    branch_done: BranchDone
    done: GenerateDone
    chosen: _common_pb2.Chosen
    margin_token: _common_pb2.MarginToken
    margin: _common_pb2.Margin
    selected: _recompute_pb2.Selected
    more: _containers.RepeatedCompositeFieldContainer[GenerateResponse]
    def __init__(self, token: _Optional[_Union[GeneratedToken, _Mapping]] = ..., branch_done: _Optional[_Union[BranchDone, _Mapping]] = ..., done: _Optional[_Union[GenerateDone, _Mapping]] = ..., chosen: _Optional[_Union[_common_pb2.Chosen, _Mapping]] = ..., margin_token: _Optional[_Union[_common_pb2.MarginToken, _Mapping]] = ..., margin: _Optional[_Union[_common_pb2.Margin, _Mapping]] = ..., selected: _Optional[_Union[_recompute_pb2.Selected, _Mapping]] = ..., more: _Optional[_Iterable[_Union[GenerateResponse, _Mapping]]] = ...) -> None: ...

class GeneratedToken(_message.Message):
    __slots__ = ("question", "sample", "token_id", "text", "logprob", "top_logprobs", "token", "top_tokens")
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    question: int
    sample: int
    token_id: int
    text: str
    logprob: float
    top_logprobs: _containers.RepeatedCompositeFieldContainer[_common_pb2.TokenLogprob]
    token: str
    top_tokens: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, question: _Optional[int] = ..., sample: _Optional[int] = ..., token_id: _Optional[int] = ..., text: _Optional[str] = ..., logprob: _Optional[float] = ..., top_logprobs: _Optional[_Iterable[_Union[_common_pb2.TokenLogprob, _Mapping]]] = ..., token: _Optional[str] = ..., top_tokens: _Optional[_Iterable[str]] = ...) -> None: ...

class BranchDone(_message.Message):
    __slots__ = ("question", "sample", "finish_reason", "text", "generated_tokens", "score")
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    GENERATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    question: int
    sample: int
    finish_reason: _common_pb2.FinishReason
    text: str
    generated_tokens: int
    score: float
    def __init__(self, question: _Optional[int] = ..., sample: _Optional[int] = ..., finish_reason: _Optional[_Union[_common_pb2.FinishReason, str]] = ..., text: _Optional[str] = ..., generated_tokens: _Optional[int] = ..., score: _Optional[float] = ...) -> None: ...

class GenerateDone(_message.Message):
    __slots__ = ("usage", "timings", "chunk_ids")
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    CHUNK_IDS_FIELD_NUMBER: _ClassVar[int]
    usage: _common_pb2.Usage
    timings: _common_pb2.Timings
    chunk_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, usage: _Optional[_Union[_common_pb2.Usage, _Mapping]] = ..., timings: _Optional[_Union[_common_pb2.Timings, _Mapping]] = ..., chunk_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class ExploreRequest(_message.Message):
    __slots__ = ("open", "start", "fork", "rewind", "prune", "append", "grow", "merge")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    FORK_FIELD_NUMBER: _ClassVar[int]
    REWIND_FIELD_NUMBER: _ClassVar[int]
    PRUNE_FIELD_NUMBER: _ClassVar[int]
    APPEND_FIELD_NUMBER: _ClassVar[int]
    GROW_FIELD_NUMBER: _ClassVar[int]
    MERGE_FIELD_NUMBER: _ClassVar[int]
    open: ForestOpen
    start: ForestStart
    fork: ForestFork
    rewind: ForestRewind
    prune: ForestPrune
    append: ForestAppend
    grow: ForestGrow
    merge: ForestMerge
    def __init__(self, open: _Optional[_Union[ForestOpen, _Mapping]] = ..., start: _Optional[_Union[ForestStart, _Mapping]] = ..., fork: _Optional[_Union[ForestFork, _Mapping]] = ..., rewind: _Optional[_Union[ForestRewind, _Mapping]] = ..., prune: _Optional[_Union[ForestPrune, _Mapping]] = ..., append: _Optional[_Union[ForestAppend, _Mapping]] = ..., grow: _Optional[_Union[ForestGrow, _Mapping]] = ..., merge: _Optional[_Union[ForestMerge, _Mapping]] = ...) -> None: ...

class ForestOpen(_message.Message):
    __slots__ = ("meta", "prefix", "chunks", "reuse", "recompute", "ape", "adapter", "kv_context")
    META_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    REUSE_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTE_FIELD_NUMBER: _ClassVar[int]
    APE_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    KV_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    prefix: Piece
    chunks: _containers.RepeatedCompositeFieldContainer[Piece]
    reuse: str
    recompute: _recompute_pb2.Recompute
    ape: _recompute_pb2.Ape
    adapter: str
    kv_context: str
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ..., prefix: _Optional[_Union[Piece, _Mapping]] = ..., chunks: _Optional[_Iterable[_Union[Piece, _Mapping]]] = ..., reuse: _Optional[str] = ..., recompute: _Optional[_Union[_recompute_pb2.Recompute, _Mapping]] = ..., ape: _Optional[_Union[_recompute_pb2.Ape, _Mapping]] = ..., adapter: _Optional[str] = ..., kv_context: _Optional[str] = ...) -> None: ...

class ForestStart(_message.Message):
    __slots__ = ("branch", "piece")
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    branch: int
    piece: Piece
    def __init__(self, branch: _Optional[int] = ..., piece: _Optional[_Union[Piece, _Mapping]] = ...) -> None: ...

class ForestFork(_message.Message):
    __slots__ = ("branch", "source", "length")
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    branch: int
    source: int
    length: int
    def __init__(self, branch: _Optional[int] = ..., source: _Optional[int] = ..., length: _Optional[int] = ...) -> None: ...

class ForestRewind(_message.Message):
    __slots__ = ("branch", "num_tokens")
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    branch: int
    num_tokens: int
    def __init__(self, branch: _Optional[int] = ..., num_tokens: _Optional[int] = ...) -> None: ...

class ForestPrune(_message.Message):
    __slots__ = ("branch",)
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    branch: int
    def __init__(self, branch: _Optional[int] = ...) -> None: ...

class ForestAppend(_message.Message):
    __slots__ = ("branch", "piece")
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    branch: int
    piece: Piece
    def __init__(self, branch: _Optional[int] = ..., piece: _Optional[_Union[Piece, _Mapping]] = ...) -> None: ...

class ForestGrow(_message.Message):
    __slots__ = ("branch", "sampling")
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    branch: int
    sampling: _common_pb2.Sampling
    def __init__(self, branch: _Optional[int] = ..., sampling: _Optional[_Union[_common_pb2.Sampling, _Mapping]] = ...) -> None: ...

class ForestMerge(_message.Message):
    __slots__ = ("branch", "sources", "length", "placed")
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    PLACED_FIELD_NUMBER: _ClassVar[int]
    branch: int
    sources: _containers.RepeatedScalarFieldContainer[int]
    length: int
    placed: bool
    def __init__(self, branch: _Optional[int] = ..., sources: _Optional[_Iterable[int]] = ..., length: _Optional[int] = ..., placed: _Optional[bool] = ...) -> None: ...

class ExploreResponse(_message.Message):
    __slots__ = ("applied", "refused", "grown", "rested", "done", "selected")
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    GROWN_FIELD_NUMBER: _ClassVar[int]
    RESTED_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    SELECTED_FIELD_NUMBER: _ClassVar[int]
    applied: ForestApplied
    refused: ForestRefused
    grown: ForestGrown
    rested: ForestRested
    done: GenerateDone
    selected: _recompute_pb2.Selected
    def __init__(self, applied: _Optional[_Union[ForestApplied, _Mapping]] = ..., refused: _Optional[_Union[ForestRefused, _Mapping]] = ..., grown: _Optional[_Union[ForestGrown, _Mapping]] = ..., rested: _Optional[_Union[ForestRested, _Mapping]] = ..., done: _Optional[_Union[GenerateDone, _Mapping]] = ..., selected: _Optional[_Union[_recompute_pb2.Selected, _Mapping]] = ...) -> None: ...

class ForestApplied(_message.Message):
    __slots__ = ("command", "num_tokens", "approximate")
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    APPROXIMATE_FIELD_NUMBER: _ClassVar[int]
    command: int
    num_tokens: int
    approximate: bool
    def __init__(self, command: _Optional[int] = ..., num_tokens: _Optional[int] = ..., approximate: _Optional[bool] = ...) -> None: ...

class ForestRefused(_message.Message):
    __slots__ = ("command", "code", "detail")
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    command: int
    code: str
    detail: str
    def __init__(self, command: _Optional[int] = ..., code: _Optional[str] = ..., detail: _Optional[str] = ...) -> None: ...

class ForestGrown(_message.Message):
    __slots__ = ("branch", "token_id", "text", "logprob", "top_logprobs")
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    branch: int
    token_id: int
    text: str
    logprob: float
    top_logprobs: _containers.RepeatedCompositeFieldContainer[_common_pb2.TokenLogprob]
    def __init__(self, branch: _Optional[int] = ..., token_id: _Optional[int] = ..., text: _Optional[str] = ..., logprob: _Optional[float] = ..., top_logprobs: _Optional[_Iterable[_Union[_common_pb2.TokenLogprob, _Mapping]]] = ...) -> None: ...

class ForestRested(_message.Message):
    __slots__ = ("branch", "finish_reason", "text", "num_tokens")
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    branch: int
    finish_reason: _common_pb2.FinishReason
    text: str
    num_tokens: int
    def __init__(self, branch: _Optional[int] = ..., finish_reason: _Optional[_Union[_common_pb2.FinishReason, str]] = ..., text: _Optional[str] = ..., num_tokens: _Optional[int] = ...) -> None: ...

class DescribeModelRequest(_message.Message):
    __slots__ = ("meta",)
    META_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ...) -> None: ...

class DescribeModelResponse(_message.Message):
    __slots__ = ("model", "fingerprint", "tokenizer_hash", "prefix_ids", "chunk_template", "question_template", "max_positions", "dtype", "kv_bytes_per_token", "device", "eos_ids", "kv_encoding", "prompt", "kv_scope")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_HASH_FIELD_NUMBER: _ClassVar[int]
    PREFIX_IDS_FIELD_NUMBER: _ClassVar[int]
    CHUNK_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    QUESTION_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    MAX_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    KV_BYTES_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    EOS_IDS_FIELD_NUMBER: _ClassVar[int]
    KV_ENCODING_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    KV_SCOPE_FIELD_NUMBER: _ClassVar[int]
    model: str
    fingerprint: str
    tokenizer_hash: str
    prefix_ids: _containers.RepeatedScalarFieldContainer[int]
    chunk_template: str
    question_template: str
    max_positions: int
    dtype: str
    kv_bytes_per_token: int
    device: str
    eos_ids: _containers.RepeatedScalarFieldContainer[int]
    kv_encoding: str
    prompt: str
    kv_scope: str
    def __init__(self, model: _Optional[str] = ..., fingerprint: _Optional[str] = ..., tokenizer_hash: _Optional[str] = ..., prefix_ids: _Optional[_Iterable[int]] = ..., chunk_template: _Optional[str] = ..., question_template: _Optional[str] = ..., max_positions: _Optional[int] = ..., dtype: _Optional[str] = ..., kv_bytes_per_token: _Optional[int] = ..., device: _Optional[str] = ..., eos_ids: _Optional[_Iterable[int]] = ..., kv_encoding: _Optional[str] = ..., prompt: _Optional[str] = ..., kv_scope: _Optional[str] = ...) -> None: ...

class SuspendVerdictRequest(_message.Message):
    __slots__ = ("meta", "verdict", "reason")
    META_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    meta: _common_pb2.RequestMeta
    verdict: str
    reason: str
    def __init__(self, meta: _Optional[_Union[_common_pb2.RequestMeta, _Mapping]] = ..., verdict: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class SuspendVerdictResponse(_message.Message):
    __slots__ = ("kept",)
    KEPT_FIELD_NUMBER: _ClassVar[int]
    kept: bool
    def __init__(self, kept: _Optional[bool] = ...) -> None: ...
